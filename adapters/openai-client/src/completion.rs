//! Accumulates an answer from the chunks of a stream, or from a whole answer.

use forge_adapter_api::{AdapterError, AdapterEvent, ExecutionResult, Usage};
use forge_adapter_transport::retry::Retries;
use serde_json::{Value, json};

use crate::api_error;
use crate::calls::Calls;
use crate::names::Names;
use crate::usage;

/// Limit of text, thoughts and arguments together.
const MOST_BYTES: usize = 32 << 20;

/// An answer.
#[derive(Debug, Default)]
pub struct Completion {
    /// Text so far.
    pub text: String,
    /// `usage` of the server, unchanged.
    pub usage: Value,
    /// `usage` of earlier tries, which failed before any output.
    earlier: Vec<Value>,
    /// The model that answered.
    pub model: Option<String>,
    /// Finish reason; `None` until the answer has ended.
    pub finish: Option<String>,
    /// Text of a refusal; empty if there is none.
    pub refusal: String,
    /// The first chunk, or the whole answer, for members specific to a provider.
    pub first: Value,
    calls: Calls,
    bytes: usize,
}

/// Change to emit as an event at once.
#[derive(Clone, Debug, PartialEq)]
pub enum News {
    /// A piece of the answer.
    Text(String),
    /// A piece of a thought.
    Thought(String),
    /// Token counts.
    Usage(Usage),
}

impl From<News> for AdapterEvent {
    fn from(news: News) -> Self {
        match news {
            News::Text(delta) => AdapterEvent::text(delta),
            News::Thought(delta) => {
                AdapterEvent::new("assistant.thinking").with(json!({ "delta": delta }))
            }
            News::Usage(usage) => AdapterEvent::usage(&usage, None),
        }
    }
}

impl Completion {
    /// Adds a chunk of a stream, or a whole answer, whose `message` is read like a `delta`.
    pub fn chunk(&mut self, chunk: &Value) -> Result<Vec<News>, AdapterError> {
        if let Some(error) = api_error::said_in(chunk) {
            return Err(api_error::read(error));
        }
        if self.first.is_null() {
            self.first = chunk.clone();
        }
        if let Some(model) = chunk["model"].as_str().filter(|model| !model.is_empty()) {
            self.model = Some(model.to_owned());
        }
        let mut news = Vec::new();
        let choice = &chunk["choices"][0];
        let delta = choice.get("delta").unwrap_or(&choice["message"]);
        self.delta(delta, &mut news)?;
        if let Some(finish) = reason(&choice["finish_reason"]) {
            self.finish = Some(finish.to_owned());
            if let Some(error) = api_error::said_in(choice) {
                return Err(api_error::read(error));
            }
        }
        let used = &chunk["usage"];
        if used.is_object() && *used != self.usage {
            self.usage = used.clone();
            news.push(News::Usage(self.used()));
        }
        Ok(news)
    }

    fn delta(&mut self, delta: &Value, news: &mut Vec<News>) -> Result<(), AdapterError> {
        let piece = |name: &str| delta[name].as_str().filter(|text| !text.is_empty());
        if let Some(thought) = piece("reasoning_content").or_else(|| piece("reasoning")) {
            self.take(thought.len())?;
            news.push(News::Thought(thought.to_owned()));
        }
        if let Some(text) = piece("content") {
            self.say(text, news)?;
        }
        for part in delta["content"].as_array().into_iter().flatten() {
            self.part(part, news)?;
        }
        if let Some(refusal) = piece("refusal") {
            self.refuse(refusal)?;
        }
        if delta["function_call"].is_object() {
            // The form before `tool_calls`: one call, without an id.
            self.call(0, &json!({"index": 0, "function": delta["function_call"]}))?;
        }
        for (at, call) in delta["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .enumerate()
        {
            self.call(at, call)?;
        }
        Ok(())
    }

    fn say(&mut self, text: &str, news: &mut Vec<News>) -> Result<(), AdapterError> {
        self.take(text.len())?;
        self.text.push_str(text);
        news.push(News::Text(text.to_owned()));
        Ok(())
    }

    fn refuse(&mut self, text: &str) -> Result<(), AdapterError> {
        self.take(text.len())?;
        self.refusal.push_str(text);
        Ok(())
    }

    /// Adds a part of a content that is a list: text, a refusal, or thoughts in parts of their own.
    fn part(&mut self, part: &Value, news: &mut Vec<News>) -> Result<(), AdapterError> {
        if let Some(text) = part["text"].as_str().filter(|text| !text.is_empty()) {
            self.say(text, news)?;
        }
        if let Some(refusal) = part["refusal"].as_str() {
            self.refuse(refusal)?;
        }
        let thoughts = match &part["thinking"] {
            Value::String(thought) => thought.clone(),
            parts => {
                let parts = parts.as_array().into_iter().flatten();
                parts.filter_map(|part| part["text"].as_str()).collect()
            }
        };
        if !thoughts.is_empty() {
            self.take(thoughts.len())?;
            news.push(News::Thought(thoughts));
        }
        Ok(())
    }

    fn call(&mut self, place: usize, piece: &Value) -> Result<(), AdapterError> {
        let bytes = self.calls.add(place, piece)?;
        self.take(bytes)
    }

    fn take(&mut self, bytes: usize) -> Result<(), AdapterError> {
        self.bytes += bytes;
        match self.bytes > MOST_BYTES {
            true => Err(too_much(&format!("more than {MOST_BYTES} bytes"))),
            false => Ok(()),
        }
    }

    /// True once a text, a thought, a refusal or a call has begun.
    fn has_output(&self) -> bool {
        self.bytes > 0
    }

    /// `usage` of all tries, unchanged.
    pub fn usages(&self) -> impl Iterator<Item = &Value> {
        self.earlier.iter().chain([&self.usage])
    }

    /// Token counts of all tries.
    pub fn used(&self) -> Usage {
        let tries = self.usages().map(usage::of);
        tries.fold(Usage::default(), |all, one| all.plus(&one))
    }

    /// Ends a try: returns its end, or `None` after the wait before the next one. A try is repeated only if nothing of
    /// an answer has arrived; of a repeated one only the usage is kept.
    pub async fn ended(
        &mut self,
        tried: Result<(), AdapterError>,
        retries: &mut Retries<'_>,
    ) -> Option<Result<(), AdapterError>> {
        let failed = match tried {
            Ok(()) if self.finish.as_deref() == Some("error") => ended_with_error(),
            Ok(()) => return Some(Ok(())),
            Err(error) => error,
        };
        if self.has_output() {
            return Some(Err(failed));
        }
        if let Err(error) = retries.wait(failed).await {
            return Some(Err(error));
        }
        let used = std::mem::take(&mut self.usage);
        let mut earlier = std::mem::take(&mut self.earlier);
        earlier.extend(used.is_object().then_some(used));
        *self = Self {
            earlier,
            ..Self::default()
        };
        None
    }

    fn counted_output(&self) -> u64 {
        usage::of(&self.usage).output_tokens.unwrap_or_default()
    }

    /// The result of an answer that has ended.
    pub fn result(&self, names: &Names) -> ExecutionResult {
        if !self.refusal.is_empty() {
            return ExecutionResult::error("blocked_by_policy", self.refusal.as_str());
        }
        match self.finish.as_deref() {
            Some("length") => ExecutionResult::error(
                "max_tokens",
                "the answer reached its token limit before its end",
            ),
            Some("content_filter") => ExecutionResult::error(
                "blocked_by_policy",
                "the server's content filter blocked the answer",
            ),
            Some("error") => ended_with_error().into(),
            Some(_) | None if !self.has_output() && self.counted_output() > 0 => {
                let text = format!(
                    "the server counted {} output tokens, but sent no text, thought or tool call",
                    self.counted_output()
                );
                ExecutionResult::error("upstream_error", text)
            }
            Some(_) | None => match self.calls.whole(names) {
                Ok(tool_calls) => ExecutionResult {
                    tool_calls,
                    ..ExecutionResult::default()
                },
                Err(error) => error.into(),
            },
        }
    }
}

/// The reason for the end of an answer. Some servers send an empty text or `"null"` with each piece of an answer that goes
/// on.
pub fn reason(value: &Value) -> Option<&str> {
    value
        .as_str()
        .filter(|reason| !matches!(*reason, "" | "null"))
}

fn ended_with_error() -> AdapterError {
    let text = "the server ended the answer with an error";
    AdapterError::new("upstream_error", text).retryable()
}

fn too_much(what: &str) -> AdapterError {
    AdapterError::new("upstream_error", format!("the answer has {what}"))
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::request::Tool;

    use super::*;

    /// Events, text and result of the chunks in a recorded file.
    fn translated(chunks: &str) -> Value {
        let (mut heard, mut events, mut error) = (Completion::default(), Vec::new(), Value::Null);
        for line in chunks.lines() {
            match heard.chunk(&serde_json::from_str(line).unwrap()) {
                Ok(news) => events.extend(news.into_iter().map(AdapterEvent::from)),
                Err(failure) => error = json!(failure),
            }
        }
        let tools = ["find", "look"].map(|name| Tool {
            name: name.to_owned(),
            description: None,
            input_schema: json!({}),
        });
        let mut result = json!(heard.result(&Names::new(&tools)));
        result["usage"] = json!(usage::of(&heard.usage));
        json!({"events": events, "text": heard.text, "model": heard.model, "finish": heard.finish,
            "error": error, "result": result})
    }

    #[test]
    fn recorded_streams_become_events_and_results() {
        for (name, chunks) in [
            ("thinking", include_str!("../tests/golden/thinking.jsonl")),
            (
                "parallel_calls",
                include_str!("../tests/golden/parallel_calls.jsonl"),
            ),
            (
                "unnumbered_calls",
                include_str!("../tests/golden/unnumbered_calls.jsonl"),
            ),
            (
                "error_in_the_middle",
                include_str!("../tests/golden/error_in_the_middle.jsonl"),
            ),
            ("too_long", include_str!("../tests/golden/too_long.jsonl")),
            ("refused", include_str!("../tests/golden/refused.jsonl")),
            (
                "content_parts",
                include_str!("../tests/golden/content_parts.jsonl"),
            ),
            (
                "function_call",
                include_str!("../tests/golden/function_call.jsonl"),
            ),
            (
                "nothing_said",
                include_str!("../tests/golden/nothing_said.jsonl"),
            ),
            ("whole", include_str!("../tests/golden/whole.jsonl")),
            (
                "bad_arguments",
                include_str!("../tests/golden/bad_arguments.jsonl"),
            ),
        ] {
            insta::with_settings!({snapshot_path => "../tests/golden", prepend_module_to_snapshot => false}, {
                insta::assert_json_snapshot!(name, translated(chunks));
            });
        }
    }

    #[test]
    fn calls_and_bytes_are_bounded() {
        let mut heard = Completion::default();
        let mut last = Ok(Vec::new());
        for index in 0..=256 {
            last =
                heard.chunk(&json!({"choices": [{"delta": {"tool_calls": [{"index": index}]}}]}));
        }
        assert_eq!(last.unwrap_err().code, "upstream_error");
        let mut heard = Completion::default();
        let chunk = json!({"choices": [{"delta": {"content": "x".repeat(MOST_BYTES / 2 + 1)}}]});
        assert!(heard.chunk(&chunk).is_ok());
        assert!(heard.chunk(&chunk).is_err());
    }

    #[test]
    fn nonsense_is_no_panic() {
        for chunk in [
            json!(null),
            json!([]),
            json!({"choices": 7}),
            json!({"choices": [{"delta": {"tool_calls": 1}}]}),
            json!({"choices": [{"delta": {"tool_calls": [null, {"index": -1, "function": []}]}}]}),
            json!({"usage": {"prompt_tokens": -3}, "model": {}}),
        ] {
            assert!(Completion::default().chunk(&chunk).is_ok(), "{chunk}");
        }
    }
}
