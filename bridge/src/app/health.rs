//! Background health checks of adapters.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use forge_base::tasks::Rounds;
use forge_plugin_host::Registry;

const EVERY: Duration = Duration::from_secs(15);

/// Checks the health of all adapters until the token is cancelled.
pub(super) async fn poll_health(registry: Registry, ending: CancellationToken) {
    let mut rounds = Rounds::every(EVERY, ending);
    while rounds.due().await {
        registry.refresh_health().await;
    }
}
