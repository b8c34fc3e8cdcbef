//! Usage of a run. The program's cost and `modelUsage` are cumulative over the session, also across resume and fork, so
//! only per-turn figures are added up.

use std::collections::BTreeMap;

use forge_adapter_api::Usage;
use serde::Deserialize;
use serde_json::Value;

use crate::transcript::ResultLine;

/// Usage of one model in a turn, subagents included.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ModelUsage {
    input_tokens: u64,
    output_tokens: u64,
    cache_read_input_tokens: u64,
    cache_creation_input_tokens: u64,
    thinking_tokens: Option<u64>,
    #[serde(rename = "costUSD")]
    cost_usd: Option<f64>,
}

#[derive(Default)]
pub(crate) struct Meter {
    settled: Counts,
    /// Cost of all turns; unknown once any part of it is unknown.
    cost: Cost,
    /// Calls of the main thread since the last result, from the stream.
    live: Counts,
    /// Output tokens of the streamed call so far; the program reports a running total.
    call_output: u64,
    /// Cumulative cost of the session at this process's last result, in US dollars.
    cumulative: Option<f64>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    known: bool,
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
    thinking: Option<u64>,
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
        let count = |name: &str| usage[name].as_u64().unwrap_or_default();
        let (read, write) = (
            count("cache_read_input_tokens"),
            count("cache_creation_input_tokens"),
        );
        self.live.known = true;
        self.live.input += count("input_tokens") + read + write;
        self.live.cache_read += read;
        self.live.cache_write += write;
        self.call_output = 0;
        self.call_goes_on(usage);
    }

    /// Updates the streamed call with `usage` of a `message_delta`.
    pub(crate) fn call_goes_on(&mut self, usage: &Value) {
        if let Some(output) = usage["output_tokens"].as_u64() {
            self.live.output += output.saturating_sub(self.call_output);
            self.call_output = self.call_output.max(output);
        }
    }

    /// Ends a turn: its reported figures replace those counted from the stream.
    pub(crate) fn turn_ends(&mut self, result: &ResultLine) {
        let before = std::mem::replace(&mut self.cumulative, result.total_cost_usd);
        self.live = Counts::default();
        match &result.model_usage_since_last_result {
            Some(models) => self.settle(models),
            None => {
                // Older programs report less: the main thread's tokens, and a cumulative cost, whose difference is
                // unknown for the first result of a resumed session.
                self.settled.add(&of_main_thread(&result.usage));
                let cost = match (before, result.total_cost_usd) {
                    (Some(before), Some(now)) => Some((now - before).max(0.0)),
                    (None, Some(_) | None) | (Some(_), None) => None,
                };
                self.cost.add(cost);
            }
        }
    }

    fn settle(&mut self, models: &BTreeMap<String, ModelUsage>) {
        self.settled.known = true;
        self.cost.add(Some(0.0));
        for model in models.values() {
            self.settled.add(&Counts {
                known: true,
                input: model.input_tokens
                    + model.cache_read_input_tokens
                    + model.cache_creation_input_tokens,
                output: model.output_tokens,
                cache_read: model.cache_read_input_tokens,
                cache_write: model.cache_creation_input_tokens,
                thinking: model.thinking_tokens,
            });
            self.cost.add(model.cost_usd);
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let mut counts = self.settled;
        counts.add(&self.live);
        if !counts.known {
            return Usage::default();
        }
        Usage {
            input_tokens: Some(counts.input),
            output_tokens: Some(counts.output),
            thinking_tokens: counts.thinking,
            total_tokens: Some(counts.input + counts.output),
            cache_read_tokens: Some(counts.cache_read),
            cache_write_tokens: Some(counts.cache_write),
        }
    }

    /// Cost in US dollars; `None` while there are calls without a reported cost.
    pub(crate) fn cost_usd(&self) -> Option<f64> {
        match self.cost {
            Cost::Known(cost) if !self.live.known => Some(cost),
            Cost::Known(_) | Cost::Nothing | Cost::Unknown => None,
        }
    }
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.known |= other.known;
        self.input += other.input;
        self.output += other.output;
        self.cache_read += other.cache_read;
        self.cache_write += other.cache_write;
        if let Some(thinking) = other.thinking {
            self.thinking = Some(self.thinking.unwrap_or_default() + thinking);
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

fn of_main_thread(usage: &Value) -> Counts {
    let count = |name: &str| usage[name].as_u64().unwrap_or_default();
    let (read, write) = (
        count("cache_read_input_tokens"),
        count("cache_creation_input_tokens"),
    );
    Counts {
        known: usage.is_object(),
        input: count("input_tokens") + read + write,
        output: count("output_tokens"),
        cache_read: read,
        cache_write: write,
        thinking: usage["output_tokens_details"]["thinking_tokens"].as_u64(),
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
}
