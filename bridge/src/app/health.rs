//! Background health checks of adapters.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use forge_plugin_host::Registry;

const EVERY: Duration = Duration::from_secs(15);

/// Checks the health of all adapters until the token is cancelled.
pub(super) async fn poll_health(registry: Registry, ending: CancellationToken) {
    let mut round = interval(EVERY);
    round.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = ending.cancelled() => return,
            _ = round.tick() => registry.refresh_health().await,
        }
    }
}
