//! `forge-bridge dispatch`: posts one and follows it to its end. The answer's text goes to standard
//! output as it comes, everything about it to standard error.

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
use super::{Context, FAILED, block_on, tail};

/// How often the line that says how it goes is written anew.
const BEAT: Duration = Duration::from_millis(500);
const LONGEST_DOING: usize = 60;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// What to do; `-` reads it from standard input
    #[arg(required_unless_present = "body")]
    message: Option<String>,
    /// A JSON file with the whole dispatch; the options below go before what it says
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,
    /// Makes the dispatch known again; one is made up when absent
    #[arg(long)]
    task: Option<String>,
    #[arg(long)]
    agent: Option<String>,
    /// The adapter; else the bridge chooses
    #[arg(long)]
    provider: Option<String>,
    #[arg(long)]
    model: Option<String>,
    /// The system prompt
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Go on with this conversation
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Seconds of one attempt
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Where the result is sent; nowhere when absent
    #[arg(long, value_name = "URL")]
    callback: Option<String>,
    /// Return when it is accepted
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
            .context("the answer names no dispatch; is it a forge-bridge?")?;
        let record = match context.global.json {
            true => {
                wait(&client, id).await?;
                let record = record(&client, id).await?;
                screen.value(&record)?;
                record
            }
            false => {
                announce(&screen, &accepted, arguments.task.as_deref())?;
                let streamed = follow(&client, &screen, id).await?;
                let record = record(&client, id).await?;
                conclude(&screen, &record, &streamed)?;
                record
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

/// `task` is as the caller named it: one that was made up says nothing.
fn announce(screen: &Screen, accepted: &Value, task: Option<&str>) -> std::io::Result<()> {
    let again = match accepted["duplicate"].as_bool() {
        Some(true) => ", known already",
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

/// Shows what happens; the text that was streamed.
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

/// Where a dispatch is, as far as its events have told.
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

    /// What of it is worth a line that stays.
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
            "execution.retrying" => (Tone::Bad, "will be tried again".to_owned()),
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
                json!({"type": "tool.completed", "data": {"name": "sh", "isError": true}}),
                Some("tool sh failed"),
                "tool sh failed, 0 s, 7 tokens",
            ),
            (
                json!({"type": "somebody.else"}),
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
