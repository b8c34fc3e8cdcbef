//! Token usage of a run: the sum over its new model messages. The server reports no total.

use std::collections::BTreeMap;

use forge_adapter_api::Usage;
use forge_adapter_api::foreign_json::count;
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
            .reduce(|sum, next| sum.plus(&next))
            .unwrap_or_default()
    }
}

fn usage_of(usage: &Value) -> Option<Usage> {
    let input = count(&usage["input_tokens"]);
    let output = count(&usage["output_tokens"]);
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
        thinking_tokens: count(&written["reasoning"]),
        total_tokens: count(&usage["total_tokens"])
            .or_else(|| Some(input?.saturating_add(output?))),
        cache_read_tokens: count(&read["cache_read"]),
        cache_write_tokens: count(&read["cache_creation"]),
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
