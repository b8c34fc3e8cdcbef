//! Offers of nodes: the adapters of each, which the others route by.

use std::sync::{Arc, Mutex, PoisonError};

use forge_adapter_api::{HealthStatus, Profile};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use forge_base::time;
use forge_plugin_host::Adapter;
use forge_store::node::NodeRecord;

use crate::route::Candidate;
use crate::submit::away_since;

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
    pub(crate) fn of(adapter: &Adapter) -> Self {
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

    pub(crate) fn candidate(&self, now: Timestamp) -> Candidate<'_> {
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
            away_for: self.away_since.map(|since| time::wall_age(since, now)),
        }
    }
}

/// Offers of the other nodes that are live.
#[derive(Debug, Default)]
pub(crate) struct Offers(Mutex<Arc<[Offer]>>);

impl Offers {
    pub(crate) fn get(&self) -> Arc<[Offer]> {
        let offers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&offers)
    }

    /// Offers of live nodes, and those of ended ones, whose adapters are away since then.
    pub(super) fn set(&self, live: &[NodeRecord], ended: &[NodeRecord]) {
        let offers = live.iter().map(Offer::of);
        let offers = offers.chain(ended.iter().map(Offer::of_ended));
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *held = offers.collect();
    }

    /// True if another node can start dispatches of this adapter.
    pub(crate) fn has(&self, provider: &str) -> bool {
        let offers = self.get();
        let mut adapters = offers.iter().flat_map(|offer| &offer.adapters);
        adapters
            .any(|adapter| adapter.provider == provider && adapter.health != HealthStatus::Offline)
    }
}

/// Adds what other nodes offer to the adapters of this one: an adapter that several have is as well as the best of them,
/// and has the room of all.
pub(crate) fn join<'a>(candidates: &mut Vec<Candidate<'a>>, offers: &'a [Offer], now: Timestamp) {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forge_store::node::Node;
    use serde_json::value::to_raw_value;

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
