//! Model `run` as an agent of a run: follows the orders in its instructions.

use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::time::Duration;

use forge_adapter_api::folder::Folder;
use forge_adapter_api::request::ToolResult;
use forge_adapter_api::result::ToolCall;
use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, Messages, Result,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::conflict;
use crate::files::{failed, workspace};
use crate::order::{Order, Side, instructions, is_conflict};
use crate::run::text_of;
use crate::suspended::Suspended;

/// Time between two looks for a file.
const LOOK: Duration = Duration::from_millis(50);
/// Largest result of a reported call.
const MOST_BYTES: usize = 64 << 20;

/// The instructions of an agent, and how far it is.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Script {
    lines: Vec<String>,
    done: usize,
    output: String,
    /// Calls whose results it has been given.
    #[serde(default)]
    answered: Vec<String>,
    /// Calls without a result.
    #[serde(default)]
    open: Vec<ToolCall>,
    /// Size of the file that the next line appends to, before it does.
    #[serde(default)]
    appends_at: Option<usize>,
}

impl Script {
    fn of(message: &str) -> Self {
        Self {
            lines: instructions(message),
            done: 0,
            output: String::new(),
            answered: Vec::new(),
            open: Vec::new(),
            appends_at: None,
        }
    }
}

enum Step {
    Done,
    Failed(String),
    Called(Vec<ToolCall>),
}

struct Agent<'a> {
    request: &'a ExecutionRequest,
    events: &'a Events,
    script: Script,
    session_id: &'a str,
    suspended: &'a Suspended,
}

/// Follows the instructions in the message, or continues those of the session where they stopped. A message that it is
/// steered with ends it.
pub(crate) async fn obey(
    request: &ExecutionRequest,
    session_id: String,
    suspended: &Suspended,
    settle: Option<Side>,
    events: &Events,
    mut messages: Messages,
) -> Result<ExecutionResult> {
    let script = match request.tool_results.is_empty() {
        true if request.resume => suspended.read(&session_id),
        true => Ok(Script::of(&request.message)),
        false => suspended.read(&session_id),
    };
    let mut agent = Agent {
        request,
        events,
        script: script?,
        session_id: &session_id,
        suspended,
    };
    // From here on an interrupted execution continues.
    agent.keep()?;
    let session = json!({ "sessionId": session_id });
    let session = AdapterEvent::new("session.updated").with(session);
    events.send(session).await;
    if let Some(side) = settle.filter(|_| is_conflict(&request.message)) {
        agent.follow(Order::Resolve(side)).await?;
    }
    for result in &request.tool_results {
        if !agent.script.answered.contains(&result.tool_call_id) {
            agent.script.answered.push(result.tool_call_id.clone());
            agent.say(&note(result)).await;
        }
    }
    agent.script.open.retain(|call| {
        let mut results = request.tool_results.iter();
        !results.any(|result| result.tool_call_id == call.tool_call_id)
    });
    agent.keep()?;
    if !agent.script.open.is_empty() {
        return Ok(agent.called());
    }
    while let Some(line) = agent.script.lines.get(agent.script.done) {
        let Some(order) = Order::of(line)? else {
            agent.script.done += 1;
            continue;
        };
        let step = tokio::select! {
            biased;
            message = messages.next() => {
                agent.say(&format!("steered: {message}")).await;
                break;
            }
            step = agent.follow(order) => step?,
        };
        agent.script.done += 1;
        match step {
            Step::Done => agent.keep()?,
            Step::Failed(code) => {
                return Ok(ExecutionResult {
                    output: Some(agent.script.output),
                    session_id: Some(session_id.clone()),
                    ..ExecutionResult::error(code, "echo was asked to fail")
                });
            }
            Step::Called(calls) => {
                agent.script.open = calls;
                agent.keep()?;
                return Ok(agent.called());
            }
        }
    }
    Ok(ExecutionResult {
        session_id: Some(session_id.clone()),
        ..ExecutionResult::ok(agent.script.output)
    })
}

impl Agent<'_> {
    /// End of an execution that waits for the results of its calls.
    fn called(&self) -> ExecutionResult {
        ExecutionResult {
            tool_calls: self.script.open.clone(),
            session_id: Some(self.session_id.to_owned()),
            ..ExecutionResult::ok(self.script.output.clone())
        }
    }

    fn keep(&self) -> Result<()> {
        self.suspended.keep(self.session_id, &self.script)
    }

    async fn follow(&mut self, order: Order) -> Result<Step> {
        match order {
            Order::Write { path, text } => self.write(&path, format!("{text}\n").as_bytes())?,
            Order::Append { path, text } => {
                let mut content = self.read(&path)?;
                match self.script.appends_at {
                    // It was interrupted in this line.
                    Some(before) => content.truncate(before),
                    None => {
                        self.script.appends_at = Some(content.len());
                        self.keep()?;
                    }
                }
                content.extend_from_slice(text.as_bytes());
                content.push(b'\n');
                self.write(&path, &content)?;
                self.script.appends_at = None;
            }
            Order::Delete(path) => {
                let removed = self.folder()?.remove_below(Path::new(&path));
                // An interrupted execution has removed it already.
                let removed = removed.or_else(|error| match error.kind() {
                    ErrorKind::NotFound => Ok(()),
                    _ => Err(error),
                });
                removed.map_err(|error| failed("delete", &path, &error))?;
            }
            Order::Sleep(time) => tokio::time::sleep(time).await,
            Order::Say(text) => self.say(&text).await,
            Order::Fail(code) => return Ok(Step::Failed(code)),
            Order::FailFirst { attempts, code } if attempt(self.request) <= attempts => {
                return Ok(Step::Failed(code));
            }
            Order::FailFirst { .. } => {}
            Order::Hang => std::future::pending().await,
            Order::Await(path) => {
                while self.folder()?.open_below(Path::new(&path)).is_err() {
                    tokio::time::sleep(LOOK).await;
                }
            }
            Order::Tool { name, bytes } => self.report_call(&name, bytes).await,
            Order::Call { tool, input } if self.is_offered(tool) => {
                let inputs = match input {
                    Value::Array(inputs) => inputs,
                    input => vec![input],
                };
                let calls = inputs.into_iter().zip(1..).map(|(input, number)| ToolCall {
                    tool_call_id: format!("line-{}-{number}", self.script.done + 1),
                    name: tool.to_owned(),
                    input,
                });
                return Ok(Step::Called(calls.collect()));
            }
            Order::Call { tool, .. } => self.say(&format!("{tool} is not offered")).await,
            Order::Resolve(side) => {
                for path in conflict::resolve(&self.folder()?, side)? {
                    self.say(&format!("resolved {path}")).await;
                }
            }
        }
        Ok(Step::Done)
    }

    /// Adds a line to the output, and sends it.
    async fn say(&mut self, line: &str) {
        let line = format!("{line}\n");
        self.script.output.push_str(&line);
        self.events.send(AdapterEvent::text(line)).await;
    }

    /// Reports a call of a tool and its result, a text without line breaks.
    async fn report_call(&self, name: &str, bytes: usize) {
        let id = format!("line-{}", self.script.done + 1);
        let invoked = json!({"toolCallId": id, "name": name, "input": {"bytes": bytes}});
        let output = "x".repeat(bytes.min(MOST_BYTES));
        let completed = json!({"toolCallId": id, "name": name, "output": output, "isError": false});
        for (kind, data) in [("tool.invoked", invoked), ("tool.completed", completed)] {
            self.events.send(AdapterEvent::new(kind).with(data)).await;
        }
    }

    fn is_offered(&self, tool: &str) -> bool {
        self.request
            .tools
            .iter()
            .any(|offered| offered.name == tool)
    }

    fn folder(&self) -> Result<Folder> {
        workspace(self.request)
    }

    fn write(&self, path: &str, content: &[u8]) -> Result<()> {
        let written = self.folder()?.write_below(Path::new(path), content);
        written.map_err(|error| failed("write", path, &error))
    }

    /// Content of a file; empty if there is none.
    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        match self.folder()?.open_below(Path::new(path)) {
            Ok(mut file) => file.read_to_end(&mut content).map(|_| content),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(content),
            Err(error) => Err(error),
        }
        .map_err(|error| failed("read", path, &error))
    }
}

/// A line of output about the answer to a call.
fn note(result: &ToolResult) -> String {
    let failed = if result.is_error { " failed" } else { "" };
    format!("{}{failed}: {}", result.name, text_of(result))
}

/// Number of the attempt of a task: the first in `metadata.run.attemptId`, or that of the dispatch.
fn attempt(request: &ExecutionRequest) -> u32 {
    let metadata = request.metadata.as_ref();
    let attempt = metadata.map(|metadata| &metadata["run"]["attemptId"]);
    let Some(attempt) = attempt.filter(|attempt| !attempt.is_null()) else {
        return request.attempt;
    };
    let text = attempt
        .as_str()
        .map_or_else(|| attempt.to_string(), str::to_owned);
    let is_digit = |c: char| c.is_ascii_digit();
    let from = text.trim_start_matches(|c| !is_digit(c));
    let number = from.split(|c| !is_digit(c)).next();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// An error that says that the session's instructions are not known.
pub(crate) fn not_found(session_id: &str) -> AdapterError {
    let text = format!("session {session_id:?} waits for no tool result");
    AdapterError::new("session_not_found", text)
}
