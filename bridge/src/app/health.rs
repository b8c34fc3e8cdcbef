//! Background requests to adapters: their health, and the agents of their runtimes.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use forge_base::tasks::Rounds;
use forge_plugin_host::Registry;

const EVERY: Duration = Duration::from_secs(15);
/// Interval in which runtimes are asked for their agents.
const AGENTS: Duration = Duration::from_secs(60);

/// Checks the health of all adapters until the token is cancelled.
pub(super) async fn poll_health(registry: Registry, ending: CancellationToken) {
    let mut rounds = Rounds::every(EVERY, ending);
    while rounds.due().await {
        registry.refresh_health().await;
    }
}

/// Asks the runtimes for their agents until the token is cancelled. The caller has asked once already.
pub(super) async fn poll_agents(registry: Registry, ending: CancellationToken) {
    let mut rounds = Rounds::every(AGENTS, ending);
    // The first round is due at once.
    rounds.due().await;
    while rounds.due().await {
        registry.refresh_agents().await;
    }
}
