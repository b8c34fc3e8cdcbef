//! Converts the agent's updates to events and accumulates what the result needs. Pure.

use std::collections::HashMap;

use forge_adapter_api::{AdapterEvent, Usage};
use serde_json::{Value, json};

use crate::choices::{Choices, MODEL};
use crate::meter::Meter;

/// Upper bound of open calls; further ones are not reported.
const MOST_OPEN: usize = 100;
/// Upper bound of the accumulated text, in bytes; above the bridge's limit for an output.
const MOST_TEXT_BYTES: usize = 16 << 20;

pub(crate) struct Transcript {
    pub(crate) meter: Meter,
    /// The agent's text since its last tool call, even if cut off.
    pub(crate) text: String,
    pub(crate) tool_calls: usize,
    /// The current model, if the agent reported a change.
    pub(crate) model: Option<String>,
    /// Calls that have not ended, by id.
    open: HashMap<String, Call>,
    /// True if a tool call came since the last text.
    is_interrupted: bool,
}

#[derive(Default)]
struct Call {
    name: String,
    kind: Value,
    input: Value,
    content: Value,
    /// True until the call's details are complete.
    waits: bool,
    is_told: bool,
}

impl Transcript {
    pub(crate) fn new(meter: Meter, model: Option<String>) -> Self {
        Self {
            meter,
            text: String::new(),
            tool_calls: 0,
            model,
            open: HashMap::new(),
            is_interrupted: false,
        }
    }

    /// Events of one `session/update`.
    pub(crate) fn update(&mut self, update: &Value) -> Vec<AdapterEvent> {
        match update["sessionUpdate"].as_str().unwrap_or_default() {
            // claude-agent-acp reports it as text of the model.
            "agent_message_chunk" if update["_meta"]["claudeCode"]["kind"] == "mcpServerStatus" => {
                Vec::new()
            }
            "agent_message_chunk" => self.said(update),
            "agent_thought_chunk" => said("assistant.thinking", update),
            "tool_call" => self.call(update),
            "tool_call_update" => self.call_goes_on(update),
            "plan" => vec![progress(
                json!({"kind": "plan", "entries": update["entries"]}),
            )],
            "current_mode_update" => {
                vec![progress(
                    json!({"kind": "mode", "mode": update["currentModeId"]}),
                )]
            }
            "config_option_update" => {
                let models = Choices::of_options(&MODEL, &update["configOptions"]);
                self.model = models
                    .and_then(|models| models.current)
                    .or(self.model.take());
                Vec::new()
            }
            "usage_update" => {
                let changes = self.meter.in_the_turn(update);
                let cost = self.meter.cost_usd();
                some(changes && cost.is_some(), || {
                    AdapterEvent::usage(&Usage::default(), cost)
                })
            }
            // Updates of later versions, and those not related to the task.
            _ => Vec::new(),
        }
    }

    fn said(&mut self, update: &Value) -> Vec<AdapterEvent> {
        let delta = text_of(&update["content"]);
        if std::mem::take(&mut self.is_interrupted) {
            self.text.clear();
        }
        match self.text.len() {
            0 => self.text.push_str(delta.trim_start()),
            1..=MOST_TEXT_BYTES => self.text.push_str(&delta),
            _ => {}
        }
        said("assistant.text", update)
    }

    fn call(&mut self, update: &Value) -> Vec<AdapterEvent> {
        let Some(id) = update["toolCallId"].as_str() else {
            return Vec::new();
        };
        self.tool_calls += 1;
        self.is_interrupted = true;
        let mut events = Vec::new();
        let call = Call {
            name: name_of(update),
            // Some agents send the input with later updates; others never use `pending`, or send no status.
            waits: update["status"] == "pending",
            ..Call::default()
        };
        if self.open.len() < MOST_OPEN {
            self.open.insert(id.to_owned(), call);
        }
        events.extend(self.learn(id, update));
        events.extend(self.end(id, update));
        events
    }

    fn call_goes_on(&mut self, update: &Value) -> Vec<AdapterEvent> {
        let Some(id) = update["toolCallId"].as_str() else {
            return Vec::new();
        };
        if !self.open.contains_key(id) {
            // The call has ended, or was never announced.
            return Vec::new();
        }
        self.is_interrupted = true;
        let mut events: Vec<AdapterEvent> = Vec::new();
        events.extend(self.learn(id, update));
        events.extend(self.end(id, update));
        events
    }

    /// Handles a permission request: the call's details are complete.
    pub(crate) fn asked(&mut self, call: &Value) -> Vec<AdapterEvent> {
        let id = call["toolCallId"].as_str().unwrap_or_default();
        if let Some(open) = self.open.get_mut(id) {
            open.waits = false;
        }
        self.learn(id, call).into_iter().collect()
    }

    fn learn(&mut self, id: &str, update: &Value) -> Option<AdapterEvent> {
        let call = self.open.get_mut(id)?;
        let told = |name: &str| update.get(name).filter(|value| !value.is_null());
        if let Some(kind) = told("kind") {
            call.kind.clone_from(kind);
        }
        if let Some(content) = told("content") {
            call.content.clone_from(content);
        }
        match (&mut call.input, told("rawInput")) {
            // Each update can carry a part.
            (Value::Object(known), Some(Value::Object(more))) => known.extend(more.clone()),
            (known, Some(input)) => known.clone_from(input),
            (_, None) => {}
        }
        let is_past = update["status"]
            .as_str()
            .is_some_and(|status| status != "pending");
        if is_past || !output_of(&call.content).is_empty() {
            call.waits = false;
        }
        if call.waits || call.is_told {
            return None;
        }
        call.is_told = true;
        let input = match &call.input {
            Value::Null => Value::from(output_of(&call.content)),
            input => input.clone(),
        };
        Some(AdapterEvent::new("tool.invoked").with(json!({
            "toolCallId": id, "name": call.name, "kind": call.kind, "input": input,
        })))
    }

    fn end(&mut self, id: &str, update: &Value) -> Option<AdapterEvent> {
        let is_error = match update["status"].as_str() {
            Some("completed") => false,
            Some("failed") => true,
            Some(_) | None => return None,
        };
        let call = self.open.remove(id)?;
        let raw = &update["rawOutput"];
        let output = match (raw.as_str().or(raw["output"].as_str()), &call.content) {
            (Some(text), _) => text.to_owned(),
            (None, Value::Null) if !raw.is_null() => raw.to_string(),
            (None, content) => output_of(content),
        };
        Some(AdapterEvent::new("tool.completed").with(json!({
            "toolCallId": id, "name": call.name, "output": output, "isError": is_error,
        })))
    }
}

/// Name of a tool: `name` if given, else the beginning of the title, which is written for humans.
fn name_of(update: &Value) -> String {
    let title = update["title"].as_str().unwrap_or_default();
    let first = title.split(':').next().unwrap_or(title);
    update["name"]
        .as_str()
        .unwrap_or(if first.contains(' ') { title } else { first })
        .to_owned()
}

/// Text of a content block, or its type in brackets.
fn text_of(content: &Value) -> String {
    match (content["text"].as_str(), content["type"].as_str()) {
        (Some(text), _) => text.to_owned(),
        (None, Some("resource")) => content["resource"]["text"]
            .as_str()
            .unwrap_or("[resource]")
            .to_owned(),
        (None, Some(kind)) => format!("[{kind}]"),
        (None, None) => String::new(),
    }
}

/// Output of a call: its texts, and the names of changed files.
fn output_of(content: &Value) -> String {
    content
        .as_array()
        .into_iter()
        .flatten()
        .map(|block| match block["type"].as_str().unwrap_or_default() {
            "content" => text_of(&block["content"]),
            "diff" => format!("[diff {}]", block["path"].as_str().unwrap_or_default()),
            kind => format!("[{kind}]"),
        })
        .collect::<Vec<_>>()
        .join("\n")
}

fn said(kind: &str, update: &Value) -> Vec<AdapterEvent> {
    let delta = text_of(&update["content"]);
    some(!delta.is_empty(), || {
        let mut data = json!({ "delta": delta });
        if let Some(id) = update["messageId"].as_str() {
            data["messageId"] = id.into();
        }
        AdapterEvent::new(kind).with(data)
    })
}

fn progress(data: Value) -> AdapterEvent {
    AdapterEvent::new("exec.progress").with(data)
}

fn some(is_one: bool, event: impl FnOnce() -> AdapterEvent) -> Vec<AdapterEvent> {
    is_one.then(event).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::UsageScope;
    use crate::outcome::{End, outcome};

    /// Recorded turns of real agents.
    #[test]
    fn recorded_turns_become_events_and_a_result() {
        let cases = [
            ("claude_text", UsageScope::Turn),
            ("claude_tool", UsageScope::Turn),
            ("hermes_cancelled", UsageScope::Process),
            ("hermes_denied", UsageScope::Process),
            ("hermes_tool", UsageScope::Process),
            ("opencode_denied", UsageScope::LastCall),
            ("opencode_tool", UsageScope::LastCall),
        ];
        for (name, scope) in cases {
            let path = format!("{}/tests/golden/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
            let mut transcript = Transcript::new(Meter::of_new_session(), None);
            let mut events = Vec::new();
            let mut result = Value::Null;
            for line in fs::read_to_string(path).unwrap().lines() {
                let line: Value = serde_json::from_str(line).unwrap();
                match line["method"].as_str() {
                    Some("session/update") => {
                        events.extend(transcript.update(&line["params"]["update"]));
                    }
                    Some("session/request_permission") => {
                        events.extend(transcript.asked(&line["params"]["toolCall"]));
                    }
                    Some(_) => {}
                    None => result = line["result"].clone(),
                }
            }
            transcript.meter.turn_ends(&result);
            let told = json!({
                "events": events,
                "output": transcript.text,
                "usage": transcript.meter.usage(scope, transcript.tool_calls),
                "costUsd": transcript.meter.cost_usd(),
                "result": outcome(End::Turn(result), None),
            });
            insta::with_settings!({snapshot_path => "../tests/golden", prepend_module_to_snapshot => false}, {
                insta::assert_json_snapshot!(name, told);
            });
        }
    }

    #[test]
    fn updates_of_a_wrong_shape_are_nothing() {
        for update in [
            Value::Null,
            json!({"sessionUpdate": 7}),
            json!({"sessionUpdate": "tool_call"}),
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "unknown", "status": "completed"}),
            json!({"sessionUpdate": "agent_message_chunk", "content": []}),
            json!({"sessionUpdate": "usage_update", "cost": "much"}),
        ] {
            let mut transcript = Transcript::new(Meter::of_new_session(), None);
            assert_eq!(transcript.update(&update), [], "{update}");
        }
    }
}
