//! Converts the program's lines to events and accumulates what the result needs. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use forge_adapter_api::{AdapterEvent, foreign_json};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::events::{block_id, blocks, event, progress, said, text_of};
use crate::meter::{Meter, ModelUsage};

/// The last line of a turn.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ResultLine {
    pub(crate) subtype: String,
    pub(crate) is_error: bool,
    pub(crate) result: Option<String>,
    pub(crate) errors: Vec<String>,
    pub(crate) api_error_status: Option<u16>,
    pub(crate) terminal_reason: Option<String>,
    pub(crate) structured_output: Option<Value>,
    /// Cumulative over the session.
    #[serde(deserialize_with = "foreign_json::read_amount")]
    pub(crate) total_cost_usd: Option<f64>,
    /// Usage of this turn, main thread only.
    pub(crate) usage: Value,
    /// Usage of this turn, all models.
    pub(crate) model_usage_since_last_result: Option<BTreeMap<String, ModelUsage>>,
}

#[derive(Default)]
pub(crate) struct Transcript {
    pub(crate) meter: Meter,
    pub(crate) session_id: Option<String>,
    pub(crate) model: Option<String>,
    /// Result of the last turn that ended.
    pub(crate) result: Option<ResultLine>,
    /// Structured output of the latest turn that had one.
    pub(crate) structured_output: Option<Value>,
    /// Text of the main thread's latest message, even if it was cut off.
    pub(crate) last_text: String,
    /// Id of the message in `last_text`.
    last_message: Option<String>,
    /// The main thread's message whose text was streamed; its whole line is not emitted again.
    streamed: Option<String>,
    /// Blocks of `streamed` with emitted text, by index.
    said: BTreeSet<u64>,
    /// True until the end of the streamed message.
    is_open: bool,
    /// Files that the tool `Write` wrote.
    pub(crate) written: BTreeSet<PathBuf>,
    /// Files that running calls of it write, by id.
    writing: HashMap<String, PathBuf>,
    /// Names of the running calls, by id.
    calls: HashMap<String, String>,
    /// Ids of calls that the caller has to answer.
    handed_over: HashSet<String>,
    activity: Activity,
    background_tasks: usize,
    /// Messages that the run was steered with and that no turn has answered yet, by id. True once the program has
    /// reported one; older versions report none.
    unanswered: HashMap<String, bool>,
}

/// Activity state reported by the program.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Activity {
    /// Not reported yet; older versions never report it.
    #[default]
    Unknown,
    Running,
    Idle,
}

impl Transcript {
    /// Returns true if a turn has ended and none will follow.
    pub(crate) fn is_over(&self) -> bool {
        self.result.is_some()
            && self.unanswered.is_empty()
            && match self.activity {
                Activity::Idle => true,
                Activity::Unknown => self.background_tasks == 0,
                Activity::Running => false,
            }
    }

    /// Takes note of a message that the run was steered with.
    pub(crate) fn steered(&mut self, id: String) {
        self.unanswered.insert(id, false);
    }

    /// Returns true if a turn has ended and no further work is known, although the program has not reported to be
    /// idle.
    pub(crate) fn may_be_over(&self) -> bool {
        let is_answering = self.unanswered.values().any(|reported| *reported);
        self.result.is_some() && self.background_tasks == 0 && !is_answering
    }

    /// Events of one line. Calls handed to the caller are left out, because the bridge emits them itself.
    pub(crate) fn line(
        &mut self,
        line: &Value,
        is_handed_over: impl Fn(&str) -> bool,
    ) -> Vec<AdapterEvent> {
        let parent = line["parent_tool_use_id"].as_str();
        match line["type"].as_str().unwrap_or_default() {
            "system" => self.system(line),
            "stream_event" => self.stream(line, parent),
            "assistant" => self.assistant(line, parent, &is_handed_over),
            "user" => self.user(line, parent),
            "result" => self.result(line),
            "command_lifecycle" => {
                let id = line["command_uuid"].as_str().unwrap_or_default();
                match line["state"].as_str().unwrap_or_default() {
                    "completed" | "cancelled" => drop(self.unanswered.remove(id)),
                    // `queued` or `started`: its turn can begin after the result of another one.
                    _ => drop(self.unanswered.get_mut(id).map(|reported| *reported = true)),
                }
                Vec::new()
            }
            "rate_limit_event" => vec![progress("rate_limit", line, &["rate_limit_info"], None)],
            // Lines of later versions, and those not related to the task.
            _ => Vec::new(),
        }
    }

    fn system(&mut self, line: &Value) -> Vec<AdapterEvent> {
        let subtype = line["subtype"].as_str().unwrap_or_default();
        match subtype {
            "init" => self.init(line),
            "session_state_changed" => {
                self.activity = match line["state"].as_str() {
                    Some("idle") => Activity::Idle,
                    Some(_) | None => Activity::Running,
                };
                Vec::new()
            }
            "background_tasks_changed" => {
                self.background_tasks = line["tasks"].as_array().map_or(0, Vec::len);
                Vec::new()
            }
            "api_retry" => vec![progress(
                "api_retry",
                line,
                &[
                    "attempt",
                    "max_retries",
                    "retry_delay_ms",
                    "error_status",
                    "error",
                ],
                None,
            )],
            "task_started" | "task_progress" | "task_notification" => vec![progress(
                subtype,
                line,
                &[
                    "task_id",
                    "description",
                    "subagent_type",
                    "status",
                    "summary",
                    "last_tool_name",
                ],
                line["tool_use_id"].as_str(),
            )],
            "compact_boundary" => vec![progress(subtype, line, &["compact_metadata"], None)],
            "permission_denied" => vec![progress(
                subtype,
                line,
                &["tool_name", "tool_use_id", "reason"],
                None,
            )],
            _ => Vec::new(),
        }
    }

    /// Handles the `init` line, which is repeated at every turn.
    fn init(&mut self, line: &Value) -> Vec<AdapterEvent> {
        if let Some(model) = line["model"].as_str() {
            self.model = Some(model.to_owned());
        }
        let session = line["session_id"].as_str().map(str::to_owned);
        if session.is_none() || session == self.session_id {
            return Vec::new();
        }
        self.session_id = session;
        vec![AdapterEvent::new("session.updated").with(json!({
            "sessionId": self.session_id,
            "model": self.model,
            "runtimeVersion": line["claude_code_version"],
        }))]
    }

    fn stream(&mut self, line: &Value, parent: Option<&str>) -> Vec<AdapterEvent> {
        let event = &line["event"];
        match event["type"].as_str().unwrap_or_default() {
            "message_start" if parent.is_none() => {
                // A message that has not ended is tried again; older programs do not report it.
                let retracted = self.retract(0);
                self.meter.call_begins(&event["message"]["usage"]);
                self.streamed = event["message"]["id"].as_str().map(str::to_owned);
                self.said.clear();
                self.is_open = true;
                retracted
            }
            "message_stop" if parent.is_none() => {
                let from = line["abandoned_blocks"]["from_block_index"].as_u64();
                let retracted = from.map(|from| self.retract(from));
                self.is_open = false;
                retracted.unwrap_or_default()
            }
            "message_delta" if parent.is_none() => {
                self.meter.call_goes_on(&event["usage"]);
                vec![AdapterEvent::usage(
                    &self.meter.usage(),
                    self.meter.cost_usd(),
                )]
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let (kind, text) = match (delta["text"].as_str(), delta["thinking"].as_str()) {
                    (Some(text), _) => ("assistant.text", text),
                    (None, Some(thinking)) => ("assistant.thinking", thinking),
                    (None, None) => return Vec::new(),
                };
                if text.is_empty() {
                    return Vec::new();
                }
                let block = event["index"].as_u64().unwrap_or_default();
                let id = self.streamed.as_deref().filter(|_| parent.is_none());
                let id = id.map(|id| block_id(id, block));
                if id.is_some() {
                    self.said.insert(block);
                }
                vec![said(kind, text, id.as_deref(), parent)]
            }
            _ => Vec::new(),
        }
    }

    /// Withdraws the emitted blocks of an unfinished message from this index on.
    fn retract(&mut self, from: u64) -> Vec<AdapterEvent> {
        let Some(message) = self.streamed.as_deref().filter(|_| self.is_open) else {
            return Vec::new();
        };
        let withdrawn = self.said.split_off(&from);
        let ids = withdrawn.iter().map(|block| block_id(message, *block));
        ids.map(|id| event("assistant.retracted", json!({ "messageId": id }), None))
            .collect()
    }

    fn assistant(
        &mut self,
        line: &Value,
        parent: Option<&str>,
        is_handed_over: &impl Fn(&str) -> bool,
    ) -> Vec<AdapterEvent> {
        let message = &line["message"];
        let id = message["id"].as_str();
        let streamed = parent.is_none() && id.is_some() && id == self.streamed.as_deref();
        let mut events = Vec::new();
        for block in blocks(&message["content"]) {
            match block["type"].as_str().unwrap_or_default() {
                "text" => {
                    let text = block["text"].as_str().unwrap_or_default();
                    if parent.is_none() {
                        self.remember(id, text);
                    }
                    if !streamed && !text.is_empty() {
                        events.push(said("assistant.text", text, id, parent));
                    }
                }
                "thinking" if !streamed => {
                    let thinking = block["thinking"].as_str().unwrap_or_default();
                    events.push(said("assistant.thinking", thinking, id, parent));
                }
                kind @ ("tool_use" | "server_tool_use") => {
                    let call = block["id"].as_str().unwrap_or_default();
                    let tool = block["name"].as_str().unwrap_or_default();
                    // The service runs its own tools, whatever their names.
                    if kind == "tool_use" && is_handed_over(tool) {
                        self.handed_over.insert(call.to_owned());
                        continue;
                    }
                    if let ("Write", Some(file)) = (tool, block["input"]["file_path"].as_str()) {
                        self.writing.insert(call.to_owned(), file.into());
                    }
                    self.calls.insert(call.to_owned(), tool.to_owned());
                    events.push(event(
                        "tool.invoked",
                        json!({"toolCallId": call, "name": tool, "input": block["input"]}),
                        parent,
                    ));
                }
                // Results of the service's own tools, such as `web_search_tool_result`.
                kind if kind.ends_with("_tool_result") => {
                    let failed = block["content"]["error_code"].as_str();
                    events.push(self.completed(block, failed.is_some(), parent));
                }
                _ => {}
            }
        }
        events
    }

    /// Appends to the latest text. A message can arrive as several lines, one per block.
    fn remember(&mut self, message: Option<&str>, text: &str) {
        if message.is_none() || message != self.last_message.as_deref() {
            self.last_message = message.map(str::to_owned);
            self.last_text.clear();
        }
        self.last_text.push_str(text);
    }

    fn user(&mut self, line: &Value, parent: Option<&str>) -> Vec<AdapterEvent> {
        let mut events = Vec::new();
        for block in blocks(&line["message"]["content"]) {
            match block["type"].as_str().unwrap_or_default() {
                "tool_result" => {
                    let call = block["tool_use_id"].as_str().unwrap_or_default();
                    if self.handed_over.remove(call) {
                        continue;
                    }
                    let is_error = block["is_error"] == true;
                    events.push(self.completed(block, is_error, parent));
                }
                // Text sent to an agent by the program or another agent; completes the conversation.
                "text" => events.push(event("user.text", json!({"text": block["text"]}), parent)),
                _ => {}
            }
        }
        events
    }

    fn completed(&mut self, block: &Value, is_error: bool, parent: Option<&str>) -> AdapterEvent {
        let call = block["tool_use_id"].as_str().unwrap_or_default();
        let file = self.writing.remove(call).filter(|_| !is_error);
        self.written.extend(file);
        let data = json!({
            "toolCallId": call,
            "name": self.calls.remove(call),
            "output": text_of(&block["content"]),
            "isError": is_error,
        });
        event("tool.completed", data, parent)
    }

    fn result(&mut self, line: &Value) -> Vec<AdapterEvent> {
        let mut members = line.clone();
        if let Value::Object(members) = &mut members {
            members.retain(|_, member| !member.is_null());
        }
        let result: ResultLine = match serde_json::from_value(members) {
            Ok(result) => result,
            // The turn has ended, even if its result cannot be parsed completely.
            Err(error) => ResultLine {
                is_error: true,
                errors: vec![format!("the program's result could not be read: {error}")],
                result: line["result"].as_str().map(str::to_owned),
                ..ResultLine::default()
            },
        };
        self.meter.turn_ends(&result);
        if result.structured_output.is_some() {
            self.structured_output.clone_from(&result.structured_output);
        }
        self.result = Some(result);
        vec![AdapterEvent::usage(
            &self.meter.usage(),
            self.meter.cost_usd(),
        )]
    }
}

#[cfg(test)]
mod tests;
