//! Reload of an adapter: opens a generation from the current file, swaps it in, drains the one before.

use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::{Health, HealthStatus};

use super::adapter::{Adapter, Shared};
use super::error::Error;
use super::generation::Generation;
use crate::boundary::load_error::LoadError;
use crate::boundary::load_error::chain;
use forge_base::failpoint;

/// Grace period of a drained or rejected generation.
const END_GRACE: Duration = Duration::from_secs(10);

const CUT_OFF: &str =
    "the adapter was reloaded, and this call did not finish within plugin.reload_drain";

/// Reason why a reload failed; the serving generation is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    #[error("a reload is already in progress")]
    UnderWay,
    #[error("the bridge is shutting down")]
    Closing,
    #[error(transparent)]
    Find(#[from] Error),
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The new generation is offline; carries its message.
    #[error("{0}")]
    Offline(String),
    #[error("internal error during the reload; see the log")]
    Failed,
}

impl ReloadError {
    pub fn line(&self) -> String {
        chain(self)
    }
}

impl Adapter {
    /// Replaces the serving generation with one opened from the current file; on an error nothing changes. Executions
    /// finish on the generation that they began on. Runs to completion even if the caller stops waiting.
    pub async fn reload(&self) -> Result<(), ReloadError> {
        let adapter = self.clone();
        let reload = async move {
            let _alone = adapter.shared.reloading.try_lock();
            let _alone = _alone.map_err(|_| ReloadError::UnderWay)?;
            let closing = &adapter.shared.closing;
            let replaced = closing.run_until_cancelled(adapter.replace()).await;
            replaced.unwrap_or(Err(ReloadError::Closing))
        };
        let tracker = &self.shared.post.tracker;
        tracker
            .spawn(reload)
            .await
            .unwrap_or(Err(ReloadError::Failed))
    }

    async fn replace(&self) -> Result<(), ReloadError> {
        let Shared { plan, post, .. } = &*self.shared;
        let (next, health) = {
            let (boot, start) = plan.boot()??;
            Generation::open(boot, start, post).await?
        };
        if health.status == HealthStatus::Offline {
            next.end(END_GRACE).await;
            let why = health.message.unwrap_or_else(|| "it is offline".to_owned());
            return Err(ReloadError::Offline(why));
        }
        failpoint::point("adapter.swap.before");
        let before = self.swap(Arc::clone(&next), health)?;
        failpoint::point("adapter.swap.after");
        let (provider, version) = (self.provider(), &next.facts.manifest.version);
        tracing::info!(
            adapter.id = provider,
            adapter.digest = next.facts.digest,
            "adapter {provider} was reloaded, now version {version}"
        );
        let adapter = self.clone();
        post.tracker.spawn(async move {
            // The new generation first: an event can arrive twice, but none is missed.
            next.start_relay().await;
            let drain = async {
                if let Some(before) = before {
                    adapter.drain(&before).await;
                }
            };
            tokio::join!(adapter.refresh_agents(), drain);
        });
        Ok(())
    }

    fn swap(
        &self,
        next: Arc<Generation>,
        health: Health,
    ) -> Result<Option<Arc<Generation>>, ReloadError> {
        let mut board = self.board();
        // Checked under the lock: from here on `shutdown` finds the new generation.
        if self.shared.closing.is_cancelled() {
            return Err(ReloadError::Closing);
        }
        self.shared.post.monitor.set_active(next.source, health);
        board.load_error = None;
        let before = board.serving.replace(next);
        board.leaving.extend(before.clone());
        Ok(before)
    }

    /// Shuts a generation down once no call is in flight, or after `plugin.reload_drain`.
    async fn drain(&self, generation: &Arc<Generation>) {
        let Shared { post, closing, .. } = &*self.shared;
        if generation.ready().is_some() {
            generation.stop_relay().await;
        }
        let limit = post.config.reload_drain;
        let idle = tokio::select! {
            () = closing.cancelled() => return,
            idle = tokio::time::timeout(limit, generation.idle()) => idle.is_ok(),
        };
        if !idle {
            tracing::warn!(
                adapter.id = post.provider,
                "ending {} executions of adapter {} that outlived plugin.reload_drain ({limit:?})",
                generation.executions(),
                post.provider,
            );
            generation.cut_off(CUT_OFF);
        }
        failpoint::point("adapter.drained");
        generation.end(END_GRACE).await;
        failpoint::point("adapter.ended");
        let mut board = self.board();
        board
            .leaving
            .retain(|other| !Arc::ptr_eq(other, generation));
    }
}
