//! Removes what is past its retention, in steps so small and so far apart that nobody who writes is held up.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::config::Retention;
use forge_base::failpoint;
use forge_base::reloadable::Reloadable;
use forge_store::Store;

/// However often is asked for, what is past its retention is not looked for more often.
const SHORTEST_ROUND: Duration = Duration::from_millis(10);

/// Removes what is past its retention, in small steps.
pub(super) async fn sweep(
    store: Arc<dyn Store>,
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
                // At most half of the time, so that those who write are not held up.
                Ok(swept) if swept.more && !ending.is_cancelled() => sleep(begun.elapsed()).await,
                Ok(_) => break,
                Err(error) => {
                    tracing::warn!("nothing was removed: {error}");
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
