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

/// Lower bound of `retention.every`.
const SHORTEST_ROUND: Duration = Duration::from_millis(10);

/// Removes expired records until the shutdown.
pub(super) async fn sweep(
    store: Arc<dyn Maintenance>,
    retention: Reloadable<Retention>,
    ending: CancellationToken,
) {
    loop {
        let Retention { every, step, .. } = *retention.get();
        loop {
            failpoint::point("sweep.before");
            let begun = Instant::now();
            let swept = store.sweep(Timestamp::now(), step).await;
            failpoint::point("sweep.after");
            match swept {
                // At most half of the time, so that writers are not delayed.
                Ok(swept) if swept.more && !ending.is_cancelled() => sleep(begun.elapsed()).await,
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
