//! What a stream of the platform has said so far. The OpenAI shape, with the platform's own members beside
//! it; a stream may end without `[DONE]`, and begin with an event that holds citations.

use forge_adapter_api::result::ToolCall;
use forge_adapter_api::{AdapterError, Usage};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Text and arguments together.
const MOST_BYTES: usize = 16 << 20;
const MOST_CALLS: usize = 256;

/// How the request was routed, and what it was grounded on; passed on as they come.
const KEPT: [&str; 8] = [
    "provider",
    "model_family",
    "auto_routing",
    "routing_mechanism",
    "routing_tier",
    "routing_confidence",
    "tradition",
    "sources_returned",
];

#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) text: String,
    pub(crate) model: Option<String>,
    pub(crate) usage: Option<Usage>,
    pub(crate) finish: Option<String>,
    /// The members of [`KEPT`] that came, in camel case, and `citations`.
    pub(crate) about: Map<String, Value>,
    calls: Vec<PartialCall>,
    bytes: usize,
}

#[derive(Default)]
struct PartialCall {
    id: String,
    name: String,
    arguments: String,
}

/// What one event of the stream says.
#[derive(Debug, PartialEq)]
pub(crate) enum News {
    Text(String),
    Thought(String),
    Citations(Value),
    /// Nothing to tell at once.
    Silent,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Delta {
    content: Option<String>,
    #[serde(alias = "reasoning_content")]
    reasoning: Option<String>,
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
struct CallDelta {
    #[serde(default)]
    index: usize,
    id: Option<String>,
    #[serde(default)]
    function: FunctionDelta,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FunctionDelta {
    name: Option<String>,
    arguments: Option<String>,
}

impl Heard {
    pub(crate) fn hear(&mut self, data: &str) -> Result<News, AdapterError> {
        let mut event: Value = serde_json::from_str(data)
            .map_err(|error| broken(&format!("an event of the answer is not JSON: {error}")))?;
        if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
            let said = error["message"].as_str().or(error.as_str());
            return Err(broken(&format!(
                "the platform broke the answer off: {}",
                said.map_or_else(|| error.to_string(), str::to_owned)
            )));
        }
        self.keep(&event);
        let choice = match event.get_mut("choices").map(Value::take) {
            // It comes before the answer, and its shape is not documented.
            None => {
                let citations = match event.get_mut("citations") {
                    Some(citations) => citations.take(),
                    None => event,
                };
                self.about.insert("citations".to_owned(), citations.clone());
                return Ok(News::Citations(citations));
            }
            Some(Value::Array(mut choices)) if !choices.is_empty() => choices.swap_remove(0),
            Some(_) => return Ok(News::Silent),
        };
        let choice: Choice = serde_json::from_value(choice)
            .map_err(|error| broken(&format!("an event of the answer is malformed: {error}")))?;
        self.finish = choice.finish_reason.or(self.finish.take());
        for call in choice.delta.tool_calls.into_iter().flatten() {
            self.add_call(call)?;
        }
        if let Some(thought) = choice.delta.reasoning.filter(|text| !text.is_empty()) {
            return Ok(News::Thought(thought));
        }
        match choice.delta.content.filter(|text| !text.is_empty()) {
            Some(text) => {
                self.count(text.len())?;
                self.text.push_str(&text);
                Ok(News::Text(text))
            }
            None => Ok(News::Silent),
        }
    }

    /// The calls, whose arguments are complete now.
    pub(crate) fn calls(&mut self) -> Result<Vec<ToolCall>, AdapterError> {
        let calls = std::mem::take(&mut self.calls);
        calls
            .into_iter()
            .map(|call| {
                let arguments = match call.arguments.trim() {
                    "" => "{}",
                    arguments => arguments,
                };
                let input = serde_json::from_str(arguments).map_err(|error| {
                    broken(&format!(
                        "the arguments of {} are not JSON: {error}",
                        call.name
                    ))
                })?;
                Ok(ToolCall {
                    tool_call_id: call.id,
                    name: call.name,
                    input,
                })
            })
            .collect()
    }

    fn keep(&mut self, event: &Value) {
        if let Some(model) = event["model"].as_str() {
            self.model = Some(model.to_owned());
        }
        if let Some(usage) = event["usage"].as_object() {
            self.usage = Some(usage_of(usage));
        }
        for name in KEPT {
            if let Some(value) = event.get(name).filter(|value| !value.is_null()) {
                self.about.insert(camel(name), value.clone());
            }
        }
    }

    fn add_call(&mut self, delta: CallDelta) -> Result<(), AdapterError> {
        if delta.index >= MOST_CALLS {
            return Err(broken("the answer calls too many tools"));
        }
        if self.calls.len() <= delta.index {
            self.calls
                .resize_with(delta.index + 1, PartialCall::default);
        }
        let arguments = delta.function.arguments.unwrap_or_default();
        self.count(arguments.len())?;
        let call = &mut self.calls[delta.index];
        call.arguments.push_str(&arguments);
        call.id = delta.id.unwrap_or(std::mem::take(&mut call.id));
        call.name = delta
            .function
            .name
            .unwrap_or(std::mem::take(&mut call.name));
        Ok(())
    }

    fn count(&mut self, bytes: usize) -> Result<(), AdapterError> {
        self.bytes += bytes;
        if self.bytes <= MOST_BYTES {
            return Ok(());
        }
        let text = format!("the answer is above {MOST_BYTES} bytes");
        Err(AdapterError::new("output_too_large", text))
    }
}

/// Cached tokens are a part of the prompt's.
fn usage_of(usage: &Map<String, Value>) -> Usage {
    let count = |name: &str| usage.get(name).and_then(Value::as_u64);
    let detail = |name: &str, of: &str| usage.get(name).and_then(|details| details[of].as_u64());
    let (input, output) = (count("prompt_tokens"), count("completion_tokens"));
    Usage {
        input_tokens: input,
        output_tokens: output,
        thinking_tokens: detail("completion_tokens_details", "reasoning_tokens"),
        total_tokens: input
            .zip(output)
            .map(|(input, output)| input.saturating_add(output)),
        cache_read_tokens: detail("prompt_tokens_details", "cached_tokens")
            .or(count("cache_read_input_tokens")),
        cache_write_tokens: None,
    }
}

fn broken(message: &str) -> AdapterError {
    AdapterError::new("upstream_error", message).retryable()
}

fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let mut camel = words.next().unwrap_or_default().to_owned();
    for word in words {
        let (first, rest) = word.split_at(1);
        camel.push_str(&first.to_uppercase());
        camel.push_str(rest);
    }
    camel
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_of_the_platform_are_kept_by_whatever_event_brings_them() {
        let mut heard = Heard::default();
        let raw = json!({"type": "sources", "items": [1]});
        assert_eq!(
            heard.hear(&raw.to_string()).unwrap(),
            News::Citations(raw.clone()),
            "a first event of any shape"
        );
        for (event, news) in [
            (
                json!({"choices": [], "routing_tier": "tier_1"}),
                News::Silent,
            ),
            (
                json!({"model": "m", "choices": [{"delta": {"content": "a"}}], "tradition": null}),
                News::Text("a".to_owned()),
            ),
            (
                json!({"choices": [{"delta": {"reasoning_content": "hm"}}]}),
                News::Thought("hm".to_owned()),
            ),
            (
                json!({"choices": [{"delta": {}, "finish_reason": "stop"}], "sources_returned": 2}),
                News::Silent,
            ),
            (
                json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2, "cache_read_input_tokens": 3}}),
                News::Silent,
            ),
        ] {
            assert_eq!(heard.hear(&event.to_string()).unwrap(), news, "{event}");
        }
        assert_eq!(
            Value::Object(heard.about),
            json!({"citations": raw, "routingTier": "tier_1", "sourcesReturned": 2})
        );
        assert_eq!(
            (heard.text.as_str(), heard.finish.as_deref()),
            ("a", Some("stop"))
        );
        let usage = heard.usage.unwrap();
        assert_eq!(
            (
                usage.input_tokens,
                usage.total_tokens,
                usage.cache_read_tokens,
                usage.thinking_tokens
            ),
            (Some(7), Some(9), Some(3), None)
        );
    }

    #[test]
    fn what_is_malformed_is_an_error_of_the_platform() {
        for (data, said) in [
            ("{\"choices\": [{", "not JSON"),
            ("{\"choices\": [{\"delta\": 7}]}", "malformed"),
            ("{\"error\": \"gone\"}", "gone"),
            ("{\"error\": {\"message\": \"gone\"}}", "gone"),
            (
                "{\"choices\": [{\"delta\": {\"tool_calls\": [{\"index\": 4000000}]}}]}",
                "too many",
            ),
        ] {
            let error = Heard::default().hear(data).unwrap_err();
            assert_eq!(error.code, "upstream_error");
            assert!(error.message.contains(said), "{}", error.message);
        }
        let mut heard = Heard::default();
        let call = json!({"index": 0, "id": "c", "function": {"name": "f", "arguments": "{\"a\""}});
        heard
            .hear(&json!({"choices": [{"delta": {"tool_calls": [call]}}]}).to_string())
            .unwrap();
        assert!(
            heard
                .calls()
                .unwrap_err()
                .message
                .contains("arguments of f")
        );
    }
}
