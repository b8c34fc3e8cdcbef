//! Hooks of Claude Code: reads the JSON of a hook from standard input, reports the usage since the last hook and the hook
//! itself, and answers with a block where the agent blocks. Fails open: whatever is wrong here, the exit code is 0 and
//! standard output is empty.

use std::io::{self, BufReader, IsTerminal as _, Read as _};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{Context, Environment, block_on, screen};
use super::agent::{Agent, Error, Session, Start, now};
use super::emit::{Fields, record};
use super::transcript::{Message, Transcript};

/// Adapter of hooks that name none.
const CLAUDE_CODE: &str = "claude-code-forg";
pub(super) const EVENTS: [&str; 7] = [
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "PreCompact",
    "Stop",
    "SessionEnd",
];
/// Limit of standard input, of which three fields are kept.
const INPUT_BYTES: u64 = 256 * 1024 * 1024;
const INPUT_TIME: Duration = Duration::from_secs(2);

/// Longest wait for a message, which is written within some milliseconds.
const WRITE_TIME: Duration = Duration::from_millis(500);
const WRITE_POLL: Duration = Duration::from_millis(5);

/// Fields of a hook's JSON. It has content as well, which is skipped.
#[derive(Debug, Default, Deserialize)]
struct Input {
    session_id: String,
    transcript_path: Option<PathBuf>,
    tool_name: Option<String>,
    tool_use_id: Option<String>,
    /// Subagent that calls the hook.
    agent_id: Option<String>,
    /// Usage since the last hook, of a tool that has it at hand.
    #[serde(default)]
    messages: Vec<Message>,
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
    let adapter = adapter(fields);
    let start = Start {
        adapter,
        user: None,
        own_id: Some(&input.session_id),
    };
    let session = agent.session(environment, &start).await?;
    let transcript = match transcript(environment, event, input).await {
        Ok(transcript) => transcript,
        Err(error) => {
            screen::error(&anyhow::Error::new(error).context("the transcript cannot be read"));
            None
        }
    };
    if let Some(transcript) = &transcript {
        let begins = event == "SessionStart";
        let messages = transcript.unreported(begins);
        let is_logged = report(&agent, &session, fields, messages).await?;
        let noted = match event {
            "SessionEnd" => transcript.forget(),
            _ if is_logged => transcript.note(),
            // The next hook reports them again; the agent drops those that it knows.
            _ => Ok(()),
        };
        if let Err(error) = noted {
            screen::error(&anyhow::Error::new(error).context("the state of forg is not kept"));
        }
    }
    report(&agent, &session, fields, &input.messages).await?;
    let newest = input.messages.last().map(|message| message.model.as_str());
    let model = newest.or(transcript.as_ref().and_then(Transcript::model));
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

/// Transcript with the message that the hook is about: Claude Code writes it a moment after the hook has begun.
async fn transcript(
    environment: &Environment,
    event: &str,
    input: &Input,
) -> io::Result<Option<Transcript>> {
    let Some(path) = &input.transcript_path else {
        return Ok(None);
    };
    // Calls of a subagent are in a file of its own.
    let call = input.tool_use_id.as_deref();
    let call = call.filter(|_| input.agent_id.is_none());
    let end = Instant::now() + WRITE_TIME;
    loop {
        let transcript = Transcript::read(path, environment, &input.session_id, call)?;
        let is_written = match event {
            "Stop" => !transcript.unreported(false).is_empty(),
            _ => transcript.has_call(),
        };
        if is_written || Instant::now() >= end {
            return Ok(Some(transcript));
        }
        tokio::time::sleep(WRITE_POLL).await;
    }
}

/// Sends the usage of messages. False if the bridge could not store some.
async fn report(
    agent: &Agent,
    session: &Session,
    fields: &Fields,
    messages: &[Message],
) -> Result<bool, Error> {
    let mut is_logged = true;
    for message in messages {
        let sent = agent.emit(session, usage(session, fields, message)).await;
        match sent {
            Err(error) if !error.is_final() => return Err(error),
            // A rule is asked by the hook's own record: this answer can be that of a repeat.
            Ok(verdict) => is_logged &= verdict.is_logged,
            Err(_) => {}
        }
    }
    Ok(is_logged)
}

fn adapter(fields: &Fields) -> &str {
    fields.adapter.as_deref().unwrap_or(CLAUDE_CODE)
}

/// Record of one answer of the model. The tokens of the cache are input as well.
fn usage(session: &Session, fields: &Fields, message: &Message) -> Vec<u8> {
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
        ("adapter", json!(adapter(fields))),
        ("ts", now().into()),
        ("session_id", json!(session.id)),
        ("project_id", json!(fields.project)),
        ("model", json!(message.model)),
        ("call_id", json!(message.id)),
        ("tokens_in", json!(tokens_in)),
        ("tokens_out", json!(usage.output_tokens)),
        ("cache_read_tokens", json!(read)),
        ("cache_write_tokens", json!(written)),
        ("cost_usd", json!(message.cost_usd)),
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
