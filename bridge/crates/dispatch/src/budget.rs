//! Usage of a dispatch over all its attempts, and the check against its budget.

use forge_adapter_api::request::Budget;
use forge_adapter_api::{ExecutionResult, Usage, foreign_json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::model_usage::{ModelShares, ModelUsage};

/// Tokens and cost; `None` means unknown. Stored with a dispatch between attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spent {
    #[serde(flatten)]
    pub usage: Usage,
    pub cost_usd: Option<f64>,
}

impl Spent {
    /// Reads totals from event data or a result; a value that is not a valid count becomes `None`.
    pub fn read(usage: Option<&Value>, cost: Option<&Value>) -> Self {
        let count = |name: &str| foreign_json::count(usage?.get(name)?);
        Self {
            usage: Usage {
                input_tokens: count("inputTokens"),
                output_tokens: count("outputTokens"),
                thinking_tokens: count("thinkingTokens"),
                total_tokens: count("totalTokens"),
                cache_read_tokens: count("cacheReadTokens"),
                cache_write_tokens: count("cacheWriteTokens"),
            },
            cost_usd: cost.and_then(foreign_json::amount),
        }
    }

    /// Input plus output tokens; if either is unknown, the total, else the known one.
    fn tokens(&self) -> Option<u64> {
        let Usage {
            input_tokens,
            output_tokens,
            total_tokens,
            ..
        } = self.usage;
        match (input_tokens, output_tokens) {
            (Some(input), Some(output)) => Some(input.saturating_add(output)),
            (one, other) => total_tokens.or(one).or(other),
        }
    }

    /// The sum; a member that is unknown on one side is that of the other.
    pub(super) fn plus(&self, other: &Self) -> Self {
        self.combine(other, u64::saturating_add, |a, b| a + b)
    }

    /// The difference, at least 0. `part` is known only where this is.
    pub(super) fn minus(&self, part: &Self) -> Self {
        self.combine(part, u64::saturating_sub, |a, b| (a - b).max(0.0))
    }

    /// True if no token is counted.
    pub(super) fn is_zero(&self) -> bool {
        let usage = &self.usage;
        let all = [
            usage.input_tokens,
            usage.output_tokens,
            usage.thinking_tokens,
            usage.total_tokens,
            usage.cache_read_tokens,
            usage.cache_write_tokens,
        ];
        all.into_iter().flatten().all(|count| count == 0)
    }

    /// Combines member by member; if one side is unknown, takes the other.
    fn combine(
        &self,
        other: &Self,
        tokens: fn(u64, u64) -> u64,
        cost: fn(f64, f64) -> f64,
    ) -> Self {
        let (a, b) = (&self.usage, &other.usage);
        Self {
            usage: Usage {
                input_tokens: either(a.input_tokens, b.input_tokens, tokens),
                output_tokens: either(a.output_tokens, b.output_tokens, tokens),
                thinking_tokens: either(a.thinking_tokens, b.thinking_tokens, tokens),
                total_tokens: either(a.total_tokens, b.total_tokens, tokens),
                cache_read_tokens: either(a.cache_read_tokens, b.cache_read_tokens, tokens),
                cache_write_tokens: either(a.cache_write_tokens, b.cache_write_tokens, tokens),
            },
            cost_usd: either(self.cost_usd, other.cost_usd, cost),
        }
    }
}

impl From<Usage> for Spent {
    fn from(usage: Usage) -> Self {
        Self {
            usage,
            cost_usd: None,
        }
    }
}

/// Usage of the current attempt on top of the earlier ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsageTotals {
    earlier: Spent,
    current: Spent,
    models: ModelShares,
}

/// Usage in the store.
#[derive(Default, Serialize, Deserialize)]
struct Stored<M> {
    #[serde(flatten)]
    spent: Spent,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    models: Option<M>,
}

impl UsageTotals {
    /// Starts an attempt after the usage of earlier ones, as written by [`UsageTotals::to_store`].
    pub fn after(stored: Option<&RawValue>) -> Self {
        // A record of another version that cannot be parsed counts as no usage.
        let stored: Stored<ModelShares> = stored
            .and_then(|stored| serde_json::from_str(stored.get()).ok())
            .unwrap_or_default();
        let mut totals = Self {
            earlier: stored.spent,
            current: Spent::default(),
            models: stored.models.unwrap_or_default(),
        };
        totals.begin_round();
        totals
    }

    /// Adds the data of a `usage` event: totals of this attempt so far.
    pub fn observe(&mut self, data: &Value) {
        self.raise(&Spent::read(Some(data), data.get("costUsd")));
    }

    /// Adds the totals of this attempt from its result.
    pub fn conclude(&mut self, result: &ExecutionResult) {
        self.raise(&Spent {
            usage: result.usage,
            cost_usd: result.cost_usd,
        });
    }

    /// Reads a `model.fallback` event: usage observed from now on is that of another model.
    pub fn turn(&mut self, data: &Value) {
        self.models.turn(data, &self.spent());
    }

    /// Begins another call: totals observed from now on are those of that call.
    pub fn begin_round(&mut self) {
        self.earlier = self.spent();
        self.current = Spent::default();
        self.models.begin_round(&self.earlier);
    }

    /// Usage of all attempts.
    pub fn spent(&self) -> Spent {
        self.earlier.plus(&self.current)
    }

    /// Usage of all attempts by model; empty if only one was asked.
    pub fn by_model(&self) -> Vec<ModelUsage> {
        self.models.of(&self.spent())
    }

    pub fn to_store(&self) -> Box<RawValue> {
        let stored = Stored {
            spent: self.spent(),
            models: Some(&self.models).filter(|models| !models.is_empty()),
        };
        to_raw_value(&stored).expect("it has only text keys")
    }

    /// Budget left for the next call, at least 0; `None` without a budget.
    pub fn left(&self, budget: Option<&Budget>) -> Option<Budget> {
        let spent = self.spent();
        budget.map(|budget| Budget {
            max_cost_usd: budget
                .max_cost_usd
                .map(|most| (most - spent.cost_usd.unwrap_or(0.0)).max(0.0)),
            max_tokens: budget
                .max_tokens
                .map(|most| most.saturating_sub(spent.tokens().unwrap_or(0))),
        })
    }

    /// Error text that names the exceeded limit and the usage; `None` within the budget or without one.
    pub fn exceeded(&self, budget: Option<&Budget>) -> Option<String> {
        let (budget, spent) = (budget?, self.spent());
        let tokens = spent.tokens().zip(budget.max_tokens);
        if let Some((used, most)) = tokens.filter(|(used, most)| used > most) {
            return Some(format!("used {used} tokens of {most} allowed"));
        }
        let cost = spent.cost_usd.zip(budget.max_cost_usd);
        let (used, most) = cost.filter(|(used, most)| used > most)?;
        Some(format!("cost {used} USD of {most} allowed"))
    }

    /// Raises the totals; they never shrink, even if the adapter reports less.
    fn raise(&mut self, totals: &Spent) {
        self.current = self.current.combine(totals, u64::max, f64::max);
    }
}

fn either<T>(a: Option<T>, b: Option<T>, both: fn(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(both(a, b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Data of `usage` events of several rounds, including invalid values.
    fn rounds() -> impl Strategy<Value = Vec<Vec<Value>>> {
        let count = || {
            prop_oneof![
                6 => (0..1_000_000_u64).prop_map(Value::from),
                1 => any::<u64>().prop_map(Value::from),
                1 => any::<f64>().prop_map(Value::from),
                1 => Just(Value::Null),
            ]
        };
        let cost = prop_oneof![4 => (0.0..10.0_f64).prop_map(Value::from), 1 => any::<f64>().prop_map(Value::from)];
        let totals = (count(), count(), count(), cost).prop_map(|(input, output, total, cost)| {
            json!({"inputTokens": input, "outputTokens": output, "totalTokens": total, "costUsd": cost})
        });
        prop::collection::vec(prop::collection::vec(totals, 0..5), 1..5)
    }

    proptest! {
        #[test]
        fn what_is_spent_is_the_sum_of_the_most_of_each_round(rounds in rounds()) {
            let mut meter = UsageTotals::default();
            let (mut tokens, mut cost) = (0_u64, 0.0_f64);
            for round in &rounds {
                let most = |name: &str| round.iter().filter_map(|data| foreign_json::count(&data[name])).max().unwrap_or(0);
                let costs = round.iter().filter_map(|data| foreign_json::amount(&data["costUsd"]));
                tokens = tokens.saturating_add(most("inputTokens"));
                cost += costs.fold(0.0, f64::max);
                let mut before = meter.spent();
                for data in round {
                    meter.observe(data);
                    let after = meter.spent();
                    prop_assert!(after.usage.input_tokens >= before.usage.input_tokens);
                    prop_assert!(after.cost_usd >= before.cost_usd);
                    before = after;
                }
                meter.begin_round();
            }
            let spent = meter.spent();
            prop_assert_eq!(spent.usage.input_tokens.unwrap_or(0), tokens);
            let found = spent.cost_usd.unwrap_or(0.0);
            prop_assert!(found == cost || (found - cost).abs() <= 1e-9 * cost, "{} {}", found, cost);
            let stored = UsageTotals::after(Some(&meter.to_store()));
            prop_assert_eq!(stored.spent().usage, spent.usage);
        }

        #[test]
        fn a_budget_is_either_exceeded_or_has_something_left(rounds in rounds(), most in 1..2_000_000_u64) {
            let budget = tokens(most);
            let mut meter = UsageTotals::default();
            let mut was_exceeded = false;
            for data in rounds.iter().flatten() {
                meter.observe(data);
                let exceeded = meter.exceeded(Some(&budget)).is_some();
                let used = meter.spent().tokens().unwrap_or(0);
                prop_assert_eq!(exceeded, used > most);
                let left = meter.left(Some(&budget)).unwrap().max_tokens.unwrap();
                prop_assert_eq!(left, most.saturating_sub(used));
                was_exceeded |= exceeded;
            }
            prop_assert!(rounds.concat().is_empty() || was_exceeded || meter.left(None).is_none());
        }
    }

    fn tokens(most: u64) -> Budget {
        Budget {
            max_tokens: Some(most),
            max_cost_usd: None,
        }
    }

    #[test]
    fn totals_of_an_attempt_replace_each_other_and_attempts_add_up() {
        let mut first = UsageTotals::default();
        first.observe(&json!({"inputTokens": 10, "outputTokens": 1, "costUsd": 0.01}));
        first.observe(&json!({"inputTokens": 10, "outputTokens": 5, "costUsd": 0.02}));
        let mut second = UsageTotals::after(Some(&first.to_store()));
        second.observe(&json!({"inputTokens": 20, "outputTokens": 5, "costUsd": 0.02}));
        let spent = second.spent();
        assert_eq!(spent.usage.input_tokens, Some(30));
        assert_eq!(spent.usage.output_tokens, Some(10));
        assert_eq!(spent.usage.thinking_tokens, None);
        assert_eq!(spent.cost_usd, Some(0.04));
        assert_eq!(spent.tokens(), Some(40));
    }

    #[test]
    fn totals_never_shrink() {
        let mut meter = UsageTotals::default();
        meter.observe(&json!({"inputTokens": 100}));
        meter.observe(&json!({"inputTokens": 0}));
        assert_eq!(meter.spent().usage.input_tokens, Some(100));
    }

    #[test]
    fn a_budget_holds_for_counts_in_any_form() {
        for count in [json!(101), json!(101.0), json!("101")] {
            let mut meter = UsageTotals::default();
            meter.observe(&json!({"inputTokens": count}));
            assert!(meter.exceeded(Some(&tokens(100))).is_some(), "{count}");
        }
    }

    #[test]
    fn what_is_no_count_is_not_known() {
        for data in [
            json!(null),
            json!([]),
            json!({"inputTokens": -1, "costUsd": -0.5}),
            json!({"inputTokens": "many", "costUsd": "free"}),
            json!({"inputTokens": 1.5, "costUsd": null}),
            json!({"inputTokens": 1e300}),
        ] {
            let mut meter = UsageTotals::default();
            meter.observe(&data);
            assert_eq!(meter.spent(), Spent::default(), "{data}");
        }
    }

    #[test]
    fn a_budget_is_exceeded_above_its_bound() {
        let money = Budget {
            max_cost_usd: Some(0.5),
            max_tokens: None,
        };
        for (budget, data, exceeded) in [
            (
                Some(tokens(10)),
                json!({"inputTokens": 6, "outputTokens": 4}),
                false,
            ),
            (
                Some(tokens(10)),
                json!({"inputTokens": 6, "outputTokens": 5}),
                true,
            ),
            (Some(tokens(10)), json!({"totalTokens": 11}), true),
            (
                Some(tokens(10)),
                json!({"inputTokens": 1, "outputTokens": 1, "totalTokens": 99}),
                false,
            ),
            (Some(tokens(10)), json!({"outputTokens": 11}), true),
            (Some(tokens(10)), json!({"costUsd": 99}), false),
            (Some(money), json!({"costUsd": 0.5}), false),
            (Some(money), json!({"costUsd": 0.51}), true),
            (None, json!({"inputTokens": 99_999}), false),
        ] {
            let mut meter = UsageTotals::default();
            meter.observe(&data);
            assert_eq!(
                meter.exceeded(budget.as_ref()).is_some(),
                exceeded,
                "{data}"
            );
        }
    }

    #[test]
    fn what_is_left_is_never_negative() {
        let mut meter = UsageTotals::default();
        meter.observe(&json!({"inputTokens": 6, "outputTokens": 1}));
        assert_eq!(meter.left(Some(&tokens(10))), Some(tokens(3)));
        assert_eq!(meter.left(Some(&tokens(5))), Some(tokens(0)));
        assert_eq!(meter.left(None), None);
    }

    #[test]
    fn results_count_like_events() {
        let mut meter = UsageTotals::default();
        meter.observe(&json!({"inputTokens": 5}));
        meter.conclude(&ExecutionResult {
            usage: Usage {
                input_tokens: Some(7),
                output_tokens: Some(2),
                ..Usage::default()
            },
            cost_usd: Some(0.5),
            ..ExecutionResult::ok("")
        });
        assert_eq!(meter.spent().tokens(), Some(9));
        assert_eq!(meter.spent().cost_usd, Some(0.5));
    }
}
