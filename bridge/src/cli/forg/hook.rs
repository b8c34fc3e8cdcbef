//! Hooks of Claude Code: reads the JSON of a hook from standard input, reports the usage since the last hook and the hook
//! itself, and answers with a block where the agent blocks. Fails open: whatever is wrong here, the exit code is 0 and
//! standard output is empty.

use std::io::{self, BufReader, IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{Context, block_on, screen};
use super::agent::{Agent, Error, Session, Start, now};
use super::emit::{Fields, record};
use super::transcript::{Message, Transcript};

/// Adapter of hooks that name none.
pub(super) const CLAUDE_CODE: &str = "claude-code-forg";
/// Limit of standard input, of which three fields are kept.
const INPUT_BYTES: u64 = 256 * 1024 * 1024;
const INPUT_TIME: Duration = Duration::from_secs(2);

/// Fields of a hook's JSON. It has content as well, which is skipped.
#[derive(Debug, Default, Deserialize)]
struct Input {
    session_id: String,
    transcript_path: Option<PathBuf>,
    tool_name: Option<String>,
}

/// True for the name of a hook, also of one that is not known.
pub(super) fn is_event(event: &str) -> bool {
    event.starts_with(|first: char| first.is_ascii_uppercase())
}

pub(super) fn run(context: &Context, event: &str, fields: &Fields) {
    let blocked = input()
        .and_then(|input| block_on(async { Ok(send(context, event, fields, &input).await?) }));
    match blocked {
        Ok(None) => {}
        Ok(Some(message)) => match answer(event, &message) {
            // A closed pipe has no reader for a block.
            Some(answer) => drop(context.screen().value_line(&answer)),
            None => drop(context.screen().aside(message)),
        },
        Err(error) => screen::error(&error),
    }
}

/// Reads until the end of the object, so that an open pipe does not matter.
fn input() -> anyhow::Result<Input> {
    anyhow::ensure!(
        !io::stdin().is_terminal(),
        "a hook's JSON is expected on standard input"
    );
    let (done, input) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(io::stdin().lock().take(INPUT_BYTES));
        let mut reader = serde_json::Deserializer::from_reader(&mut reader);
        // There is no receiver if the time is up.
        let _ = done.send(Input::deserialize(&mut reader));
    });
    let input = input.recv_timeout(INPUT_TIME);
    let input = input.context("no hook's JSON came on standard input")?;
    input.context("standard input is not the JSON of a hook")
}

/// Reports usage and hook; the message of a block.
async fn send(
    context: &Context,
    event: &str,
    fields: &Fields,
    input: &Input,
) -> Result<Option<String>, Error> {
    let environment = &context.environment;
    let agent = Agent::new(environment)?;
    let adapter = fields.adapter.as_deref().unwrap_or(CLAUDE_CODE);
    let start = Start {
        adapter,
        user: None,
        own_id: Some(&input.session_id),
    };
    let session = agent.session(environment, &start).await?;
    let path = input.transcript_path.as_ref();
    let transcript = path.map(|path| Transcript::read(path, environment, &input.session_id));
    let transcript = match transcript.transpose() {
        Ok(transcript) => transcript,
        Err(error) => {
            screen::error(&anyhow::Error::new(error).context("the transcript cannot be read"));
            None
        }
    };
    if let Some(transcript) = &transcript {
        let begins = event == "SessionStart";
        for message in transcript.unreported(begins) {
            let usage = usage(adapter, &session, fields, message);
            match agent.emit(&session, usage).await {
                Err(error) if !error.is_final() => return Err(error),
                // A rule is asked by the hook's own record: this answer can be that of a repeat.
                Ok(_) | Err(_) => {}
            }
        }
        let noted = match event {
            "SessionEnd" => transcript.forget(),
            _ => transcript.note(),
        };
        if let Err(error) = noted {
            screen::error(&anyhow::Error::new(error).context("the state of forg is not kept"));
        }
    }
    let model = transcript.as_ref().and_then(Transcript::model);
    // The agent takes this hook for a call of a model. Its usage is that of the message before it.
    let none = match event {
        "PostToolUse" if model.is_none() => return Ok(None),
        "PostToolUse" => json!(0),
        _ => Value::Null,
    };
    let hook = record([
        ("adapter", json!(adapter)),
        ("ts", now().into()),
        ("hook", event.into()),
        ("session_id", json!(session.id)),
        ("project_id", json!(fields.project)),
        ("tool", json!(input.tool_name)),
        ("model", json!(model)),
        ("tokens_in", none.clone()),
        ("tokens_out", none.clone()),
        ("cost_usd", none),
    ]);
    Ok(agent.emit(&session, hook).await?.blocked)
}

/// Record of one answer of the model. The tokens of the cache are input as well.
fn usage(adapter: &str, session: &Session, fields: &Fields, message: &Message) -> Vec<u8> {
    let usage = message.usage;
    let (read, written) = (
        usage.cache_read_input_tokens,
        usage.cache_creation_input_tokens,
    );
    let tokens_in = usage
        .input_tokens
        .saturating_add(read)
        .saturating_add(written);
    record([
        ("adapter", json!(adapter)),
        ("ts", now().into()),
        ("session_id", json!(session.id)),
        ("project_id", json!(fields.project)),
        ("model", json!(message.model)),
        ("call_id", json!(message.id)),
        ("tokens_in", json!(tokens_in)),
        ("tokens_out", json!(usage.output_tokens)),
        ("cache_read_tokens", json!(read)),
        ("cache_write_tokens", json!(written)),
    ])
}

/// Answer that ends a run of Claude Code; `None` for hooks that have none. An exit code of 2 would make the agent go on
/// at `Stop`, and ask the model again at `PreToolUse`.
fn answer(event: &str, message: &str) -> Option<Value> {
    match event {
        "PreToolUse" => Some(json!({
            "continue": false, "stopReason": message,
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": message,
            },
        })),
        "UserPromptSubmit" => Some(json!({"decision": "block", "reason": message})),
        "PostToolUse" | "Stop" => Some(json!({"continue": false, "stopReason": message})),
        _ => None,
    }
}
