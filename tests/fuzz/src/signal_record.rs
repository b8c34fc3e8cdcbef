//! Records of signals: what is read has only bounded values, and what is refused says why.

use forge_base::json;
use forge_signals::Record;

/// Input: the body of a signal.
pub(crate) fn run(data: &[u8]) {
    let Ok(tree) = json::parse(data) else {
        return;
    };
    match Record::read(&tree) {
        Ok(record) => {
            assert!((1..=256).contains(&record.adapter.len()));
            let usage = record.usage;
            let tokens = [usage.tokens_in, usage.tokens_out, usage.cache_read_tokens];
            assert!(tokens.iter().flatten().all(|count| *count <= 1 << 53));
            assert!(
                usage
                    .cost_micros
                    .is_none_or(|cost| cost <= 1_000_000_000_000)
            );
            assert!(record.latency_ms.is_none_or(|latency| latency >= 0.0));
        }
        Err(problems) => assert!(problems.iter().all(|one| !one.message.is_empty())),
    }
}
