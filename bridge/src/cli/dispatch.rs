//! `forge-bridge dispatch`: posts one and follows it to its end. The answer's text goes to standard
//! output as it comes, everything about it to standard error.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde_json::{Map, Value, json};

use super::client::{Client, Target};
use super::screen::{Screen, Tone, text};
use super::stream::{Events, Query};
use super::{Context, FAILED, block_on};

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
                announce(&screen, &accepted)?;
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
            json!(format!("cli-{}", uuid::Uuid::now_v7().simple())),
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

fn announce(screen: &Screen, accepted: &Value) -> std::io::Result<()> {
    let again = match accepted["duplicate"].as_bool() {
        Some(true) => ", known already",
        Some(false) | None => "",
    };
    screen.aside(format_args!(
        "{} accepted for {}, task {}{again}",
        text(accepted, "/dispatchId"),
        text(accepted, "/provider"),
        text(accepted, "/taskId"),
    ))?;
    for warning in accepted["warnings"].as_array().into_iter().flatten() {
        screen.aside(format_args!("warning: {}", text(warning, "")))?;
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
    let mut streamed = String::new();
    while let Some(event) = events.next().await? {
        let kind = text(&event, "/type");
        if kind == "assistant.text" {
            if let Some(delta) = event.pointer("/data/delta").and_then(Value::as_str) {
                screen.piece(delta)?;
                streamed.push_str(delta);
            }
            continue;
        }
        let note = match kind.as_str() {
            "execution.started" => format!("started, attempt {}", text(&event, "/attempt")),
            "execution.retrying" => "will be tried again".to_owned(),
            "tool.invoked" => format!("tool {}", text(&event, "/data/name")),
            "tool.completed" => format!("tool {} done", text(&event, "/data/name")),
            "exec.progress" => format!("progress {}", text(&event, "/data")),
            _ => continue,
        };
        end_line(screen, &streamed)?;
        screen.aside(note)?;
    }
    Ok(streamed)
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
            (None, Some(output)) => screen.line(output)?,
            (None, None) => {}
        }
    }
    let duration = text(result, "/durationMs");
    if result["status"] == "ok" {
        screen.aside(format_args!("ok in {duration} ms"))
    } else {
        let code = screen.paint(Tone::Strong, text(result, "/errorCode"));
        screen.aside(format_args!(
            "{code} after {duration} ms: {}",
            text(result, "/error")
        ))
    }
}
