//! `forge-bridge tail`: follows events across disconnects and restarts.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::screen::{Screen, Tone, harmless, text};
use super::stream::{Events, Query};
use super::{Context, block_on};

/// Characters of an event's data on a line, if no terminal width is known.
const LONGEST_DATA: usize = 200;
/// Data left out of a line: redundant or of no interest.
const UNSAID: [&str; 3] = ["deliveryId", "provider", "taskId"];

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Dispatch id (dsp_…) or task id; all events when absent
    dispatch: Option<String>,
    /// Start after this cursor; 0 for the earliest event, now for new ones
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Continue until the callback is settled, not only until the execution ends
    #[arg(long, requires = "dispatch")]
    until_delivered: bool,
    /// Only events of this adapter
    #[arg(long, conflicts_with = "dispatch")]
    provider: Option<String>,
    /// Only events of this agent
    #[arg(long, conflicts_with = "dispatch")]
    agent: Option<String>,
    /// Only events of this task
    #[arg(long, conflicts_with = "dispatch")]
    task: Option<String>,
    /// Only events of this type, such as execution.failed
    #[arg(long = "type", conflicts_with = "dispatch", value_name = "TYPE")]
    kind: Option<String>,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let screen = context.screen();
    block_on(async {
        let mut events = Events::new(client, query(arguments));
        while let Some(event) = events.next().await? {
            match context.global.json {
                true => screen.value_line(&event)?,
                false => screen.line(line(&screen, &event))?,
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn query(arguments: &Arguments) -> Query {
    let until = arguments.until_delivered.then(|| "delivered".to_owned());
    let filter = [
        ("until", until),
        ("provider", arguments.provider.clone()),
        ("agentId", arguments.agent.clone()),
        ("taskId", arguments.task.clone()),
        ("type", arguments.kind.clone()),
    ];
    let path: &[&str] = match &arguments.dispatch {
        Some(dispatch) => &["api", "v2", "dispatch", dispatch, "events"],
        None => &["api", "v2", "events"],
    };
    Query {
        path: path.iter().map(|&step| step.to_owned()).collect(),
        filter: filter
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect(),
        after: arguments.after.clone(),
    }
}

/// Formats an event as one line.
pub(super) fn line(screen: &Screen, event: &Value) -> String {
    let kind = text(event, "/type");
    let tone = match kind.as_str() {
        "execution.completed" | "callback.delivered" | "refinery.merged" => Tone::Good,
        "execution.failed" | "callback.dead" | "task.failed" | "task.stale" => Tone::Bad,
        "run.completed" if event["data"]["status"] == "completed" => Tone::Good,
        "run.completed" | "refinery.conflict" => Tone::Bad,
        _ => Tone::Name,
    };
    let time = text(event, "/timestamp");
    let clock = time.get(11..23).unwrap_or(&time);
    let whose = match (event["taskId"].as_str(), event["attemptId"].as_str()) {
        (Some(task), Some(attempt)) => format!("{task}/{attempt}"),
        (Some(task), None) => task.to_owned(),
        (None, _) => text(event, "/provider"),
    };
    let before = clock.chars().count() + kind.chars().count().max(20) + whose.chars().count() + 6;
    let room = screen.width().map_or(LONGEST_DATA, |width| {
        // One more character for the ellipsis.
        width.saturating_sub(before + 1)
    });
    let data = match &event["data"] {
        Value::Null => String::new(),
        data => shortened(&said(&kind, data), room),
    };
    format!(
        "{}  {}  {whose}  {}",
        screen.paint(Tone::Quiet, clock),
        screen.paint(tone, format_args!("{kind:<20}")),
        screen.paint(Tone::Quiet, data),
    )
    .trim_end()
    .to_owned()
}

/// Formats an event's data on one line, with unseen characters escaped: text as it is, other members
/// with their names.
fn said(kind: &str, data: &Value) -> String {
    match kind {
        "model.retrying" => return harmless(&model_retrying(data)),
        "assistant.retracted" => return harmless(&retracted(data)),
        _ => {}
    }
    let delta = match kind {
        "assistant.text" | "assistant.thinking" => data["delta"].as_str(),
        "task.progress" | "captain.message" | "captain.user_message" => data["content"].as_str(),
        _ => None,
    };
    match (delta, data) {
        (Some(delta), _) => delta.escape_debug().to_string(),
        (None, Value::Object(members)) => {
            let members = members.iter();
            let said = members.filter(|(name, _)| !UNSAID.contains(&name.as_str()));
            let said = said.filter(|(_, value)| !value.is_null());
            let pairs: Vec<_> = said.map(|(name, value)| pair(name, value)).collect();
            pairs.join(", ")
        }
        (None, other) => harmless(&other.to_string()),
    }
}

/// Description of an `assistant.retracted` event.
pub(super) fn retracted(data: &Value) -> String {
    match (data["messageId"].as_str(), data["attempt"].as_u64()) {
        (Some(message), _) => format!("the text of {message} is withdrawn"),
        (None, Some(attempt)) => format!("the text of attempt {attempt} is withdrawn"),
        (None, None) => "the text of a message is withdrawn".to_owned(),
    }
}

/// Description of a `model.retrying` event.
pub(super) fn model_retrying(data: &Value) -> String {
    let seconds = data["delayMs"].as_f64().unwrap_or_default() / 1000.0;
    let reason = data["reason"].as_str().unwrap_or("no reason given");
    format!("the model is asked again in {seconds} s: {reason}")
}

fn pair(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) => format!("{name} {}", text.escape_debug()),
        Value::Number(number) if number.is_f64() => {
            format!("{name} {}", rounded(number.as_f64().unwrap_or_default()))
        }
        other => format!("{name} {}", harmless(&other.to_string())),
    }
}

/// Rounds to nine decimals, to hide rounding errors of sums.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 1e9).round() / 1e9
}

/// Cuts a text after `limit` characters and appends an ellipsis.
pub(super) fn shortened(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::Environment;

    #[test]
    fn an_event_is_one_line() {
        let screen = Screen::new(&Environment::from([("NO_COLOR".into(), "1".into())]));
        let event = json!({
            "id": "a-1", "type": "assistant.text", "taskId": "t-1", "provider": "echo",
            "timestamp": "2026-11-21T02:41:12.123Z", "data": {"delta": "two\nlines"},
        });
        insta::assert_snapshot!(
            line(&screen, &event),
            @r"02:41:12.123  assistant.text        t-1  two\nlines"
        );
    }

    #[test]
    fn data_are_said_by_name_and_nothing_twice() {
        for (data, expected) in [
            (json!({"provider": "echo"}), ""),
            (
                json!({"attempt": 1, "deliveryId": "dlv_1", "durationMs": 0, "status": 204, "error": null}),
                "attempt 1, durationMs 0, status 204",
            ),
            (
                json!({"error": "a\u{1b}[31m", "errorCode": "quota"}),
                r"error a\u{1b}[31m, errorCode quota",
            ),
            (json!({"input": {"a": [1]}}), r#"input {"a":[1]}"#),
            (json!({"costUsd": 0.000_02 * 3.0}), "costUsd 0.00006"),
        ] {
            assert_eq!(said("any", &data), expected);
        }
        let retrying = json!({"reason": "rate_limited", "delayMs": 250});
        let expected = "the model is asked again in 0.25 s: rate_limited";
        assert_eq!(said("model.retrying", &retrying), expected);
        let retracted = json!({"messageId": "m-1"});
        let expected = "the text of m-1 is withdrawn";
        assert_eq!(said("assistant.retracted", &retracted), expected);
        let expected = "the text of attempt 1 is withdrawn";
        assert_eq!(
            said("assistant.retracted", &json!({"attempt": 1})),
            expected
        );
    }

    #[test]
    fn what_is_long_is_cut_between_characters() {
        assert_eq!(shortened("äöü", 2), "äö…");
        assert_eq!(shortened("äöü", 3), "äöü");
    }
}
