//! Usage by model, for dispatches whose adapter turned from one model to another (`model.fallback`). The shares add up
//! to the usage of the dispatch.

use forge_adapter_api::Usage;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::budget::Spent;

/// Maximum number of models; the usage of further ones is added to the last.
const MOST_MODELS: usize = 16;
/// Maximum bytes of a name, a reason and an error; longer ones are cut.
const TEXT_BYTES: usize = 512;

/// Share of one model in the usage of a dispatch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelUsage {
    /// Name by which the adapter asked for it; `default` if it named none.
    pub model: String,
    #[serde(flatten)]
    pub usage: Usage,
    /// Class of the failure after which the next model was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Shares of the models so far; empty until an adapter turns to another one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelShares {
    /// In the order in which they were first asked.
    models: Vec<ModelUsage>,
    /// Position of the model that is asked now.
    current: usize,
}

impl ModelShares {
    pub(super) fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    /// Reads a `model.fallback` event; `total` is the usage of the dispatch so far.
    pub(super) fn turn(&mut self, data: &Value, total: &Spent) {
        let text = |name: &str| data.get(name).and_then(Value::as_str).map(cut);
        let Some(to) = text("to") else {
            return;
        };
        self.current = self.position(text("from").unwrap_or_else(|| "default".to_owned()));
        self.settle(total);
        let left = &mut self.models[self.current];
        (left.reason, left.error) = (text("reason"), text("error"));
        self.current = self.position(to);
    }

    /// Begins another call of the adapter, which asks the first model again.
    pub(super) fn begin_round(&mut self, total: &Spent) {
        self.settle(total);
        self.current = 0;
    }

    /// All shares of this total; the model that was asked last is the last one.
    pub(super) fn of(&self, total: &Spent) -> Vec<ModelUsage> {
        let mut all = self.clone();
        all.settle(total);
        if !all.models.is_empty() {
            all.models[all.current..].rotate_left(1);
        }
        all.models
    }

    /// Adds the usage that has no model yet to the current one.
    fn settle(&mut self, total: &Spent) {
        let shares = self.models.iter().map(|one| Spent::from(one.usage));
        let rest = shares.fold(*total, |rest, share| rest.minus(&share));
        // No rest means that the current model reported nothing, not that it used nothing.
        if let Some(current) = self
            .models
            .get_mut(self.current)
            .filter(|_| !rest.is_zero())
        {
            current.usage = Spent::from(current.usage).plus(&rest).usage;
        }
    }

    fn position(&mut self, model: String) -> usize {
        let known = self.models.iter().position(|one| one.model == model);
        known.unwrap_or_else(|| {
            if self.models.len() < MOST_MODELS {
                self.models.push(ModelUsage {
                    model,
                    usage: Usage::default(),
                    reason: None,
                    error: None,
                });
            }
            self.models.len() - 1
        })
    }
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::budget::UsageTotals;

    fn used(input: u64) -> Value {
        json!({"inputTokens": input, "outputTokens": 1})
    }

    fn turned(from: Option<&str>, to: &str) -> Value {
        json!({"from": from, "to": to, "reason": "overloaded", "error": "no room"})
    }

    /// Names, input tokens and reasons.
    fn shares(totals: &UsageTotals) -> Vec<(String, Option<u64>, bool)> {
        let all = totals.by_model().into_iter();
        all.map(|one| (one.model, one.usage.input_tokens, one.reason.is_some()))
            .collect()
    }

    #[test]
    fn shares_add_up_over_fallbacks_rounds_and_attempts() {
        let mut totals = UsageTotals::default();
        totals.observe(&used(1));
        assert_eq!(shares(&totals), []);
        totals.begin_round();
        totals.observe(&used(2));
        totals.turn(&turned(Some("a"), "b"));
        totals.observe(&used(12));
        let expected = [("a", 3, true), ("b", 10, false)];
        let named = |all: &[(&str, u64, bool)]| -> Vec<_> {
            let all = all.iter();
            all.map(|(model, input, left)| ((*model).to_owned(), Some(*input), *left))
                .collect()
        };
        assert_eq!(shares(&totals), named(&expected));
        totals.begin_round();
        totals.observe(&used(100));
        let expected = [("b", 10, false), ("a", 103, true)];
        assert_eq!(shares(&totals), named(&expected));

        let mut again = UsageTotals::after(Some(&totals.to_store()));
        again.observe(&used(1000));
        again.turn(&turned(Some("a"), "c"));
        again.observe(&used(5000));
        let expected = [("a", 1103, true), ("b", 10, false), ("c", 4000, false)];
        assert_eq!(shares(&again), named(&expected));
        let sum: u64 = again
            .by_model()
            .iter()
            .map(|one| one.usage.input_tokens.unwrap())
            .sum();
        assert_eq!(again.spent().usage.input_tokens, Some(sum));
    }

    #[test]
    fn models_are_bounded_and_garbage_is_ignored() {
        let mut totals = UsageTotals::default();
        for data in [json!(5), json!({}), json!({"to": 7})] {
            totals.turn(&data);
        }
        assert_eq!(shares(&totals), []);
        totals.turn(&turned(None, &"x".repeat(5000)));
        let all = totals.by_model();
        assert_eq!(
            (all[0].model.as_str(), all[1].model.len()),
            ("default", TEXT_BYTES)
        );
        for n in 0..100 {
            totals.turn(&turned(None, &n.to_string()));
        }
        assert_eq!(totals.by_model().len(), MOST_MODELS);
    }
}
