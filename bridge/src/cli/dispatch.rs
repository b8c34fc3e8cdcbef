//! `forge-bridge dispatch`: posts a dispatch and follows it until it finishes. The answer's text is streamed to
//! standard output, status lines go to standard error.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use serde_json::{Map, Value, json};
use tokio::time::interval;

use super::client::{Client, Target};
use super::screen::{Screen, Tone, harmless, text};
use super::stream::{Events, Query};
use super::{Context, FAILED, INTERRUPTED, block_on, tail};

/// Redraw interval of the progress line.
const BEAT: Duration = Duration::from_millis(500);
const LONGEST_DOING: usize = 60;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Message for the agent; `-` reads it from standard input
    #[arg(required_unless_present = "body")]
    message: Option<String>,
    /// JSON file with the whole dispatch; the message and the options below override its fields
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// Task id, which makes repeated requests idempotent; generated when absent
    #[arg(long)]
    task: Option<String>,
    /// Agent id; `cli` when absent
    #[arg(long)]
    agent: Option<String>,
    /// Adapter; chosen by the bridge when absent
    #[arg(long)]
    provider: Option<String>,
    /// Model, by its name in the adapter
    #[arg(long)]
    model: Option<String>,
    /// System prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Continue this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Time limit of one attempt
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// URL for the result; no callback when absent
    #[arg(long, value_name = "URL")]
    callback: Option<String>,
    /// Return once the dispatch is accepted
    #[arg(long)]
    no_wait: bool,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let screen = context.screen();
    let body = body(arguments)?;
    block_on(async {
        let accepted = client
            .post(Target::path(&["api", "v2", "dispatch"]), &body)
            .await?;
        if arguments.no_wait {
            match context.global.json {
                true => screen.value(&accepted)?,
                false => screen.line(text(&accepted, "/dispatchId"))?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        let id = accepted["dispatchId"]
            .as_str()
            .context("the answer has no dispatchId; is it from a forge-bridge?")?;
        let concluded = async {
            if context.global.json {
                wait(&client, id).await?;
                let record = record(&client, id).await?;
                screen.value(&record)?;
                return anyhow::Ok(record);
            }
            announce(&screen, &accepted, arguments.task.as_deref())?;
            let streamed = follow(&client, &screen, id).await?;
            let record = record(&client, id).await?;
            conclude(&screen, &record, &streamed)?;
            Ok(record)
        };
        let record = tokio::select! {
            record = concluded => record?,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted?;
                screen.aside(format_args!(
                    "\nthe execution goes on; show it: forge-bridge dispatches show {id}, \
                     end it: forge-bridge dispatches cancel {id}"
                ))?;
                return Ok(ExitCode::from(INTERRUPTED));
            }
        };
        Ok(
            match record.pointer("/result/status").and_then(Value::as_str) {
                Some("ok") => ExitCode::SUCCESS,
                Some(_) | None => ExitCode::from(FAILED),
            },
        )
    })
}

fn body(arguments: &Arguments) -> anyhow::Result<Value> {
    let mut body = match &arguments.body {
        Some(path) => {
            let file = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            serde_json::from_str::<Map<String, Value>>(&file)
                .with_context(|| format!("{} is not a JSON object", path.display()))?
        }
        None => Map::new(),
    };
    let message = match arguments.message.as_deref() {
        Some("-") => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("cannot read standard input")?;
            Some(text)
        }
        message => message.map(str::to_owned),
    };
    let given = [
        ("message", message.map(Value::from)),
        ("taskId", arguments.task.clone().map(Value::from)),
        ("agentId", arguments.agent.clone().map(Value::from)),
        ("provider", arguments.provider.clone().map(Value::from)),
        ("model", arguments.model.clone().map(Value::from)),
        ("systemPrompt", arguments.system.clone().map(Value::from)),
        ("sessionId", arguments.session.clone().map(Value::from)),
        ("timeoutSeconds", arguments.timeout.map(Value::from)),
        ("callbackUrl", arguments.callback.clone().map(Value::from)),
    ];
    for (name, value) in given {
        if let Some(value) = value {
            body.insert(name.to_owned(), value);
        }
    }
    let missing = [
        (
            "taskId",
            "task_id",
            json!(format!("cli-{:016x}", rand::random::<u64>())),
        ),
        ("agentId", "agent_id", json!("cli")),
        ("callbackUrl", "callback_url", Value::Null),
    ];
    for (name, other_spelling, value) in missing {
        if !body.contains_key(name) && !body.contains_key(other_spelling) {
            body.insert(name.to_owned(), value);
        }
    }
    Ok(Value::Object(body))
}

/// Prints the acceptance line and warnings. A generated task id is not shown: `task` is the caller's own.
fn announce(screen: &Screen, accepted: &Value, task: Option<&str>) -> std::io::Result<()> {
    let again = match accepted["duplicate"].as_bool() {
        Some(true) => ", already known",
        Some(false) | None => "",
    };
    let task = task.map_or_else(String::new, |task| format!(", task {}", harmless(task)));
    screen.aside(format_args!(
        "{} accepted for {}{task}{again}",
        text(accepted, "/dispatchId"),
        text(accepted, "/provider"),
    ))?;
    for warning in accepted["warnings"].as_array().into_iter().flatten() {
        let word = screen.paint_aside(Tone::Strong, "warning:");
        screen.aside(format_args!("{word} {}", text(warning, "")))?;
    }
    Ok(())
}

fn events(client: &Client, id: &str) -> Events {
    let path = ["api", "v2", "dispatch", id, "events"];
    let query = Query {
        path: path.map(str::to_owned).to_vec(),
        filter: Vec::new(),
        after: None,
    };
    Events::new(client.clone(), query)
}

async fn wait(client: &Client, id: &str) -> anyhow::Result<()> {
    let mut events = events(client, id);
    while events.next().await?.is_some() {}
    Ok(())
}

async fn record(client: &Client, id: &str) -> anyhow::Result<Value> {
    let path = ["api", "v2", "dispatch", id];
    Ok(client.get(Target::path(&path)).await?)
}

/// Prints events until the dispatch finishes; returns the streamed text.
async fn follow(client: &Client, screen: &Screen, id: &str) -> anyhow::Result<String> {
    let mut events = events(client, id);
    let (mut streamed, mut progress, mut state) = (String::new(), screen.progress(), State::new());
    let mut beat = interval(BEAT);
    loop {
        let event = {
            let mut next = std::pin::pin!(events.next());
            loop {
                tokio::select! {
                    event = &mut next => break event?,
                    _ = beat.tick() => progress.show(&state, &streamed)?,
                }
            }
        };
        let Some(event) = event else { break };
        if text(&event, "/type") == "assistant.text" {
            if let Some(delta) = event.pointer("/data/delta").and_then(Value::as_str) {
                progress.clear()?;
                screen.piece(delta)?;
                streamed.push_str(delta);
            }
            continue;
        }
        if let Some((tone, note)) = state.take(&event) {
            progress.clear()?;
            end_line(screen, &streamed)?;
            screen.aside(screen.paint_aside(tone, harmless(&note)))?;
        }
    }
    progress.clear()?;
    Ok(streamed)
}

/// Progress of a dispatch, derived from its events.
struct State {
    begun: Instant,
    doing: String,
    tokens: Option<u64>,
}

impl State {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            doing: "accepted".to_owned(),
            tokens: None,
        }
    }

    /// Applies an event; returns the line to print permanently, if any.
    fn take(&mut self, event: &Value) -> Option<(Tone, String)> {
        let name = || text(event, "/data/name");
        let (tone, note) = match event["type"].as_str()? {
            "execution.queued" => {
                self.doing = "queued".to_owned();
                return None;
            }
            "execution.started" => (
                Tone::Quiet,
                format!("started, attempt {}", text(event, "/attempt")),
            ),
            "execution.retrying" => (Tone::Bad, "will be retried".to_owned()),
            "model.retrying" => (Tone::Bad, tail::model_retrying(&event["data"])),
            "assistant.retracted" => (Tone::Bad, tail::retracted(&event["data"])),
            "tool.invoked" => (Tone::Name, format!("tool {}", name())),
            "tool.completed" if event["data"]["isError"] == true => {
                (Tone::Bad, format!("tool {} failed", name()))
            }
            "tool.completed" => (Tone::Name, format!("tool {} done", name())),
            "exec.progress" => (Tone::Quiet, format!("progress {}", text(event, "/data"))),
            "usage" => {
                let count = |member: &str| event["data"][member].as_u64();
                let sum = [count("inputTokens"), count("outputTokens")];
                self.tokens = sum.into_iter().flatten().reduce(|one, other| one + other);
                return None;
            }
            _ => return None,
        };
        self.doing.clone_from(&note);
        Some((tone, note))
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doing = tail::shortened(&harmless(&self.doing), LONGEST_DOING);
        write!(f, "{doing}, {} s", self.begun.elapsed().as_secs())?;
        match self.tokens {
            Some(tokens) => write!(f, ", {tokens} tokens"),
            None => Ok(()),
        }
    }
}

fn end_line(screen: &Screen, streamed: &str) -> std::io::Result<()> {
    match streamed.is_empty() || streamed.ends_with('\n') {
        true => Ok(()),
        false => screen.piece("\n"),
    }
}

fn conclude(screen: &Screen, record: &Value, streamed: &str) -> std::io::Result<()> {
    let result = &record["result"];
    end_line(screen, streamed)?;
    if streamed.is_empty() {
        let structured = Some(&result["structuredOutput"]).filter(|value| !value.is_null());
        match (structured, result["output"].as_str()) {
            (Some(structured), _) => screen.value(structured)?,
            (None, Some(output)) => screen.piece(&format!("{output}\n"))?,
            (None, None) => {}
        }
    }
    let duration = text(result, "/durationMs");
    if result["status"] == "ok" {
        let ok = screen.paint_aside(Tone::Good, "ok");
        let cost = match result["costUsd"].as_f64() {
            Some(cost) => format!(", {} USD", tail::rounded(cost)),
            None => String::new(),
        };
        screen.aside(format_args!("{ok} in {duration} ms{cost}"))
    } else {
        let code = screen.paint_aside(Tone::Bad, text(result, "/errorCode"));
        screen.aside(format_args!(
            "{code} after {duration} ms: {}",
            harmless(&text(result, "/error"))
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_told_once_and_the_rest_moves_the_state() {
        let mut state = State::new();
        for (event, note, doing) in [
            (json!({"type": "execution.queued"}), None, "queued, 0 s"),
            (
                json!({"type": "execution.started", "attempt": 2}),
                Some("started, attempt 2"),
                "started, attempt 2, 0 s",
            ),
            (
                json!({"type": "usage", "data": {"inputTokens": 3, "outputTokens": 4}}),
                None,
                "started, attempt 2, 0 s, 7 tokens",
            ),
            (
                json!({"type": "assistant.retracted", "data": {"messageId": "m-1"}}),
                Some("the text of m-1 is withdrawn"),
                "the text of m-1 is withdrawn, 0 s, 7 tokens",
            ),
            (
                json!({"type": "model.retrying", "data": {"reason": "overloaded", "delayMs": 1500}}),
                Some("the model is asked again in 1.5 s: overloaded"),
                "the model is asked again in 1.5 s: overloaded, 0 s, 7 tokens",
            ),
            (
                json!({"type": "tool.completed", "data": {"name": "sh", "isError": true}}),
                Some("tool sh failed"),
                "tool sh failed, 0 s, 7 tokens",
            ),
            (
                json!({"type": "unknown.kind"}),
                None,
                "tool sh failed, 0 s, 7 tokens",
            ),
        ] {
            let told = state.take(&event).map(|(_, note)| note);
            assert_eq!(told.as_deref(), note, "{event}");
            state.begun = Instant::now();
            assert_eq!(state.to_string(), doing);
        }
    }
}
