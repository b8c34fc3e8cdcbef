//! Repeated requests to a model inside an attempt, taken from the adapter's `model.retrying` events.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use forge_base::event::kind;
use forge_base::metrics::OTHER;

/// Reasons that are counted separately, and one for all others.
pub(super) const REASONS: [&str; 8] = [
    "rate_limited",
    "overloaded",
    "server_error",
    "timeout",
    "conflict",
    "unreachable",
    "broken",
    OTHER,
];

/// Longest wait that an event can announce.
const LONGEST_DELAY: Duration = Duration::from_secs(86_400);

/// Counts the repeated requests of one attempt, and knows the announced wait.
#[derive(Debug, Default)]
pub(super) struct ModelRetries {
    /// Indexed like `REASONS`.
    pub(super) counts: [u64; REASONS.len()],
    /// End of the last announced wait: until then silence is no standstill.
    pub(super) until: Option<Instant>,
}

impl ModelRetries {
    /// Reads an event; ignores those that are about something else.
    pub(super) fn notice(&mut self, event: &str, data: Option<&Value>) {
        if event != kind::MODEL_RETRYING {
            return;
        }
        let member = |name: &str| data.and_then(|data| data.get(name));
        let reason = member("reason").and_then(Value::as_str).unwrap_or(OTHER);
        let row = REASONS.iter().position(|known| *known == reason);
        self.counts[row.unwrap_or(REASONS.len() - 1)] += 1;
        let delay = member("delayMs").and_then(Value::as_u64).unwrap_or(0);
        self.until = Some(Instant::now() + Duration::from_millis(delay).min(LONGEST_DELAY));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reasons_are_a_small_set_and_the_wait_is_bounded() {
        let mut retries = ModelRetries::default();
        for (data, wait) in [
            (json!({"reason": "rate_limited", "delayMs": 1500}), 1500),
            (
                json!({"reason": "acme is tired", "delayMs": u64::MAX}),
                86_400_000,
            ),
            (json!({"reason": 5, "delayMs": -1}), 0),
            (json!("garbage"), 0),
        ] {
            let (before, wait) = (Instant::now(), Duration::from_millis(wait));
            retries.notice(kind::MODEL_RETRYING, Some(&data));
            let until = retries.until.unwrap();
            assert!(
                until >= before + wait && until <= Instant::now() + wait,
                "{data}"
            );
        }
        retries.notice("assistant.text", Some(&json!({"reason": "overloaded"})));
        assert_eq!(retries.counts, [1, 0, 0, 0, 0, 0, 0, 3]);
    }
}
