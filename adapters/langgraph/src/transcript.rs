//! Converts the server's events to the bridge's and accumulates what the result needs. Pure.

use std::collections::{HashMap, HashSet};

use forge_adapter_api::AdapterEvent;
use forge_adapter_api::foreign_json;
use forge_adapter_transport::http::ServerEvent;
use serde_json::{Value, json};

use crate::meter::Meter;
use crate::thread::{State, is_the_models, list, text_of, thoughts_of};

#[derive(Default)]
pub(crate) struct Transcript {
    pub(crate) meter: Meter,
    pub(crate) model: Option<String>,
    pub(crate) model_provider: Option<String>,
    /// Text of the model's latest message, even if it was cut off.
    pub(crate) last_text: String,
    pub(crate) error: Option<RunError>,
    /// Reason why the model stopped before the end of its latest message, as far as it told one.
    pub(crate) cut: Option<Cut>,
    /// Id of the message in `last_text`.
    last_message: Option<String>,
    /// Ids of messages whose text was emitted, without those that a node has returned.
    unfinished: Vec<String>,
    /// Ids of messages from before the run.
    before: HashSet<String>,
    /// The caller's tools; the bridge itself emits events of their calls.
    offered: HashSet<String>,
    /// Names of calls already emitted, by call id.
    calls: HashMap<String, String>,
    /// Ids of calls whose results were already emitted.
    answered: HashSet<String>,
}

/// Premature end of a model's message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    TooLong,
    Blocked,
}

impl Cut {
    /// Reads the reason in the words of OpenAI, Anthropic and Google; `None` for an ordinary end.
    fn named(reason: &str) -> Option<Self> {
        match reason.to_ascii_lowercase().as_str() {
            "length" | "max_tokens" | "max_output_tokens" => Some(Self::TooLong),
            "content_filter" | "refusal" | "safety" | "prohibited_content" | "blocklist" => {
                Some(Self::Blocked)
            }
            _ => None,
        }
    }
}

/// Error of a run as reported by the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunError {
    /// Class name of the exception.
    pub(crate) name: String,
    pub(crate) message: String,
}

/// Event data that is not JSON or does not match the event's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server sent an event {name:?} that cannot be read: {reason}")]
pub(crate) struct Malformed {
    name: String,
    reason: String,
}

impl Transcript {
    pub(crate) fn new(before: HashSet<String>, offered: impl IntoIterator<Item = String>) -> Self {
        Self {
            before,
            offered: offered.into_iter().collect(),
            ..Self::default()
        }
    }

    pub(crate) fn event(&mut self, event: &ServerEvent) -> Result<Vec<AdapterEvent>, Malformed> {
        // The part after `|` names the subgraph.
        let (mode, place) = match event.name.split_once('|') {
            Some((mode, place)) => (mode, Some(place)),
            None => (event.name.as_str(), None),
        };
        let malformed = |reason: String| Malformed {
            name: mode.chars().take(40).collect(),
            reason,
        };
        let data: Value =
            foreign_json::from_str(&event.data).map_err(|error| malformed(error.to_string()))?;
        let mut events = match mode {
            "metadata" => match data["attempt"].as_u64() {
                // The server runs the unfinished nodes again.
                Some(attempt) if attempt > 1 => {
                    let ids = self.unfinished.drain(..);
                    let retracted =
                        ids.map(|id| of_message("assistant.retracted", json!({}), Some(&id)));
                    let retry = progress("retry", json!({ "attempt": attempt }));
                    retracted.chain([retry]).collect()
                }
                _ => Vec::new(),
            },
            "messages" => match data.get(0) {
                Some(message) if message.is_object() => self.message(message, place.is_none()),
                _ => return Err(malformed("a list with a message was expected".to_owned())),
            },
            "updates" => self.updates(&data),
            "custom" => vec![progress("custom", json!({ "value": data }))],
            "error" => {
                let text = |name: &str| data[name].as_str().unwrap_or_default().to_owned();
                self.error = Some(RunError {
                    name: text("error"),
                    message: text("message"),
                });
                Vec::new()
            }
            mode => vec![progress(mode, json!({ "value": data }))],
        };
        if let Some(place) = place {
            for data in events.iter_mut().filter_map(|event| event.data.as_mut()) {
                data["subgraph"] = place.into();
            }
        }
        Ok(events)
    }

    /// Merges model messages that are in the thread's state but were not streamed.
    pub(crate) fn end(&mut self, state: &State) {
        let before = std::mem::take(&mut self.before);
        let fresh = state.messages().iter().filter(|message| {
            let id = message["id"].as_str();
            id.is_none_or(|id| !before.contains(id))
        });
        for message in fresh.filter(|message| is_the_models(message)) {
            self.remember(message);
            self.cut = None;
            self.take_end(message);
            self.last_message = None;
            self.last_text = text_of(message);
        }
    }

    fn message(&mut self, message: &Value, is_the_graphs_own: bool) -> Vec<AdapterEvent> {
        let id = message["id"].as_str();
        if id.is_some_and(|id| self.before.contains(id)) {
            return Vec::new();
        }
        if message["type"] == "tool" {
            return self.tool_result(message).into_iter().collect();
        }
        if !is_the_models(message) {
            return Vec::new();
        }
        let mut events = Vec::new();
        let (thought, text) = (thoughts_of(message), text_of(message));
        if !thought.is_empty() {
            events.push(of_message(
                "assistant.thinking",
                json!({ "delta": thought }),
                id,
            ));
        }
        if !text.is_empty() {
            if is_the_graphs_own {
                if id.is_none() || id != self.last_message.as_deref() {
                    self.last_message = id.map(str::to_owned);
                    self.last_text.clear();
                    self.cut = None;
                }
                self.last_text.push_str(&text);
            }
            events.push(of_message("assistant.text", json!({ "delta": text }), id));
        }
        if let (false, Some(id)) = (events.is_empty(), id)
            && self.unfinished.last().is_none_or(|last| last != id)
        {
            self.unfinished.push(id.to_owned());
        }
        if is_the_graphs_own {
            self.take_end(message);
        }
        // Streamed calls come in pieces; the node's update has them whole.
        if message["type"] == "ai" {
            events.extend(self.tool_calls(message));
        }
        self.remember(message);
        if message["usage_metadata"].is_object() {
            events.push(AdapterEvent::usage(&self.meter.usage(), None));
        }
        events
    }

    fn remember(&mut self, message: &Value) {
        self.meter.hear(message);
        let said = |name: &str| {
            let text = message["response_metadata"][name].as_str();
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        self.model = said("model_name").or(self.model.take());
        self.model_provider = said("model_provider").or(self.model_provider.take());
    }

    fn take_end(&mut self, message: &Value) {
        let metadata = &message["response_metadata"];
        let reasons = [&metadata["finish_reason"], &metadata["stop_reason"]];
        if let Some(reason) = reasons.into_iter().find_map(Value::as_str) {
            self.cut = Cut::named(reason);
        }
    }

    /// Events of node updates: `{node: its change}`.
    fn updates(&mut self, updates: &Value) -> Vec<AdapterEvent> {
        let mut events = Vec::new();
        for (node, update) in updates.as_object().into_iter().flatten() {
            if node == "__interrupt__" {
                events.push(progress("interrupt", json!({ "interrupts": update })));
                continue;
            }
            // A node that runs several times in one step has a list of changes.
            let changes = match update {
                Value::Array(changes) => changes.as_slice(),
                change => std::slice::from_ref(change),
            };
            for message in changes.iter().flat_map(|change| list(&change["messages"])) {
                self.unfinished.retain(|id| message["id"] != id.as_str());
                match message["type"].as_str() {
                    Some("ai") => events.extend(self.tool_calls(message)),
                    Some("tool") => events.extend(self.tool_result(message)),
                    _ => {}
                }
            }
            events.push(progress("node", json!({ "node": node })));
        }
        events
    }

    fn tool_calls(&mut self, message: &Value) -> Vec<AdapterEvent> {
        let mut events = Vec::new();
        for call in list(&message["tool_calls"]) {
            let (id, name) = (&call["id"], &call["name"]);
            let (Some(known), Some(tool)) = (id.as_str(), name.as_str()) else {
                continue;
            };
            if self.offered.contains(tool) || self.calls.contains_key(known) {
                continue;
            }
            self.calls.insert(known.to_owned(), tool.to_owned());
            let data = json!({"toolCallId": id, "name": name, "input": call["args"]});
            events.push(AdapterEvent::new("tool.invoked").with(data));
        }
        events
    }

    fn tool_result(&mut self, message: &Value) -> Option<AdapterEvent> {
        let call = message["tool_call_id"].as_str()?;
        // Results given by the caller are not emitted; others arrive in several stream modes and are emitted once.
        let name = self.calls.get(call)?;
        if !self.answered.insert(call.to_owned()) {
            return None;
        }
        let data = json!({
            "toolCallId": call, "name": name, "output": text_of(message),
            "isError": message["status"] == "error",
        });
        Some(AdapterEvent::new("tool.completed").with(data))
    }
}

fn of_message(kind: &str, mut data: Value, id: Option<&str>) -> AdapterEvent {
    if let Some(id) = id {
        data["messageId"] = id.into();
    }
    AdapterEvent::new(kind).with(data)
}

fn progress(kind: &str, mut data: Value) -> AdapterEvent {
    data["kind"] = kind.into();
    AdapterEvent::new("exec.progress").with(data)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use forge_adapter_api::ExecutionRequest;

    use super::*;
    use crate::outcome::{End, outcome};
    use crate::server::RunStatus;
    use crate::settings::Shape;
    use crate::thread::Session;

    #[test]
    fn a_run_that_the_server_repeats_withdraws_the_text_of_unfinished_nodes() {
        let mut transcript = Transcript::default();
        let mut tell = |name: &str, data: Value| {
            let event = ServerEvent {
                id: String::new(),
                name: name.to_owned(),
                data: data.to_string(),
            };
            transcript.event(&event).unwrap()
        };
        let piece = |id: &str| json!([{"type": "AIMessageChunk", "id": id, "content": "text"}, {}]);
        let events = tell("messages", piece("whole"));
        assert_eq!(
            events[0].data,
            Some(json!({"delta": "text", "messageId": "whole"}))
        );
        tell(
            "updates",
            json!({"plan": {"messages": [{"type": "ai", "id": "whole", "content": "text"}]}}),
        );
        tell("messages", piece("half"));
        tell("messages", piece("half"));
        let events = tell("metadata", json!({"run_id": "r", "attempt": 2}));
        let expected = AdapterEvent::new("assistant.retracted").with(json!({"messageId": "half"}));
        assert_eq!(events[0], expected);
        assert_eq!(events.len(), 2, "and the retry: {events:?}");
        assert_eq!(
            tell("metadata", json!({"run_id": "r", "attempt": 3})).len(),
            1
        );
    }

    /// Recorded streams of the real server; each ends with the run's status and its final state.
    #[test]
    fn recorded_runs_become_events_and_a_result() {
        let cases = [
            "provider_429",
            "question",
            "recursion_limit",
            "text",
            "tool",
            "two_questions",
        ];
        let request = ExecutionRequest {
            session_id: Some("s".to_owned()),
            ..ExecutionRequest::sample("m")
        };
        for name in cases {
            let path = format!("{}/tests/golden/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
            let mut transcript = Transcript::default();
            let mut events = Vec::new();
            let mut end = None;
            for line in fs::read_to_string(path).unwrap().lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                if let Some(status) = line["status"].as_str() {
                    let status = RunStatus::named(status);
                    end = Some((status, State::new(Some(line["state"].clone()))));
                    continue;
                }
                let event = ServerEvent {
                    id: line["id"].as_str().unwrap().to_owned(),
                    name: line["name"].as_str().unwrap().to_owned(),
                    data: line["data"].to_string(),
                };
                events.extend(transcript.event(&event).unwrap());
            }
            let (status, state) = end.unwrap();
            let shape = Shape::default();
            let session = Session::of(&request);
            let over = End::Over(status);
            let result = outcome(transcript, over, &state, &shape, &request, &session);
            let told = json!({"events": events, "result": result});
            insta::with_settings!({snapshot_path => "../tests/golden", prepend_module_to_snapshot => false}, {
                insta::assert_json_snapshot!(name, told);
            });
        }
    }
}
