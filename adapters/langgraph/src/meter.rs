//! Token usage of a run: the sum over its new model messages. The server reports no total.

use std::collections::BTreeMap;

use forge_adapter_api::Usage;
use serde_json::Value;

use crate::thread::is_the_models;

/// Usage by message id, because a message can arrive in pieces, repeatedly, and again in the state.
#[derive(Default)]
pub(crate) struct Meter {
    messages: BTreeMap<String, Usage>,
}

impl Meter {
    /// Records the usage of a message or of a piece; only one piece of a message has figures.
    pub(crate) fn hear(&mut self, message: &Value) {
        if let (Some(id), Some(usage), true) = (
            message["id"].as_str(),
            usage_of(&message["usage_metadata"]),
            is_the_models(message),
        ) {
            self.messages.insert(id.to_owned(), usage);
        }
    }

    /// The sum; all fields `None` while no message has reported usage.
    pub(crate) fn usage(&self) -> Usage {
        self.messages
            .values()
            .copied()
            .reduce(|sum, next| Usage {
                input_tokens: add(sum.input_tokens, next.input_tokens),
                output_tokens: add(sum.output_tokens, next.output_tokens),
                thinking_tokens: add(sum.thinking_tokens, next.thinking_tokens),
                total_tokens: add(sum.total_tokens, next.total_tokens),
                cache_read_tokens: add(sum.cache_read_tokens, next.cache_read_tokens),
                cache_write_tokens: add(sum.cache_write_tokens, next.cache_write_tokens),
            })
            .unwrap_or_default()
    }
}

fn add(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (one, None) | (None, one) => one,
    }
}

fn usage_of(usage: &Value) -> Option<Usage> {
    let input = usage["input_tokens"].as_u64();
    let output = usage["output_tokens"].as_u64();
    if input.is_none() && output.is_none() {
        return None;
    }
    let (read, written) = (
        &usage["input_token_details"],
        &usage["output_token_details"],
    );
    Some(Usage {
        input_tokens: input,
        output_tokens: output,
        thinking_tokens: written["reasoning"].as_u64(),
        total_tokens: usage["total_tokens"].as_u64().or(add(input, output)),
        cache_read_tokens: read["cache_read"].as_u64(),
        cache_write_tokens: read["cache_creation"].as_u64(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(id: &str, usage: &Value) -> Value {
        json!({"type": "ai", "id": id, "usage_metadata": usage})
    }

    #[test]
    fn a_message_counts_once_however_often_it_comes() {
        let used = json!({
            "input_tokens": 31, "output_tokens": 9, "total_tokens": 40,
            "input_token_details": {"cache_read": 5}, "output_token_details": {"reasoning": 2},
        });
        let mut meter = Meter::default();
        for id in ["a", "a", "b"] {
            meter.hear(&message(id, &used));
            meter.hear(&message(id, &Value::Null));
        }
        meter.hear(&json!({"type": "human", "id": "c", "usage_metadata": used}));
        let usage = meter.usage();
        assert_eq!(
            (usage.input_tokens, usage.output_tokens, usage.total_tokens),
            (Some(62), Some(18), Some(80))
        );
        assert_eq!(
            (
                usage.cache_read_tokens,
                usage.cache_write_tokens,
                usage.thinking_tokens
            ),
            (Some(10), None, Some(4))
        );
    }

    #[test]
    fn what_was_not_reported_is_unknown() {
        let mut meter = Meter::default();
        meter.hear(&message("a", &Value::Null));
        meter.hear(&message("b", &json!({})));
        assert_eq!(meter.usage(), Usage::default());
    }
}
