//! Metrics of dispatches, by provider. Finding a row takes no lock; counting is an atomic addition.

use forge_adapter_api::Usage;

use forge_base::metrics::{Counter, Gauge, Histogram, OTHER, Table};

use super::model_retries::REASONS;
use super::normalise::Account;

/// Number of providers with a row of their own; the others share one.
const PROVIDERS: usize = 32;
/// Number of models of one provider with a row of their own; the others share one.
const MODELS: usize = 24;

/// Maximum bytes of a model's name; longer ones are cut.
const NAME_BYTES: usize = 128;

/// Ends of a dispatch that are counted separately: no error, each code of the bridge, and one for the adapters'
/// own codes.
pub const ENDS: [&str; 25] = [
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
    "workspace_unavailable",
    "input_required",
    "blocked_by_policy",
    "queue_timeout",
    "budget_exceeded",
    "output_invalid",
    "output_missing",
    "output_too_large",
    "attachment_unavailable",
    "mcp_server_unavailable",
    "tool_rounds_exceeded",
    "tool_bytes_exceeded",
    "record_unreadable",
    OTHER,
];

/// Kinds of tokens that are counted separately.
pub const TOKENS: [&str; 5] = ["input", "output", "thinking", "cache_read", "cache_write"];

/// Units of the cost counter in one US dollar.
pub const MICROS: f64 = 1e6;

#[derive(Debug)]
pub struct Meters {
    pub providers: Table<Provider>,
    pub take_overs: TakeOvers,
}

/// Dispatches that ran under ended leases, which this node took over since its start.
#[derive(Debug, Default)]
pub struct TakeOvers {
    /// Dispatches returned to the queue.
    pub requeued: Counter,
    /// Dispatches that ended.
    pub ended: Counter,
    /// Time of the last one, in nanoseconds since 1970.
    pub(super) last_nanos: Gauge,
}

impl Default for Meters {
    fn default() -> Self {
        Self {
            providers: Table::new(PROVIDERS),
            take_overs: TakeOvers::default(),
        }
    }
}

#[derive(Debug)]
pub struct Provider {
    pub accepted: Counter,
    /// Indexed like `ENDS`.
    finished: [Counter; ENDS.len()],
    /// Attempts whose dispatch was returned to the queue.
    pub requeued: Counter,
    /// Time from acceptance, or from `notBefore` if later, to the first start.
    pub queue_wait: Histogram,
    /// Duration of one attempt.
    pub execution: Histogram,
    /// Time from acceptance to the first event of the adapter.
    pub first_event: Histogram,
    pub events: Counter,
    pub events_dropped: Counter,
    pub tool_calls: Counter,
    /// Repeated requests to a model, indexed like `REASONS`.
    model_retries: [Counter; REASONS.len()],
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
            model_retries: Default::default(),
            models: Table::new(MODELS),
        }
    }
}

/// Usage of one model.
#[derive(Debug, Default)]
pub struct Model {
    /// Indexed like `TOKENS`.
    tokens: [Counter; TOKENS.len()],
    cost_micros: Counter,
}

impl Provider {
    /// Counts the end of one dispatch.
    pub fn finish(&self, error_code: Option<&str>) {
        let code = error_code.unwrap_or_default();
        let end = ENDS.iter().position(|end| *end == code);
        self.finished[end.unwrap_or(ENDS.len() - 1)].inc();
    }

    /// Number of ended dispatches for each of `ENDS`.
    pub fn finished(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ENDS.into_iter().zip(self.finished.iter().map(Counter::get))
    }

    /// Adds the repeated requests to a model of one attempt.
    pub(super) fn retry_model(&self, counts: &[u64; REASONS.len()]) {
        for (counter, count) in self.model_retries.iter().zip(counts) {
            counter.add(*count);
        }
    }

    /// Number of repeated requests to a model for each reason.
    pub fn model_retries(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS
            .into_iter()
            .zip(self.model_retries.iter().map(Counter::get))
    }

    /// Counts the usage of a dispatch over all attempts. `asked` is the requested model, used if the adapter named
    /// none.
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
        // Finite and not negative: other values are dropped when the result is read.
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
    use std::collections::BTreeSet;

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
    fn every_error_code_of_the_reference_is_counted_separately() {
        let reference = include_str!("../../../openapi.json");
        let reference: serde_json::Value = serde_json::from_str(reference).unwrap();
        let schema = &reference["components"]["schemas"]["Result"];
        let text = schema["properties"]["errorCode"]["description"].as_str();
        let codes = text.unwrap().split('`').skip(1).step_by(2);
        let documented: BTreeSet<&str> = codes.collect();
        let counted = ENDS.into_iter().filter(|end| !["", OTHER].contains(end));
        assert_eq!(counted.collect::<BTreeSet<_>>(), documented);
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
