//! Retention sweep: removes expired records in steps short enough, and far enough apart, not to delay writers.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::config::Retention;
use forge_base::failpoint;
use forge_base::reloadable::Reloadable;
use forge_store::roles::Maintenance;
use forge_store::{Result, Store};

/// Lower bound of `retention.every`.
const SHORTEST_ROUND: Duration = Duration::from_millis(10);

/// Removes expired records until the shutdown, on the node that is responsible for it.
pub(super) async fn sweep(
    store: Arc<dyn Store>,
    retention: Reloadable<Retention>,
    ending: CancellationToken,
) {
    loop {
        let Retention {
            signals,
            every,
            step,
            ..
        } = *retention.get();
        while store.node().is_first() {
            failpoint::point("sweep.before");
            let begun = Instant::now();
            let now = store.node().clock().now();
            let more = sweep_step(&*store, now, signals, step).await;
            failpoint::point("sweep.after");
            match more {
                // At most half of the time, so that writers are not delayed.
                Ok(true) if !ending.is_cancelled() => sleep(begun.elapsed()).await,
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!("removing expired records failed: {error}");
                    break;
                }
            }
        }
        tokio::select! {
            () = ending.cancelled() => return,
            () = sleep(every.max(SHORTEST_ROUND)) => {}
        }
    }
}

/// Removes a few records and signals; true if there are more to remove.
async fn sweep_step(
    store: &dyn Maintenance,
    now: Timestamp,
    signals: Duration,
    step: usize,
) -> Result<bool> {
    let oldest = now.saturating_sub(signals).unwrap_or(Timestamp::MIN);
    let records = store.sweep(now, step).await?;
    let signals = store.sweep_signals(oldest, step).await?;
    Ok(records.more || signals.more)
}

#[cfg(test)]
mod tests {
    use forge_store::contract::signals::{record, session, signal};
    use forge_store::memory::Memory;
    use forge_store::record::{NewSignal, SignalRecord, SignalSession};
    use forge_store::roles::Signals as _;

    use super::*;

    #[tokio::test]
    async fn signals_are_kept_as_long_as_the_setting_says() {
        let store = Memory::new();
        let age = Retention::default().signals;
        let minute = Duration::from_secs(60);
        for (id, at) in [
            ("old", Timestamp::now() - age - minute),
            ("young", Timestamp::now() - age + minute),
        ] {
            let new = SignalSession {
                started_at: at,
                last_at: at,
                ..session(id)
            };
            store.open_signal_session(new, Vec::new()).await.unwrap();
            let sent = SignalRecord { at, ..record(0) };
            let sent = NewSignal {
                record: sent,
                ..signal(id, 0)
            };
            store.record_signal(sent).await.unwrap();
        }
        assert!(!sweep_step(&store, Timestamp::now(), age, 10).await.unwrap());
        assert!(store.signal_session("old", 1).await.unwrap().is_none());
        let (_, records) = store.signal_session("young", 1).await.unwrap().unwrap();
        assert_eq!(records.len(), 1);
    }
}
