//! Behaviour of each model name.

use std::fmt::Write;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use forge_adapter_api::request::ToolResult;
use forge_adapter_api::result::ToolCall;
use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, Result, Run, Usage,
};
use serde_json::{Map, Value, json};

use crate::files::{return_attachments, write_file};
use crate::sample::sample;
use crate::{Echo, Sessions, agent, captain};

/// Largest output of `large`: above every limit of the bridge, but affordable on a laptop.
const LARGEST: usize = 1 << 30;
/// Cost of one token.
const USD_PER_TOKEN: f64 = 0.000_01;
/// Delay between the events of `usage`.
const BETWEEN_USAGE: Duration = Duration::from_millis(20);
/// Maximum number of stored turns of a session.
const MOST_TURNS: usize = 1_000;
/// Maximum number of stored sessions; above it all are dropped.
pub(crate) const MOST_SESSIONS: usize = 10_000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Say,
    Slow(Duration),
    Stream(u64),
    Usage(u64),
    Tools(usize),
    Session,
    Run,
    Retract,
    Structured,
    Attachments,
    File,
    Fail(String),
    Busy(u64),
    Panic,
    Hang,
    Large(usize),
    Crash,
}

impl Mode {
    /// Parses a model name. Unknown names are `ok`, so that requests for other runtimes work too.
    pub(crate) fn of(model: Option<&str>) -> Result<Self> {
        let model = model.unwrap_or("ok");
        let (name, argument) = match model.split_once(':') {
            Some((name, argument)) => (name, Some(argument)),
            None => (model, None),
        };
        let number = |default: u64| match argument {
            None => Ok(default),
            Some(text) => text.parse::<u64>().map_err(|_| {
                let text = format!("model {model:?}: a whole number must follow the colon");
                AdapterError::new("invalid_request", text)
            }),
        };
        Ok(match name {
            "slow" => Self::Slow(Duration::from_millis(number(1_000)?)),
            "stream" => Self::Stream(number(5)?),
            "usage" => Self::Usage(number(3)?.max(1)),
            "tools" => Self::Tools(usize::try_from(number(1)?).unwrap_or(usize::MAX)),
            "session" => Self::Session,
            "run" => Self::Run,
            "retract" => Self::Retract,
            "structured" => Self::Structured,
            "attachments" => Self::Attachments,
            "file" => Self::File,
            "fail" => Self::Fail(argument.unwrap_or("echo_failed").to_owned()),
            "busy" => Self::Busy(number(1_000)?),
            "panic" => Self::Panic,
            "hang" => Self::Hang,
            "large" => {
                let bytes = usize::try_from(number(1 << 20)?).unwrap_or(usize::MAX);
                Self::Large(bytes.min(LARGEST))
            }
            "crash" => Self::Crash,
            _ => Self::Say,
        })
    }
}

/// Appends the execution's id to the journal, which shows the executions that began even after the process
/// has died. Called once per execution, not per round of tools.
pub(crate) fn note(journal: &Path, request: &ExecutionRequest) -> Result<()> {
    let line = format!("{}\n", request.execution_id);
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(journal);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .map_err(|error| {
            let text = format!("journal {}: {error}", journal.display());
            AdapterError::new("journal_failed", text)
        })
}

impl Echo {
    pub(crate) async fn run(
        &self,
        mode: Mode,
        request: Box<ExecutionRequest>,
        events: &Events,
        run: &Run,
    ) -> Result<ExecutionResult> {
        let usage = counted(&request.message);
        let model = request.model.clone();
        let result = match mode {
            Mode::Say => say(&request, events).await,
            Mode::Slow(time) => slow(&request, time, run).await,
            Mode::Stream(pieces) => stream(&request, pieces, events).await,
            Mode::Usage(steps) => return Ok(spend(&request, steps, events).await),
            Mode::Tools(rounds) => self.call_tools(&request, rounds),
            Mode::Session => self.take_turn(&request, events).await,
            Mode::Run => self.take_part(&request, events, run).await?,
            Mode::Retract => retract(&request, events).await,
            Mode::Structured => structured(&request),
            Mode::Attachments => return_attachments(&request.attachments)?,
            Mode::File => write_file(&request)?,
            Mode::Fail(code) => ExecutionResult::error(code, "echo was asked to fail"),
            Mode::Busy(wait_ms) => busy(wait_ms, events).await,
            Mode::Panic => panic!("echo was asked to panic"),
            Mode::Hang => std::future::pending().await,
            Mode::Large(bytes) => ExecutionResult::ok("x".repeat(bytes)),
            Mode::Crash => std::process::abort(),
        };
        Ok(ExecutionResult {
            usage,
            cost_usd: usage.total_tokens.map(cost),
            model,
            model_provider: Some("echo".to_owned()),
            ..result
        })
    }

    async fn take_turn(&self, request: &ExecutionRequest, events: &Events) -> ExecutionResult {
        let (session_id, turns) = {
            let mut sessions = self.sessions();
            let session_id = sessions.id_for(request);
            if sessions.turns.len() >= MOST_SESSIONS && !sessions.turns.contains_key(&session_id) {
                sessions.turns.clear();
            }
            let turns = sessions.turns.entry(session_id.clone()).or_default();
            if turns.len() >= MOST_TURNS {
                turns.remove(0);
            }
            turns.push(request.message.clone());
            (session_id, turns.join("\n"))
        };
        let updated = json!({"sessionId": session_id});
        events
            .send(AdapterEvent::new("session.updated").with(updated))
            .await;
        ExecutionResult {
            session_id: Some(session_id),
            ..ExecutionResult::ok(turns)
        }
    }

    /// Takes part in a run, as its Captain or as an agent. Ids of sessions are unique over restarts.
    async fn take_part(
        &self,
        request: &ExecutionRequest,
        events: &Events,
        run: &Run,
    ) -> Result<ExecutionResult> {
        let new = || format!("echo-{}", request.execution_id.replace('/', "-"));
        let session_id = request.session_id.clone().unwrap_or_else(new);
        if captain::is_captain(request) {
            return Ok(captain::turn(request, session_id, events).await);
        }
        let messages = run.messages(&request.execution_id);
        let settle = self.settings.settle;
        agent::obey(
            request,
            session_id,
            &self.suspended,
            settle,
            events,
            messages,
        )
        .await
    }

    /// Hands calls back until `rounds` rounds are answered, then returns the last answers.
    fn call_tools(&self, request: &ExecutionRequest, rounds: usize) -> ExecutionResult {
        let session_id = Some(self.sessions().id_for(request));
        let answered = match request.tool_results.as_slice() {
            [] => 0,
            _ => request.turns.len().max(1),
        };
        if answered >= rounds {
            return ExecutionResult {
                session_id,
                ..ExecutionResult::ok(texts(&request.tool_results))
            };
        }
        ExecutionResult {
            session_id,
            tool_calls: calls(request, answered),
            ..ExecutionResult::ok(request.message.as_str())
        }
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    /// The session id of the request, or a new one.
    fn id_for(&mut self, request: &ExecutionRequest) -> String {
        request.session_id.clone().unwrap_or_else(|| {
            self.made += 1;
            format!("echo-{}", self.made)
        })
    }
}

async fn say(request: &ExecutionRequest, events: &Events) -> ExecutionResult {
    events
        .send(AdapterEvent::text(request.message.as_str()))
        .await;
    ExecutionResult::ok(request.message.as_str())
}

/// Waits, until a message steers it.
async fn slow(request: &ExecutionRequest, time: Duration, run: &Run) -> ExecutionResult {
    let mut messages = run.messages(&request.execution_id);
    let waited = tokio::time::timeout(time, messages.next()).await;
    ExecutionResult::ok(match waited {
        Ok(message) => format!("{}\nsteered: {message}", request.message),
        Err(_elapsed) => request.message.clone(),
    })
}

/// Begins an answer, withdraws it, and answers again.
async fn retract(request: &ExecutionRequest, events: &Events) -> ExecutionResult {
    let (output, text) = (request.message.as_str(), "assistant.text");
    for (kind, data) in [
        (text, json!({"delta": "withdrawn", "messageId": "m-1"})),
        ("assistant.retracted", json!({"messageId": "m-1"})),
        (text, json!({"delta": output, "messageId": "m-2"})),
    ] {
        events.send(AdapterEvent::new(kind).with(data)).await;
    }
    ExecutionResult::ok(output)
}

async fn stream(request: &ExecutionRequest, pieces: u64, events: &Events) -> ExecutionResult {
    let mut output = String::new();
    for piece in 1..=pieces {
        let delta = format!("{} {piece}\n", request.message);
        let _ = output.write_str(&delta);
        events.send(AdapterEvent::text(delta)).await;
    }
    ExecutionResult::ok(output)
}

/// Waits like an adapter whose model refuses requests, then gives up.
async fn busy(wait_ms: u64, events: &Events) -> ExecutionResult {
    let retrying = json!({"reason": "rate_limited", "delayMs": wait_ms});
    events
        .send(AdapterEvent::new("model.retrying").with(retrying))
        .await;
    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
    ExecutionResult {
        retryable: Some(true),
        retry_after_ms: Some(wait_ms),
        ..ExecutionResult::error("rate_limited", "echo was asked to be busy")
    }
}

async fn spend(request: &ExecutionRequest, steps: u64, events: &Events) -> ExecutionResult {
    let each = counted(&request.message);
    let mut usage = Usage::default();
    for step in 1..=steps {
        usage = Usage {
            input_tokens: each.input_tokens.map(|n| n * step),
            output_tokens: each.output_tokens.map(|n| n * step),
            total_tokens: each.total_tokens.map(|n| n * step),
            ..Usage::default()
        };
        let total = usage.total_tokens.map(cost);
        events.send(AdapterEvent::usage(&usage, total)).await;
        // Gives the bridge time to end a run that exceeds its budget.
        tokio::time::sleep(BETWEEN_USAGE).await;
    }
    ExecutionResult {
        usage,
        cost_usd: usage.total_tokens.map(cost),
        model: request.model.clone(),
        model_provider: Some("echo".to_owned()),
        ..ExecutionResult::ok(request.message.as_str())
    }
}

/// The tool calls to hand back. A message that is a JSON object maps tool names to arguments; otherwise
/// each offered tool is called with arguments sampled from its schema.
fn calls(request: &ExecutionRequest, round: usize) -> Vec<ToolCall> {
    let said = serde_json::from_str::<Map<String, Value>>(&request.message);
    let wanted: Vec<(String, Value)> = match said {
        Ok(members) => members.into_iter().collect(),
        Err(_) if request.tools.is_empty() => {
            vec![("echo".to_owned(), json!({"text": request.message}))]
        }
        Err(_) => {
            let offered = request.tools.iter();
            offered
                .map(|tool| (tool.name.clone(), sample(&tool.input_schema)))
                .collect()
        }
    };
    let numbered = wanted.into_iter().enumerate();
    numbered
        .map(|(at, (name, input))| ToolCall {
            tool_call_id: format!("call-{}-{}", round + 1, at + 1),
            name,
            input,
        })
        .collect()
}

/// A line for each result; failed ones begin with `failed: `.
fn texts(results: &[ToolResult]) -> String {
    let lines = results.iter().map(|result| {
        let failed = if result.is_error { "failed: " } else { "" };
        format!("{failed}{}", text_of(result))
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The output of a tool as text.
pub(crate) fn text_of(result: &ToolResult) -> String {
    let text = result.output.as_str().map(str::to_owned);
    text.unwrap_or_else(|| result.output.to_string())
}

fn structured(request: &ExecutionRequest) -> ExecutionResult {
    let parsed = serde_json::from_str::<Value>(&request.message);
    let value = match (parsed, &request.output_schema) {
        (Ok(value), _) => value,
        (Err(_), Some(schema)) => sample(schema),
        (Err(_), None) => json!({"text": request.message}),
    };
    ExecutionResult {
        output: Some(value.to_string()),
        structured_output: Some(value),
        ..ExecutionResult::default()
    }
}

/// Usage of a message: each word is one input token and one output token.
fn counted(message: &str) -> Usage {
    let words = u64::try_from(message.split_ascii_whitespace().count()).unwrap_or(u64::MAX);
    Usage {
        input_tokens: Some(words),
        output_tokens: Some(words),
        total_tokens: Some(words.saturating_mul(2)),
        ..Usage::default()
    }
}

#[expect(clippy::cast_precision_loss, reason = "no message has 2^53 words")]
fn cost(tokens: u64) -> f64 {
    tokens as f64 * USD_PER_TOKEN
}
