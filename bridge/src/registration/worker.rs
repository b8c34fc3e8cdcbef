//! Registration loop: each round registers every gateway, whatever was registered before; at the end it
//! deregisters all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use backoff::backoff::Backoff;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::endpoint::{Endpoint, Reply};
use super::entry::{self, Gateway, Identity};
use super::schedule::{self, Schedule};

/// Time that a round in flight gets after the shutdown: a registration cut off could arrive after the
/// deregistration.
const LAST_ROUND: Duration = Duration::from_secs(1);
/// Total time for deregistration.
const LEAVE: Duration = Duration::from_secs(2);
/// First and longest wait between attempts to deregister.
const LEAVE_WAITS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));

pub(super) struct Worker {
    pub(super) endpoint: Endpoint,
    pub(super) identity: Identity,
    pub(super) gateways: Box<dyn Fn() -> Vec<Gateway> + Send + Sync>,
    pub(super) token_hash: watch::Receiver<Option<String>>,
    pub(super) schedule: Schedule,
    /// Last answer of the registry for each gateway sent to it; `None` before the first one.
    pub(super) standing: BTreeMap<String, Option<Reply>>,
}

impl Worker {
    pub(super) async fn run(mut self, shutdown: CancellationToken) {
        let mut token_hash = self.token_hash.clone();
        while !shutdown.is_cancelled() {
            let rest = {
                let mut round = std::pin::pin!(self.tick());
                tokio::select! {
                    rest = &mut round => rest,
                    () = shutdown.cancelled() => {
                        // Finished or not, the gateways are deregistered next.
                        let _ = timeout(LAST_ROUND, round).await;
                        break;
                    }
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = rotated(&mut token_hash) => {}
                () = sleep(rest) => {}
            }
        }
        self.leave().await;
    }

    /// Registers every gateway; returns the wait until the next round.
    async fn tick(&mut self) -> Duration {
        let token_hash = self.token_hash.borrow().clone();
        let entries = entry::entries(&self.identity, (self.gateways)(), token_hash.as_deref());
        for entry in &entries {
            self.standing.entry(entry.gateway_id.clone()).or_default();
        }
        let replies = join_all(entries.iter().map(|entry| self.endpoint.register(entry))).await;
        for (entry, reply) in entries.into_iter().zip(&replies) {
            let before = self
                .standing
                .insert(entry.gateway_id.clone(), Some(reply.clone()));
            self.tell(&entry.gateway_id, before.flatten().as_ref(), reply);
        }
        self.schedule.after(&replies)
    }

    /// Logs a changed answer; repetitions are not logged.
    fn tell(&self, gateway: &str, before: Option<&Reply>, now: &Reply) {
        let registry = self.endpoint.origin();
        match (before, now) {
            (Some(Reply::Done), Reply::Done) | (Some(Reply::Away { .. }), Reply::Away { .. }) => {}
            (_, Reply::Done) => {
                tracing::info!(
                    gateway.id = gateway,
                    "{gateway} is registered at {registry}"
                );
            }
            (Some(Reply::Refused(before)), Reply::Refused(status)) if before == status => {}
            (_, Reply::Refused(status)) => tracing::warn!(
                gateway.id = gateway,
                "{registry} answered {status} to the registration of {gateway}; check registration.url and registration.token",
            ),
            (_, Reply::Away { why, .. }) => tracing::warn!(
                gateway.id = gateway,
                "{gateway} could not be registered at {registry}, will retry: {why}",
            ),
        }
    }

    /// Deregisters every gateway sent to the registry, even if the registry never answered.
    async fn leave(&self) {
        let deadline = Instant::now() + LEAVE;
        let told = self.standing.keys();
        join_all(told.map(|gateway| self.take_back(gateway, deadline))).await;
    }

    async fn take_back(&self, gateway: &str, deadline: Instant) {
        let registry = self.endpoint.origin();
        let mut why = "no answer".to_owned();
        let attempts = async {
            let mut waits = schedule::waits(LEAVE_WAITS.0, LEAVE_WAITS.1);
            loop {
                let instance = &self.identity.instance_id;
                match self.endpoint.deregister(gateway, instance, LEAVE).await {
                    Reply::Done => return None,
                    Reply::Refused(status) => return Some(format!("it answered {status}")),
                    Reply::Away { why: reason, .. } => why = reason,
                }
                sleep(waits.next_backoff().unwrap_or(LEAVE_WAITS.1)).await;
            }
        };
        let failure = timeout_at(deadline, attempts).await;
        match failure.unwrap_or(Some(why)) {
            None => tracing::info!(
                gateway.id = gateway,
                "{gateway} is no longer registered at {registry} by this instance",
            ),
            Some(why) => tracing::warn!(
                gateway.id = gateway,
                "{gateway} could not be deregistered at {registry}: {why}",
            ),
        }
    }
}

/// Resolves when the token has changed; never resolves once it cannot change any more.
async fn rotated(token_hash: &mut watch::Receiver<Option<String>>) {
    if token_hash.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
