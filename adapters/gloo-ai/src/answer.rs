//! Accumulates a stream of the platform: chunks in the OpenAI format with the platform's own members. The first event
//! of a grounded answer can hold citations in place of choices.

use forge_adapter_api::foreign_json;
use forge_adapter_api::{AdapterError, AdapterEvent};
use forge_adapter_openai_client::{Completion, News};
use serde_json::{Map, Value, json};

/// Members on routing and grounding, passed on unchanged.
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
pub(crate) struct Answer {
    pub(crate) heard: Completion,
    /// Received members of [`KEPT`], in camel case, and `citations`.
    pub(crate) about: Map<String, Value>,
}

impl Answer {
    /// Adds one event of the stream; returns the adapter events to emit now.
    pub(crate) fn hear(&mut self, data: &str) -> Result<Vec<AdapterEvent>, AdapterError> {
        let chunk: Value = foreign_json::from_str(data).map_err(|error| {
            let text = format!("an event of the answer is not JSON: {error}");
            AdapterError::new("upstream_error", text).retryable()
        })?;
        for name in KEPT {
            if let Some(value) = chunk.get(name).filter(|value| !value.is_null()) {
                self.about.insert(camel(name), value.clone());
            }
        }
        if chunk.get("choices").is_none() && chunk.get("error").is_none() {
            // The format of citations is not documented.
            let citations = chunk.get("citations").unwrap_or(&chunk);
            let data = json!({ "citations": citations });
            self.about.insert("citations".to_owned(), citations.clone());
            return Ok(vec![AdapterEvent::new("gloo.citations").with(data)]);
        }
        let news = self.heard.chunk(&chunk)?;
        let told = news.into_iter().filter_map(|news| match news {
            News::Text(_) | News::Thought(_) => Some(news.into()),
            // Emitted later, together with the cost.
            News::Usage(_) => None,
        });
        Ok(told.collect())
    }
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
    use super::*;

    #[test]
    fn members_of_the_platform_are_kept_by_whatever_event_brings_them() {
        let mut answer = Answer::default();
        let citations = json!({"type": "sources", "items": [1]});
        let told: Vec<_> = [
            citations.clone(),
            json!({"choices": [], "routing_tier": "tier_1"}),
            json!({"model": "m", "choices": [{"delta": {"content": "a"}}], "tradition": null}),
            json!({"choices": [{"delta": {}, "finish_reason": "stop"}], "sources_returned": 2}),
            json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}),
        ]
        .iter()
        .flat_map(|event| answer.hear(&event.to_string()).unwrap())
        .map(|event| (event.kind, event.data.unwrap()))
        .collect();
        assert_eq!(
            json!(told),
            json!([
                ["gloo.citations", {"citations": citations}],
                ["assistant.text", {"delta": "a"}],
            ])
        );
        assert_eq!(
            Value::Object(answer.about),
            json!({"citations": citations, "routingTier": "tier_1", "sourcesReturned": 2})
        );
        assert_eq!(answer.heard.finish.as_deref(), Some("stop"));
    }

    #[test]
    fn what_is_malformed_is_an_error_of_the_platform() {
        for (data, said) in [
            ("{\"choices\": [{", "not JSON"),
            ("{\"error\": \"gone\"}", "gone"),
            ("{\"error\": {\"message\": \"gone\"}}", "gone"),
        ] {
            let error = Answer::default().hear(data).unwrap_err();
            assert_eq!(error.code, "upstream_error");
            assert!(error.message.contains(said), "{}", error.message);
        }
    }
}
