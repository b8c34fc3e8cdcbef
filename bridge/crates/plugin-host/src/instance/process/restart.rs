//! Restarts an adapter whose process ended: reports its health as offline at once, restarts it with growing waits, and
//! quarantines it if it crashes too often.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forge_adapter_api::Health;
use jiff::Timestamp;
use tokio::time::sleep;

use super::crashes::{Crashes, Next};
use super::remote::{ConnectionState, Remote};
use crate::instance::health::Quarantine;
use crate::instance::instance_monitor::{InstanceMonitor, answer, ask, empty};
use forge_base::failpoint;

const RELAY_TIMEOUT: Duration = Duration::from_secs(2);

impl InstanceMonitor {
    /// Keeps the adapter's process running, if it has one of its own.
    pub(crate) async fn keep_running(&self) {
        if let Some(remote) = self.handle.remote() {
            tokio::join!(self.restart(remote), self.listen_for_life(remote));
        }
    }

    async fn restart(&self, remote: &Arc<Remote>) {
        let provider = &self.provider;
        let mut crashes = Crashes::new(&self.restart);
        loop {
            let why = remote.ended().await;
            self.tell(Health::offline(&why));
            if !remote.is_settled() || !self.monitor.is_active(self.source) {
                // The instance never served, or another generation does: no call will be made to it.
                return;
            }
            match crashes.note(Instant::now()) {
                Next::Restart(wait) => {
                    tracing::warn!(
                        adapter.id = provider,
                        "restarting adapter {provider} in {wait:?}: {why}"
                    );
                    sleep(wait).await;
                }
                Next::Quarantine(count) => {
                    let since = Timestamp::now();
                    let line = format!(
                        "quarantined at {}: it ended {count} times within {:?}, the last time because {why}; \
                         mend or replace it, then run: forge-bridge adapters reload {provider}",
                        forge_base::time::format(since),
                        self.restart.crash_window,
                    );
                    let quarantine = Quarantine {
                        since,
                        crashes: count,
                        reason: why,
                    };
                    self.monitor.quarantine(self.source, quarantine);
                    remote.set_state(ConnectionState::Down(line.clone()));
                    // Final for this generation: a reload replaces it.
                    return self.tell(Health::offline(&line));
                }
            }
            if let Err(error) = self.begin_again(remote, why).await {
                remote.abandon();
                remote.set_state(ConnectionState::Down(error));
            }
        }
    }

    /// Starts a new process and initialises it like the first one. Until it serves, calls are refused with `why`.
    async fn begin_again(&self, remote: &Arc<Remote>, why: String) -> Result<(), String> {
        remote.set_state(ConnectionState::Starting(why));
        failpoint::point("restart.before");
        let connecting = Arc::clone(remote);
        let connected = tokio::task::spawn_blocking(move || connecting.connect()).await;
        failpoint::point("restart.connected");
        match connected {
            Ok(Ok(_manifest)) => {}
            Ok(Err(error)) => return Err(format!("it could not be restarted: {error}")),
            Err(_) => return Err("it could not be restarted".to_owned()),
        }
        let (initialize, relaying) = remote.remembered();
        let initialize = initialize.unwrap_or_else(empty);
        answer(
            &self.handle,
            "initialize",
            initialize,
            self.initialize_timeout,
        )
        .await
        .map_err(|error| format!("initialize failed after a restart: {error}"))?;
        if relaying
            && let Err(error) = answer(&self.handle, "events.start", empty(), RELAY_TIMEOUT).await
            && error.code != "unsupported_op"
        {
            tracing::warn!("adapter {} does not relay events: {error}", self.provider);
        }
        let health = ask(&self.handle, self.health_timeout).await;
        remote.serve()?;
        self.tell(health);
        failpoint::point("restart.after");
        Ok(())
    }

    /// Kills a process that leaves two health requests in a row unanswered, unless the bridge itself does not accept
    /// its events.
    async fn listen_for_life(&self, remote: &Remote) {
        loop {
            remote.silence().await;
            let again = answer(&self.handle, "health", empty(), self.health_timeout).await;
            let silent = again.is_err_and(|error| error.code == "timeout");
            if silent && !remote.is_held_back() {
                let timeout = self.health_timeout;
                remote.kill(&format!(
                    "it left two health requests unanswered, {timeout:?} each"
                ));
            }
        }
    }
}
