//! Brings an adapter back whose process ended: told in its health at once, started again ever later, and
//! given up when it ends too often.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forge_adapter_api::Health;
use jiff::Timestamp;
use tokio::time::sleep;

use super::crashes::{Crashes, Next};
use super::remote::{ConnectionState, Remote};
use crate::health::Quarantine;
use crate::instance_monitor::{InstanceMonitor, answer, ask, empty};
use forge_base::failpoint;

const RELAY_TIMEOUT: Duration = Duration::from_secs(2);

impl InstanceMonitor {
    /// Keeps a process there, as far as the adapter has one of its own.
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
                // It never came to serve, or another edition does: nobody will ask anything of it.
                return;
            }
            match crashes.note(Instant::now()) {
                Next::Restart(wait) => {
                    tracing::warn!(
                        adapter.id = provider,
                        "adapter {provider} is started again in {wait:?}: {why}"
                    );
                    sleep(wait).await;
                }
                Next::Quarantine(count) => {
                    let since = Timestamp::now();
                    let line = format!(
                        "quarantined at {}: it ended {count} times within {:?}, the last time because {why}; \
                         mend or replace it, then POST /api/v2/adapters/{provider}/reload",
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
                    // A reload puts another edition in its place.
                    return self.tell(Health::offline(&line));
                }
            }
            if let Err(error) = self.begin_again(remote, why).await {
                remote.abandon();
                remote.set_state(ConnectionState::Down(error));
            }
        }
    }

    /// A new process, told what the first one was. Until it stands calls are refused with `why`.
    async fn begin_again(&self, remote: &Arc<Remote>, why: String) -> Result<(), String> {
        remote.set_state(ConnectionState::Starting(why));
        failpoint::point("restart.before");
        let connecting = Arc::clone(remote);
        let connected = tokio::task::spawn_blocking(move || connecting.connect()).await;
        failpoint::point("restart.connected");
        match connected {
            Ok(Ok(_manifest)) => {}
            Ok(Err(error)) => return Err(format!("it could not be started again: {error}")),
            Err(_) => return Err("it could not be started again".to_owned()),
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

    /// Kills a process that says nothing about its health twice, unless it is we who do not listen.
    async fn listen_for_life(&self, remote: &Remote) {
        loop {
            remote.silence().await;
            let again = answer(&self.handle, "health", empty(), self.health_timeout).await;
            let silent = again.is_err_and(|error| error.code == "timeout");
            if silent && !remote.is_held_back() {
                let timeout = self.health_timeout;
                remote.kill(&format!(
                    "it did not answer health twice, for {timeout:?} each"
                ));
            }
        }
    }
}
