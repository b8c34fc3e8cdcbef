//! What to answer, whatever the protocol.

use axum::http::StatusCode;
use serde_json::Value;

use super::Desk;

pub(super) enum Plan {
    Text(String),
    /// Text behind a thought.
    Thought(String),
    Slow,
    Hang,
    Calls(Vec<Call>),
    Fail(StatusCode),
}

pub(super) struct Call {
    pub(super) tool: String,
    pub(super) input: Value,
}

/// `tool_output` is the result of a call that has just come back.
pub(super) fn plan(desk: &Desk, prompt: &str, tool_output: Option<&str>) -> Plan {
    if let Some(output) = tool_output {
        return Plan::Text(format!("tool said: {}", head(output, 200)));
    }
    if let Some(status) = status_behind(prompt, "FAILONCE")
        && desk.is_first(prompt)
    {
        return Plan::Fail(status);
    }
    if let Some(status) = status_behind(prompt, "FAIL") {
        return Plan::Fail(status);
    }
    let calls = calls(prompt);
    if !calls.is_empty() {
        return Plan::Calls(calls);
    }
    if prompt.contains("HANG") {
        return Plan::Hang;
    }
    if prompt.contains("SLOW") {
        return Plan::Slow;
    }
    let text = format!("pong: {}", tail(prompt.trim(), 60));
    if prompt.contains("THINK") {
        Plan::Thought(text)
    } else {
        Plan::Text(text)
    }
}

fn status_behind(prompt: &str, marker: &str) -> Option<StatusCode> {
    let rest = &prompt[prompt.find(marker)? + marker.len()..];
    rest.get(..3)?.parse().ok()
}

fn calls(prompt: &str) -> Vec<Call> {
    prompt
        .match_indices("CALL ")
        .filter_map(|(at, marker)| {
            let (tool, rest) = prompt[at + marker.len()..].split_once(' ')?;
            let input = serde_json::Deserializer::from_str(rest)
                .into_iter()
                .next()?
                .ok()?;
            Some(Call {
                tool: tool.to_owned(),
                input,
            })
        })
        .collect()
}

fn head(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

fn tail(text: &str, chars: usize) -> String {
    let skipped = text.chars().count().saturating_sub(chars);
    text.chars().skip(skipped).collect()
}
