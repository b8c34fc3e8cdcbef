//! What is counted of dispatches, by provider. A row is found by its name without a lock; what is counted
//! is then an atomic addition.

use forge_adapter_api::Usage;

use forge_base::metrics::{Counter, Histogram, OTHER, Table};

use super::normalise::Account;

/// Providers that have a row of their own.
const PROVIDERS: usize = 32;
/// Models of one provider that have a row of their own.
const MODELS: usize = 24;

/// Longer names of models are cut.
const NAME_BYTES: usize = 128;

/// How a dispatch may end, as far as it is told apart: without an error, with one of the bridge's codes,
/// with an adapter's own.
pub const ENDS: [&str; 19] = [
    "",
    "cancelled",
    "timeout",
    "stalled",
    "interrupted",
    "adapter_error",
    "adapter_panic",
    "adapter_crashed",
    "adapter_unavailable",
    "protocol_violation",
    "session_not_found",
    "input_required",
    "blocked_by_policy",
    "queue_timeout",
    "budget_exceeded",
    "output_invalid",
    "output_missing",
    "output_too_large",
    OTHER,
];

/// The kinds of tokens that are told apart.
pub const TOKENS: [&str; 5] = ["input", "output", "thinking", "cache_read", "cache_write"];

/// Money is counted in millionths.
pub const MICROS: f64 = 1e6;

#[derive(Debug)]
pub struct Meters {
    pub providers: Table<Provider>,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            providers: Table::new(PROVIDERS),
        }
    }
}

#[derive(Debug)]
pub struct Provider {
    pub accepted: Counter,
    /// By `ENDS`.
    finished: [Counter; ENDS.len()],
    /// Attempts that went back into the queue.
    pub requeued: Counter,
    /// From acceptance, or the time asked for, to the first start.
    pub queue_wait: Histogram,
    /// Of one attempt.
    pub execution: Histogram,
    /// From acceptance to the first thing that the adapter says.
    pub first_event: Histogram,
    pub events: Counter,
    pub events_dropped: Counter,
    pub tool_calls: Counter,
    pub models: Table<Model>,
}

impl Default for Provider {
    fn default() -> Self {
        Self {
            accepted: Counter::default(),
            finished: Default::default(),
            requeued: Counter::default(),
            queue_wait: Histogram::of_times(),
            execution: Histogram::of_times(),
            first_event: Histogram::of_times(),
            events: Counter::default(),
            events_dropped: Counter::default(),
            tool_calls: Counter::default(),
            models: Table::new(MODELS),
        }
    }
}

/// What one model was used for.
#[derive(Debug, Default)]
pub struct Model {
    /// By `TOKENS`.
    tokens: [Counter; TOKENS.len()],
    cost_micros: Counter,
}

impl Provider {
    /// One dispatch has ended.
    pub fn finish(&self, error_code: Option<&str>) {
        let code = error_code.unwrap_or_default();
        let end = ENDS.iter().position(|end| *end == code);
        self.finished[end.unwrap_or(ENDS.len() - 1)].inc();
    }

    /// How many ended how.
    pub fn finished(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ENDS.into_iter().zip(self.finished.iter().map(Counter::get))
    }

    /// What a dispatch used, all attempts together.
    pub(super) fn spend(&self, account: &Account, asked: Option<&str>) {
        let model = account.model.as_deref().or(asked).unwrap_or("unknown");
        let Usage {
            input_tokens,
            output_tokens,
            thinking_tokens,
            total_tokens: _,
            cache_read_tokens,
            cache_write_tokens,
        } = account.usage;
        let tokens = [
            input_tokens,
            output_tokens,
            thinking_tokens,
            cache_read_tokens,
            cache_write_tokens,
        ];
        if account.cost_usd.is_none() && tokens.iter().all(Option::is_none) {
            return;
        }
        let name = &model[..model.floor_char_boundary(NAME_BYTES)];
        let row = self.models.row(name);
        for (counter, count) in row.tokens.iter().zip(tokens) {
            counter.add(count.unwrap_or(0));
        }
        // What is not a cost was refused where it was read.
        row.cost_micros
            .add((account.cost_usd.unwrap_or(0.0) * MICROS) as u64);
    }
}

impl Model {
    pub fn tokens(&self) -> impl Iterator<Item = (&'static str, u64)> {
        TOKENS.into_iter().zip(self.tokens.iter().map(Counter::get))
    }

    pub fn cost_usd(&self) -> f64 {
        self.cost_micros.get() as f64 / MICROS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_of_the_adapters_own_is_other() {
        let provider = Provider::default();
        for code in [None, Some("timeout"), Some("acme_is_tired"), None] {
            provider.finish(code);
        }
        let ended: Vec<_> = provider
            .finished()
            .filter(|(_, count)| *count > 0)
            .collect();
        assert_eq!(ended, [("", 2), ("timeout", 1), (OTHER, 1)]);
    }

    #[test]
    fn what_is_not_known_is_not_counted() {
        let provider = Provider::default();
        let account = |model: Option<&str>, input, cost_usd| Account {
            model: model.map(str::to_owned),
            model_provider: None,
            usage: Usage {
                input_tokens: input,
                ..Usage::default()
            },
            cost_usd,
        };
        provider.spend(&account(Some("m"), Some(3), Some(0.25)), None);
        provider.spend(&account(None, Some(4), None), Some("asked"));
        provider.spend(&account(Some("silent"), None, None), None);
        let rows: Vec<_> = provider
            .models
            .rows()
            .map(|(name, model)| (name, model.tokens().next(), model.cost_usd()))
            .collect();
        let expected = [
            ("m", Some(("input", 3)), 0.25),
            ("asked", Some(("input", 4)), 0.0),
        ];
        assert_eq!(rows, expected);
    }
}
