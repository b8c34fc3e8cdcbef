//! The other nodes of the store: what each offers, so that dispatches can wait for an adapter that only another one has;
//! the lease of this node, without which nothing goes on here; and the work of nodes whose lease has ended.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forge_adapter_api::{HealthStatus, Profile};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;

use forge_base::time;
use forge_plugin_host::Adapter;
use forge_store::node::{Node, NodeRecord, Notices, Tenure};

use super::recover::{Recovered, recover};
use super::route::Candidate;
use super::submit::away_since;
use super::{Dispatcher, Inner};

/// Pause between two looks at what this node offers.
const PUBLISH: Duration = Duration::from_secs(2);
/// Pause between two looks at the breakers of the others.
const BREAKERS: Duration = Duration::from_secs(5);
/// Pause before a take-over that failed is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// Description of a node, which it publishes.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Offer {
    /// Host name of the machine.
    pub name: String,
    /// Address that the bridge listens on.
    pub address: String,
    pub version: String,
    /// Ids of its keys; empty until it has published anything.
    pub keys: Vec<String>,
    pub adapters: Vec<OfferedAdapter>,
    /// Dispatches that it took over since its start; `None` if there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken_over: Option<TakenOver>,
}

/// Dispatches of ended leases that a node took over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TakenOver {
    pub count: u64,
    /// Time of the last one.
    pub at: Timestamp,
}

impl Offer {
    /// Description that a node has published; empty if a newer node has written it in a form that is not known here.
    pub fn of(node: &NodeRecord) -> Self {
        serde_json::from_str(node.offer.get()).unwrap_or_default()
    }

    fn of_ended(node: &NodeRecord) -> Self {
        let mut offer = Self::of(node);
        for adapter in &mut offer.adapters {
            adapter.health = HealthStatus::Offline;
            adapter.message = Some(format!("its bridge is away: {}", offer.name));
            adapter.away_since = node.lease_until;
        }
        offer
    }
}

/// Adapter of a node, as of its last look.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferedAdapter {
    pub provider: String,
    /// `None` if the adapter was never loaded.
    pub profile: Option<Profile>,
    pub health: HealthStatus,
    pub message: Option<String>,
    pub paused: bool,
    pub running: usize,
    pub max_concurrent: usize,
    /// Time since which the adapter is offline.
    pub away_since: Option<Timestamp>,
}

impl OfferedAdapter {
    pub(super) fn of(adapter: &Adapter) -> Self {
        let report = adapter.health();
        Self {
            provider: adapter.provider().to_owned(),
            profile: adapter.profile().map(|profile| Profile::clone(&profile)),
            health: report.status,
            message: report.message,
            paused: adapter.paused().is_some(),
            running: adapter.running(),
            max_concurrent: adapter.max_concurrent(),
            away_since: away_since(adapter),
        }
    }

    pub(super) fn candidate(&self, now: Timestamp) -> Candidate<'_> {
        Candidate {
            provider: &self.provider,
            profile: self.profile.as_ref(),
            health: self.health,
            message: self.message.as_deref(),
            paused: self.paused,
            running: self.running,
            queued: 0,
            max_concurrent: self.max_concurrent,
            has_agent: None,
            away_for: self.away_since.map(|since| time::between(since, now)),
        }
    }
}

/// Offers of the other nodes that are live.
#[derive(Debug, Default)]
pub(super) struct Offers(Mutex<Arc<[Offer]>>);

impl Offers {
    pub(super) fn get(&self) -> Arc<[Offer]> {
        let offers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&offers)
    }

    /// Offers of live nodes, and those of ended ones, whose adapters are away since then.
    fn set(&self, live: &[NodeRecord], ended: &[NodeRecord]) {
        let offers = live.iter().map(Offer::of);
        let offers = offers.chain(ended.iter().map(Offer::of_ended));
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *held = offers.collect();
    }

    /// True if another node can start dispatches of this adapter.
    pub(super) fn has(&self, provider: &str) -> bool {
        let offers = self.get();
        let mut adapters = offers.iter().flat_map(|offer| &offer.adapters);
        adapters
            .any(|adapter| adapter.provider == provider && adapter.health != HealthStatus::Offline)
    }
}

fn epochs(nodes: &[NodeRecord]) -> BTreeSet<u64> {
    nodes.iter().map(|node| node.epoch).collect()
}

/// Adds what other nodes offer to the adapters of this one: an adapter that several have is as well as the best of them,
/// and has the room of all.
pub(super) fn join<'a>(candidates: &mut Vec<Candidate<'a>>, offers: &'a [Offer], now: Timestamp) {
    for offered in offers.iter().flat_map(|offer| &offer.adapters) {
        let other = offered.candidate(now);
        let own = candidates
            .iter_mut()
            .find(|own| own.provider == other.provider);
        match own {
            None => candidates.push(other),
            // One that is offline has no room.
            Some(own) if other.health == HealthStatus::Offline => {
                own.away_for = own.away_for.min(other.away_for.or(own.away_for));
            }
            Some(own) if own.health == HealthStatus::Offline => {
                let known = own.profile;
                *own = other;
                own.profile = own.profile.or(known);
            }
            Some(own) => {
                let is_known = own.profile.is_some() || other.profile.is_none();
                if (rank(other.health), is_known) < (rank(own.health), true) {
                    (own.profile, own.message) = (other.profile, other.message);
                    (own.health, own.away_for) = (other.health, other.away_for);
                }
                own.paused &= other.paused;
                own.running += other.running;
                own.max_concurrent = own.max_concurrent.saturating_add(other.max_concurrent);
            }
        }
    }
}

fn rank(health: HealthStatus) -> u8 {
    match health {
        HealthStatus::Healthy => 0,
        HealthStatus::Degraded => 1,
        HealthStatus::Offline => 2,
    }
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
        shutdown.run_until_cancelled(take_over).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(provider: &str, health: HealthStatus) -> OfferedAdapter {
        OfferedAdapter {
            provider: provider.to_owned(),
            profile: None,
            health,
            message: None,
            paused: false,
            running: 1,
            max_concurrent: 2,
            away_since: None,
        }
    }

    #[test]
    fn an_adapter_of_several_nodes_is_as_well_as_the_best() {
        let now = Timestamp::UNIX_EPOCH;
        let own = OfferedAdapter {
            message: Some("no key".to_owned()),
            paused: true,
            ..offered("a", HealthStatus::Offline)
        };
        let others = [
            Offer {
                adapters: vec![
                    offered("a", HealthStatus::Degraded),
                    offered("b", HealthStatus::Healthy),
                ],
                ..Offer::default()
            },
            Offer {
                adapters: vec![offered("a", HealthStatus::Offline)],
                ..Offer::default()
            },
        ];
        let mut candidates = vec![own.candidate(now)];
        join(&mut candidates, &others, now);
        let [a, b] = candidates.as_slice() else {
            panic!("{candidates:?}");
        };
        assert_eq!((a.health, a.message), (HealthStatus::Degraded, None));
        assert_eq!((a.paused, a.running, a.max_concurrent), (false, 1, 2));
        assert_eq!((b.provider, b.health), ("b", HealthStatus::Healthy));
    }

    #[test]
    fn an_adapter_of_a_node_that_has_ended_is_away_since_then() {
        let now = Timestamp::from_second(100).unwrap();
        let node = Node::alone("n".to_owned(), 1);
        let offer = Offer {
            name: "host".to_owned(),
            adapters: vec![
                offered("a", HealthStatus::Healthy),
                offered("b", HealthStatus::Healthy),
            ],
            ..Offer::default()
        };
        node.offer.send_replace(to_raw_value(&offer).unwrap());
        let ended = NodeRecord {
            lease_until: Timestamp::from_second(70).ok(),
            is_live: false,
            ..node.record()
        };
        let offers = Offers::default();
        offers.set(&[], &[ended]);
        assert!(!offers.has("a"));
        let own = offered("b", HealthStatus::Healthy);
        let (mut candidates, offers) = (vec![own.candidate(now)], offers.get());
        join(&mut candidates, &offers, now);
        let [b, a] = candidates.as_slice() else {
            panic!("{candidates:?}");
        };
        assert_eq!(
            (a.health, a.message),
            (HealthStatus::Offline, Some("its bridge is away: host"))
        );
        assert_eq!(a.away_for, Some(Duration::from_secs(30)));
        assert_eq!(
            (b.health, b.running, b.max_concurrent),
            (HealthStatus::Healthy, 1, 2)
        );
    }

    #[test]
    fn what_cannot_be_read_offers_nothing() {
        let node = Node::alone("n".to_owned(), 1);
        node.offer.send_replace(
            serde_json::value::RawValue::from_string(r#"{"adapters":7}"#.to_owned()).unwrap(),
        );
        let offers = Offers::default();
        offers.set(&[node.record()], &[]);
        assert!(!offers.has("a") && offers.get().len() == 1);
        let offer = Offer {
            adapters: vec![
                offered("a", HealthStatus::Healthy),
                offered("b", HealthStatus::Offline),
            ],
            ..Offer::default()
        };
        node.offer.send_replace(to_raw_value(&offer).unwrap());
        offers.set(&[node.record()], &[]);
        assert!(offers.has("a") && !offers.has("b"));
    }
}
