//! Rules of the operator that interpret a program's JSON through JSON pointers.

use forge_adapter_api::foreign_json;
use std::collections::BTreeMap;

use forge_adapter_api::{AdapterEvent, Usage};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::transcript::{Failure, Transcript};

/// A rule. All rules whose `when` matches a value are applied to it, in order. Members are JSON pointers
/// such as `/message/text` unless noted otherwise.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Rule {
    /// Pointers and the values required there; `null` requires an absent or null value.
    pub(crate) when: BTreeMap<String, Value>,
    /// A piece of the answer.
    pub(crate) text: Option<String>,
    pub(crate) thinking: Option<String>,
    /// The whole answer; takes precedence over the pieces.
    pub(crate) output: Option<String>,
    pub(crate) structured_output: Option<String>,
    /// Text of the failure; a match marks the run as failed.
    pub(crate) error: Option<String>,
    /// A pointer, or without a leading slash the error code itself.
    pub(crate) error_code: Option<String>,
    /// HTTP status of the model's API, which determines the error code.
    pub(crate) error_status: Option<String>,
    /// A question to a human; ends the run as `input_required`.
    pub(crate) input_request: Option<String>,
    pub(crate) session_id: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) tool: Option<ToolCall>,
    pub(crate) tool_result: Option<ToolResult>,
    pub(crate) usage: Pointers,
    /// Name of an event that carries the value as its data.
    pub(crate) event: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) input: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolResult {
    pub(crate) id: String,
    pub(crate) output: String,
    pub(crate) is_error: Option<String>,
}

/// Pointers to the usage of a run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Pointers {
    pub(crate) input_tokens: Option<String>,
    pub(crate) output_tokens: Option<String>,
    pub(crate) thinking_tokens: Option<String>,
    pub(crate) cache_read_tokens: Option<String>,
    pub(crate) cache_write_tokens: Option<String>,
    pub(crate) cost_usd: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) session_id: Option<String>,
    /// Relation of cached tokens to the program's `input_tokens`.
    pub(crate) cached: Cached,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cached {
    #[default]
    Within,
    Apart,
}

impl Rule {
    pub(crate) fn check(&self) -> Result<(), String> {
        let tool = self
            .tool
            .iter()
            .flat_map(|tool| [&tool.id, &tool.name, &tool.input]);
        let results = self.tool_result.iter();
        let results = results.flat_map(|result| {
            [
                Some(&result.id),
                Some(&result.output),
                result.is_error.as_ref(),
            ]
        });
        let own = [
            &self.text,
            &self.thinking,
            &self.output,
            &self.structured_output,
            &self.error,
            &self.error_status,
            &self.input_request,
            &self.session_id,
            &self.model,
        ];
        let own = own.into_iter().flatten();
        own.chain(tool)
            .chain(results.flatten())
            .chain(self.when.keys())
            .try_for_each(|text| pointer(text))?;
        self.usage.check()
    }

    /// Applies the rule to a value: updates the transcript and returns the events to emit.
    pub(crate) fn apply(&self, value: &Value, transcript: &mut Transcript) -> Vec<AdapterEvent> {
        let fits = |(pointer, wanted): (&String, &Value)| {
            value.pointer(pointer).unwrap_or(&Value::Null) == wanted
        };
        if !self.when.iter().all(fits) {
            return Vec::new();
        }
        let mut events = Vec::new();
        if let Some(delta) = text(value, self.text.as_ref()) {
            transcript.text.push_str(&delta);
            events.push(AdapterEvent::text(delta));
        }
        if let Some(delta) = text(value, self.thinking.as_ref()) {
            events.push(AdapterEvent::new("assistant.thinking").with(json!({"delta": delta})));
        }
        events.extend(
            self.tool
                .as_ref()
                .and_then(|tool| tool.event(value, transcript)),
        );
        events.extend(
            self.tool_result
                .as_ref()
                .and_then(|result| result.event(value, transcript)),
        );
        if let Some(output) = text(value, self.output.as_ref()) {
            transcript.output = Some(output);
        }
        if let Some(structured) = found(value, self.structured_output.as_ref()) {
            transcript.structured_output = Some(structured.clone());
        }
        if let Some(question) = found(value, self.input_request.as_ref()) {
            transcript.input_request = Some(question.clone());
        }
        if let Some(model) = text(value, self.model.as_ref()) {
            transcript.model = Some(model);
        }
        if let Some(session) = text(value, self.session_id.as_ref()) {
            events.extend(transcript.session(session));
        }
        if self.error.is_some() || self.error_code.is_some() || self.error_status.is_some() {
            transcript.failure = Some(self.failure(value));
        }
        if self.usage.read(value, transcript) {
            events.push(AdapterEvent::usage(&transcript.usage, transcript.cost_usd));
        }
        if let Some(name) = &self.event {
            events.push(AdapterEvent::new(name).with(value.clone()));
        }
        events
    }

    fn failure(&self, value: &Value) -> Failure {
        let code = match &self.error_code {
            Some(code) if code.starts_with('/') => text(value, Some(code)),
            Some(code) => Some(code.clone()),
            None => None,
        };
        let status = found(value, self.error_status.as_ref()).and_then(foreign_json::count);
        Failure {
            code: code.or_else(|| status.map(of_status)),
            message: text(value, self.error.as_ref()),
        }
    }
}

impl ToolCall {
    fn event(&self, value: &Value, transcript: &mut Transcript) -> Option<AdapterEvent> {
        let id = text(value, Some(&self.id))?;
        let name = text(value, Some(&self.name))?;
        let input = value.pointer(&self.input).unwrap_or(&Value::Null);
        let event = AdapterEvent::new("tool.invoked")
            .with(json!({"toolCallId": id, "name": name, "input": input}));
        transcript.tools.insert(id, name);
        Some(event)
    }
}

impl ToolResult {
    fn event(&self, value: &Value, transcript: &mut Transcript) -> Option<AdapterEvent> {
        let id = text(value, Some(&self.id))?;
        let name = transcript.tools.remove(&id).unwrap_or_default();
        let output = value.pointer(&self.output).unwrap_or(&Value::Null);
        let is_error = found(value, self.is_error.as_ref())
            .and_then(Value::as_bool)
            .unwrap_or_default();
        let data = json!({"toolCallId": id, "name": name, "output": output, "isError": is_error});
        Some(AdapterEvent::new("tool.completed").with(data))
    }
}

impl Pointers {
    pub(crate) fn check(&self) -> Result<(), String> {
        let all = [
            &self.input_tokens,
            &self.output_tokens,
            &self.thinking_tokens,
            &self.cache_read_tokens,
            &self.cache_write_tokens,
            &self.cost_usd,
            &self.model,
            &self.session_id,
        ];
        all.into_iter().flatten().try_for_each(|text| pointer(text))
    }

    /// Reads the usage into the transcript; true if any count or cost was found.
    pub(crate) fn read(&self, value: &Value, transcript: &mut Transcript) -> bool {
        let number =
            |pointer: &Option<String>| found(value, pointer.as_ref()).and_then(foreign_json::count);
        let (read, write) = (
            number(&self.cache_read_tokens),
            number(&self.cache_write_tokens),
        );
        let cached = match self.cached {
            Cached::Within => 0,
            Cached::Apart => read
                .unwrap_or_default()
                .saturating_add(write.unwrap_or_default()),
        };
        let input = number(&self.input_tokens).map(|input| input.saturating_add(cached));
        let output = number(&self.output_tokens);
        let usage = Usage {
            input_tokens: input,
            output_tokens: output,
            thinking_tokens: number(&self.thinking_tokens),
            total_tokens: input
                .zip(output)
                .map(|(input, output)| input.saturating_add(output)),
            cache_read_tokens: read,
            cache_write_tokens: write,
        };
        let cost = found(value, self.cost_usd.as_ref()).and_then(foreign_json::amount);
        if let Some(model) = text(value, self.model.as_ref()) {
            transcript.model = Some(model);
        }
        if let Some(session) = text(value, self.session_id.as_ref()) {
            transcript.session_id = Some(session);
        }
        let is_known = usage != Usage::default() || cost.is_some();
        if is_known {
            transcript.usage = usage;
            transcript.cost_usd = cost;
        }
        is_known
    }
}

fn pointer(text: &str) -> Result<(), String> {
    if text.is_empty() || text.starts_with('/') {
        return Ok(());
    }
    Err(format!(
        "{text:?} is not a JSON pointer; it must begin with a slash, such as \"/{text}\""
    ))
}

fn found<'a>(value: &'a Value, pointer: Option<&String>) -> Option<&'a Value> {
    value.pointer(pointer?).filter(|found| !found.is_null())
}

/// A string unchanged, any other value as JSON.
fn text(value: &Value, pointer: Option<&String>) -> Option<String> {
    found(value, pointer).map(|found| match found {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            found.to_string()
        }
    })
}

fn of_status(status: u64) -> String {
    match status {
        401 | 403 => "unauthenticated",
        429 => "rate_limited",
        400..=407 | 409..=499 => "invalid_request",
        _ => "upstream_error",
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(value: Value) -> Rule {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_rule_takes_only_what_fits() {
        let rule =
            rule(json!({"when": {"/type": "a", "/skip": null}, "text": "/t", "session_id": "/s"}));
        let mut transcript = Transcript::default();
        for value in [
            json!({"type": "b", "t": "x"}),
            json!({"type": "a", "skip": 1, "t": "x"}),
            json!([]),
            json!("a"),
        ] {
            assert!(rule.apply(&value, &mut transcript).is_empty(), "{value}");
        }
        let events = rule.apply(&json!({"type": "a", "t": "x", "s": 7}), &mut transcript);
        assert_eq!(events[0], AdapterEvent::text("x"));
        assert_eq!(
            (transcript.text.as_str(), transcript.session_id.as_deref()),
            ("x", Some("7"))
        );
    }

    #[test]
    fn cached_tokens_are_counted_once_and_what_is_not_told_is_not_known() {
        let pointers = |cached: &str| -> Pointers {
            serde_json::from_value(json!({"input_tokens": "/i", "output_tokens": "/o", "cache_read_tokens": "/r", "cached": cached})).unwrap()
        };
        let value = json!({"i": 26, "o": 9, "r": 5});
        for (cached, input) in [("within", 26), ("apart", 31)] {
            let mut transcript = Transcript::default();
            assert!(pointers(cached).read(&value, &mut transcript));
            assert_eq!(transcript.usage.input_tokens, Some(input));
            assert_eq!(transcript.usage.total_tokens, Some(input + 9));
            assert_eq!(transcript.usage.cache_write_tokens, None);
        }
        let mut transcript = Transcript::default();
        assert!(!pointers("apart").read(&json!({"i": "many", "o": -1}), &mut transcript));
        assert_eq!(transcript.usage, Usage::default());
    }

    #[test]
    fn a_failure_has_a_code_by_name_by_pointer_or_by_status() {
        for (config, wanted) in [
            (
                json!({"error": "/e", "error_code": "max_turns"}),
                Some("max_turns"),
            ),
            (json!({"error": "/e", "error_code": "/code"}), Some("odd")),
            (
                json!({"error": "/e", "error_status": "/status"}),
                Some("rate_limited"),
            ),
            (json!({"error": "/e"}), None),
        ] {
            let mut transcript = Transcript::default();
            rule(config).apply(
                &json!({"e": "why", "code": "odd", "status": 429}),
                &mut transcript,
            );
            let failure = transcript.failure.unwrap();
            assert_eq!(
                (failure.code.as_deref(), failure.message.as_deref()),
                (wanted, Some("why"))
            );
        }
    }
}
