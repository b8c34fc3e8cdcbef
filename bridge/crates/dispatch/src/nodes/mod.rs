//! The other nodes of the store: their offers, so that dispatches can wait for an adapter that only another one has;
//! the lease of this node, without which nothing goes on here; and the work of nodes whose lease has ended.

mod offer;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::value::to_raw_value;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;

use forge_base::time;
use forge_store::node::{Node, NodeRecord, Notices, Tenure};

use super::recover::{Recovered, recover};
use super::{Dispatcher, Inner};
pub use offer::{Offer, OfferedAdapter, TakenOver};
pub(super) use offer::{Offers, join};

/// Pause between two looks at what this node offers.
const PUBLISH: Duration = Duration::from_secs(2);
/// Pause between two looks at the breakers of the others.
const BREAKERS: Duration = Duration::from_secs(5);
/// Pause before a take-over that failed is tried again.
const AGAIN: Duration = Duration::from_millis(500);

fn epochs(nodes: &[NodeRecord]) -> BTreeSet<u64> {
    nodes.iter().map(|node| node.epoch).collect()
}

impl Inner {
    pub(super) fn node(&self) -> &Node {
        self.finisher.store.nodes.node()
    }

    /// True while the lease of this epoch is held.
    pub(super) fn holds(&self, epoch: u64) -> bool {
        *self.node().tenure.borrow() == Tenure::Held { epoch }
    }

    fn offered(&self) -> Vec<OfferedAdapter> {
        let adapters = self.registry.routable().iter();
        adapters.map(OfferedAdapter::of).collect()
    }

    fn taken_over(&self) -> Option<TakenOver> {
        let meters = &self.finisher.meters.take_overs;
        let count = meters.requeued.get() + meters.ended.get();
        let at = time::from_nanos(meters.last_nanos.get().cast_signed());
        (count > 0).then_some(TakenOver { count, at })
    }

    fn count_taken_over(&self, recovered: Recovered) {
        let meters = &self.finisher.meters.take_overs;
        meters.requeued.add(recovered.requeued);
        meters.ended.add(recovered.ended);
        let now = time::nanos(self.finisher.clock.now());
        meters.last_nanos.set(now.cast_unsigned());
    }

    /// Publishes what this node offers, if it has changed.
    fn publish(&self, itself: &Offer) {
        let offer = Offer {
            keys: self.vault.keys().iter().map(ToString::to_string).collect(),
            adapters: self.offered(),
            taken_over: self.taken_over(),
            ..itself.clone()
        };
        let Ok(offer) = to_raw_value(&offer) else {
            return;
        };
        self.node().offer.send_if_modified(|seen| {
            let is_new = seen.get() != offer.get();
            *seen = offer;
            is_new
        });
    }

    /// Pauses and resumes the adapters of this node as all nodes do.
    async fn keep_pauses(&self, paused: &BTreeSet<String>) {
        for adapter in self.registry.routable() {
            let is_paused = paused.contains(adapter.provider());
            let kept = match (is_paused, adapter.paused()) {
                (true, None) => adapter.pause().await,
                (false, Some(_)) => adapter.resume().await,
                (true, Some(_)) | (false, None) => Ok(()),
            };
            if let Err(error) = kept {
                tracing::error!(%error, adapter.id = adapter.provider(), "a pause of all bridges is not kept here");
            }
        }
    }

    fn heed(&self, notices: &Notices) {
        for (id, attempt) in &notices.cancelled {
            self.running.cancel(*id, *attempt);
        }
        if !notices.ready.is_empty() {
            self.wake.notify_one();
        }
    }
}

impl Dispatcher {
    /// Adapters of this node, as it offers them to the others.
    pub fn offered(&self) -> Vec<OfferedAdapter> {
        self.inner.offered()
    }

    /// Dispatches that this node took over since its start; `None` if there are none.
    pub fn taken_over(&self) -> Option<TakenOver> {
        self.inner.taken_over()
    }

    /// Tells the other nodes what this one offers, and does what they ask for, until `shutdown`. On a store that has one
    /// node there is nothing to do.
    pub async fn follow_nodes(self, itself: Offer, shutdown: CancellationToken) {
        let inner = &self.inner;
        let node = inner.node();
        if node.lease.is_none() {
            return inner.publish(&itself);
        }
        let mut others = node.others.subscribe();
        let mut notices = node.notices.subscribe();
        let mut tenure = node.tenure.subscribe();
        let mut publish = interval(PUBLISH);
        publish.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut breakers = interval(BREAKERS);
        breakers.set_missed_tick_behavior(MissedTickBehavior::Delay);
        others.mark_changed();
        notices.mark_changed();
        let follow = async {
            loop {
                tokio::select! {
                    Ok(()) = tenure.changed() => {
                        if *tenure.borrow_and_update() == Tenure::Lost {
                            inner.running.halt();
                            inner.deliverer.stop_attempts();
                        }
                    }
                    Ok(()) = notices.changed() => {
                        let notices = notices.borrow_and_update().clone();
                        inner.heed(&notices);
                        inner.keep_pauses(&notices.paused).await;
                    }
                    Ok(()) = others.changed() => {
                        inner.offers.set(&others.borrow_and_update(), &node.ended.borrow());
                    }
                    _ = publish.tick() => inner.publish(&itself),
                    _ = breakers.tick(), if !others.borrow().is_empty() => {
                        if let Err(error) = inner.deliverer.learn_breakers().await {
                            tracing::debug!(%error, "breakers of other nodes are not read");
                        }
                    }
                    // The store is gone.
                    else => return,
                }
            }
        };
        shutdown.run_until_cancelled(follow).await;
    }

    /// Takes over, until `shutdown`, what ran under epochs whose lease has ended: those of other nodes, and of this one. Looks
    /// when one of them is seen to end, and each half lease.
    pub async fn take_over(self, shutdown: CancellationToken) {
        let Some(lease) = self.inner.node().lease else {
            return;
        };
        let mut tenure = self.inner.node().tenure.subscribe();
        let mut others = self.inner.node().others.subscribe();
        let mut live = epochs(&others.borrow_and_update());
        // The start has recovered all, just before.
        let mut next = Instant::now() + lease / 2;
        let take_over = async {
            loop {
                tokio::select! {
                    () = sleep_until(next) => {}
                    Ok(()) = tenure.changed() => {}
                    Ok(()) = others.changed() => {
                        let before = live;
                        live = epochs(&others.borrow_and_update());
                        if before.is_subset(&live) {
                            continue;
                        }
                    }
                }
                let pause = match recover(&self.inner.finisher).await {
                    Ok(recovered) => {
                        if recovered.requeued + recovered.ended > 0 {
                            self.inner.count_taken_over(recovered);
                            tracing::warn!(
                                "the lease of a node has ended: {} of its dispatches are queued again, {} have ended",
                                recovered.requeued,
                                recovered.ended,
                            );
                        }
                        // Its deliveries are free, too.
                        self.inner.deliverer.wake();
                        self.wake();
                        lease / 2
                    }
                    Err(error) => {
                        tracing::warn!(%error, "what ran on other nodes is not taken over and is tried again");
                        AGAIN
                    }
                };
                next = Instant::now() + pause;
            }
        };
        Box::pin(shutdown.run_until_cancelled(take_over)).await;
    }
}
