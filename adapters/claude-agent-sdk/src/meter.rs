//! Usage of a run. The program's cost and `modelUsage` are cumulative over the session, also across resume and fork, so
//! only per-turn figures are added up.

use std::collections::BTreeMap;

use forge_adapter_api::Usage;
use forge_adapter_api::foreign_json::{count, read_amount, read_count};
use serde::Deserialize;
use serde_json::Value;

use crate::transcript::ResultLine;

/// Usage of one model in a turn, subagents included.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ModelUsage {
    #[serde(deserialize_with = "read_count")]
    input_tokens: Option<u64>,
    #[serde(deserialize_with = "read_count")]
    output_tokens: Option<u64>,
    #[serde(deserialize_with = "read_count")]
    cache_read_input_tokens: Option<u64>,
    #[serde(deserialize_with = "read_count")]
    cache_creation_input_tokens: Option<u64>,
    #[serde(deserialize_with = "read_count")]
    thinking_tokens: Option<u64>,
    #[serde(rename = "costUSD", deserialize_with = "read_amount")]
    cost_usd: Option<f64>,
}

#[derive(Default)]
pub(crate) struct Meter {
    /// Usage of all turns.
    settled: Usage,
    /// Cost of all turns; unknown once any part of it is unknown.
    cost: Cost,
    /// Calls of the main thread since the last result, from the stream; `None` without a call.
    live: Option<Usage>,
    /// Output tokens of the streamed call so far; the program reports a running total.
    call_output: u64,
    /// Cumulative cost of the session at this process's last result, in US dollars.
    cumulative: Option<f64>,
}

#[derive(Clone, Copy, Default)]
enum Cost {
    #[default]
    Nothing,
    Known(f64),
    Unknown,
}

impl Meter {
    /// Starts a streamed call of the main thread, with `usage` of its `message_start`.
    pub(crate) fn call_begins(&mut self, usage: &Value) {
        let call = Usage {
            output_tokens: None,
            ..of_main_thread(usage)
        };
        self.live = Some(self.live.unwrap_or_default().plus(&call));
        self.call_output = 0;
        self.call_goes_on(usage);
    }

    /// Updates the streamed call with `usage` of a `message_delta`.
    pub(crate) fn call_goes_on(&mut self, usage: &Value) {
        if let Some(output) = count(&usage["output_tokens"]) {
            let more = Usage {
                output_tokens: Some(output.saturating_sub(self.call_output)),
                ..Usage::default()
            };
            self.live = Some(self.live.unwrap_or_default().plus(&more));
            self.call_output = self.call_output.max(output);
        }
    }

    /// Ends a turn: its reported figures replace those counted from the stream.
    pub(crate) fn turn_ends(&mut self, result: &ResultLine) {
        let before = std::mem::replace(&mut self.cumulative, result.total_cost_usd);
        self.live = None;
        match &result.model_usage_since_last_result {
            Some(models) => self.settle(models),
            None => {
                // Older programs report less: the main thread's tokens, and a cumulative cost, whose difference is
                // unknown for the first result of a resumed session.
                self.settled = self.settled.plus(&of_main_thread(&result.usage));
                let cost = match (before, result.total_cost_usd) {
                    (Some(before), Some(now)) => Some((now - before).max(0.0)),
                    (None, Some(_) | None) | (Some(_), None) => None,
                };
                self.cost.add(cost);
            }
        }
    }

    fn settle(&mut self, models: &BTreeMap<String, ModelUsage>) {
        self.cost.add(Some(0.0));
        if models.is_empty() {
            let nothing = usage_of(Some(0), Some(0), Some(0), Some(0), None);
            self.settled = self.settled.plus(&nothing);
        }
        for model in models.values() {
            self.settled = self.settled.plus(&usage_of(
                model.input_tokens,
                model.output_tokens,
                model.cache_read_input_tokens,
                model.cache_creation_input_tokens,
                model.thinking_tokens,
            ));
            self.cost.add(model.cost_usd);
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let usage = self.settled.plus(&self.live.unwrap_or_default());
        let total = usage.input_tokens.zip(usage.output_tokens);
        Usage {
            total_tokens: total.map(|(input, output)| input.saturating_add(output)),
            ..usage
        }
    }

    /// Cost in US dollars; `None` while there are calls without a reported cost.
    pub(crate) fn cost_usd(&self) -> Option<f64> {
        match self.cost {
            Cost::Known(cost) if self.live.is_none() => Some(cost),
            Cost::Known(_) | Cost::Nothing | Cost::Unknown => None,
        }
    }
}

impl Cost {
    fn add(&mut self, cost: Option<f64>) {
        *self = match (*self, cost) {
            (Cost::Nothing, Some(cost)) => Cost::Known(cost),
            (Cost::Known(before), Some(cost)) => Cost::Known(before + cost),
            (Cost::Unknown, _) | (_, None) => Cost::Unknown,
        };
    }
}

fn of_main_thread(usage: &Value) -> Usage {
    let named = |name: &str| count(&usage[name]);
    usage_of(
        named("input_tokens"),
        named("output_tokens"),
        named("cache_read_input_tokens"),
        named("cache_creation_input_tokens"),
        count(&usage["output_tokens_details"]["thinking_tokens"]),
    )
}

/// The program's `input` has no cached tokens in it.
fn usage_of(
    input: Option<u64>,
    output: Option<u64>,
    read: Option<u64>,
    write: Option<u64>,
    thinking: Option<u64>,
) -> Usage {
    let cached = read.unwrap_or(0).saturating_add(write.unwrap_or(0));
    Usage {
        input_tokens: input.map(|input| input.saturating_add(cached)),
        output_tokens: output,
        thinking_tokens: thinking,
        total_tokens: None,
        cache_read_tokens: read,
        cache_write_tokens: write,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn result(line: Value) -> ResultLine {
        serde_json::from_value(line).unwrap()
    }

    #[test]
    fn turns_add_up_and_the_cumulative_figures_do_not_count() {
        let mut meter = Meter::default();
        for cumulative in [0.5, 0.75] {
            meter.turn_ends(&result(json!({
                "subtype": "success", "is_error": false, "total_cost_usd": cumulative,
                "modelUsage": {"m": {"inputTokens": 9999}},
                "model_usage_since_last_result": {
                    "main": {"inputTokens": 25, "outputTokens": 12, "cacheReadInputTokens": 7,
                             "cacheCreationInputTokens": 3, "costUSD": 0.125, "thinkingTokens": 1},
                    "sub": {"inputTokens": 5, "outputTokens": 1, "costUSD": 0.0625},
                },
            })));
        }
        let usage = meter.usage();
        assert_eq!(
            (usage.input_tokens, usage.output_tokens, usage.total_tokens),
            (Some(80), Some(26), Some(106))
        );
        assert_eq!(
            (
                usage.cache_read_tokens,
                usage.cache_write_tokens,
                usage.thinking_tokens
            ),
            (Some(14), Some(6), Some(2))
        );
        assert_eq!(meter.cost_usd(), Some(0.375));
    }

    #[test]
    fn a_streamed_call_counts_until_its_turn_is_told_and_has_no_price() {
        let mut meter = Meter::default();
        assert_eq!(meter.usage(), Usage::default());
        meter.call_begins(
            &json!({"input_tokens": 25, "cache_read_input_tokens": 7, "output_tokens": 1}),
        );
        meter.call_goes_on(&json!({"output_tokens": 12}));
        assert_eq!(
            (meter.usage().input_tokens, meter.usage().output_tokens),
            (Some(32), Some(12))
        );
        assert_eq!(meter.cost_usd(), None);
        meter.turn_ends(&result(json!({"subtype": "success", "is_error": false,
            "model_usage_since_last_result": {"m": {"inputTokens": 25, "outputTokens": 12, "costUSD": 0.5}}})));
        assert_eq!(
            (meter.usage().total_tokens, meter.cost_usd()),
            (Some(37), Some(0.5))
        );
    }

    #[test]
    fn an_older_program_gives_tokens_and_a_cost_only_as_a_difference() {
        let mut meter = Meter::default();
        let line = |cost: f64| {
            result(
                json!({"subtype": "success", "is_error": false, "total_cost_usd": cost,
            "usage": {"input_tokens": 10, "output_tokens": 2}}),
            )
        };
        meter.turn_ends(&line(0.5));
        assert_eq!(
            (meter.usage().total_tokens, meter.cost_usd()),
            (Some(12), None)
        );
    }

    #[test]
    fn floats_and_texts_are_counts_and_what_is_no_count_is_not_known() {
        let mut meter = Meter::default();
        meter.call_begins(&json!({"input_tokens": 25.0, "output_tokens": "1"}));
        meter.call_goes_on(&json!({"output_tokens": 12.0}));
        assert_eq!(meter.usage().total_tokens, Some(37));
        meter.turn_ends(&result(json!({"model_usage_since_last_result": {
            "m": {"inputTokens": 3.0, "outputTokens": null, "costUSD": "0.5"}}})));
        let usage = meter.usage();
        assert_eq!(
            (usage.input_tokens, usage.output_tokens, usage.total_tokens),
            (Some(3), None, None)
        );
        assert_eq!(meter.cost_usd(), Some(0.5));
    }
}
