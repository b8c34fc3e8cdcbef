//! Reasons for which queued dispatches have not started.

use std::collections::{BTreeMap, BTreeSet};

use forge_adapter_api::HealthStatus;
use jiff::Timestamp;
use serde::Serialize;

use forge_base::id::DispatchId;
use forge_base::time;
use forge_store as store;
use forge_store::node::NodeRecord;
use forge_store::record::{DispatchFilter, DispatchRecord, DispatchState, Home, Status};

use super::nodes::{self, OfferedAdapter};
use super::route::Candidate;
use super::{Dispatcher, Inner};

/// Dispatches at the head of an adapter's queue whose place is known.
const PLACES: usize = 1000;
/// Running dispatches among which that of a session is looked for.
const RUNNING: usize = 200;

/// Reason for which a queued dispatch has not started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitReason {
    pub kind: WaitKind,
    /// The reason for people.
    pub message: String,
    /// Place in the queue of the adapter, from 1; only for `concurrency`, up to 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub place: Option<usize>,
    /// Dispatch of the same session that runs now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dispatch_id: Option<DispatchId>,
    /// Node that it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Time at which this wait ends at the latest: the dispatch then ends as `queue_timeout`; one that waits for a node
    /// it is not bound to runs elsewhere. `None` before `notBefore`.
    #[serde(
        serialize_with = "forge_base::time::millis_option",
        skip_serializing_if = "Option::is_none"
    )]
    pub given_up_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitKind {
    Approval,
    NotBefore,
    AdapterMissing,
    AdapterOffline,
    AdapterPaused,
    /// The node that it belongs to is away.
    Node,
    /// An earlier dispatch of its session has not finished.
    Session,
    /// All slots of the adapter are taken, or are by those before it.
    Concurrency,
}

/// State at the time of the question, which is the same for all dispatches that are asked for.
struct Seen<'a> {
    adapters: Vec<Candidate<'a>>,
    places: BTreeMap<DispatchId, usize>,
    /// Adapters with more ready dispatches than have a place.
    overflowing: BTreeSet<&'a str>,
    running: Vec<DispatchRecord>,
    /// Nodes that are away, of those dispatches that belong to one.
    away: BTreeMap<DispatchId, (Home, NodeRecord)>,
}

impl Dispatcher {
    /// Reasons for which these dispatches have not started, in their order; `None` for one that has, or is about to.
    /// Asks the store once for each adapter among them, and at most twice for all of them.
    pub async fn wait_reasons(
        &self,
        dispatches: &[DispatchRecord],
    ) -> Result<Vec<Option<WaitReason>>, store::Error> {
        let inner = &*self.inner;
        let now = inner.finisher.clock.now();
        let queued = dispatches.iter().filter(|dispatch| is_queued(dispatch));
        let providers: BTreeSet<_> = queued.map(|dispatch| &*dispatch.provider).collect();
        let own = providers.iter().filter_map(|name| inner.registry.get(name));
        let own: Vec<_> = own.map(|adapter| OfferedAdapter::of(&adapter)).collect();
        let offers = inner.offers.get();
        let mut adapters = own.iter().map(|offered| offered.candidate(now)).collect();
        nodes::join(&mut adapters, &offers, now);
        let (mut places, mut overflowing) = (BTreeMap::new(), BTreeSet::new());
        for provider in providers {
            let ready = inner.finisher.store.queue.ready(provider, PLACES).await?;
            if ready.len() == PLACES {
                overflowing.insert(provider);
            }
            places.extend(ready.into_iter().map(|ready| ready.id).zip(1..));
        }
        let seen = Seen {
            adapters,
            places,
            overflowing,
            running: inner.running_of_sessions(dispatches).await?,
            away: inner.nodes_away(dispatches).await?,
        };
        let reason = |dispatch| inner.wait_reason(dispatch, &seen, now);
        Ok(dispatches.iter().map(reason).collect())
    }
}

fn is_queued(dispatch: &DispatchRecord) -> bool {
    dispatch.state == DispatchState::Queued && !dispatch.cancel_requested
}

impl Inner {
    /// Running dispatches, if one of these waits for its session.
    async fn running_of_sessions(
        &self,
        dispatches: &[DispatchRecord],
    ) -> Result<Vec<DispatchRecord>, store::Error> {
        if !dispatches.iter().any(|dispatch| dispatch.is_blocked) {
            return Ok(Vec::new());
        }
        let running = DispatchFilter {
            status: Some(Status::Running),
            limit: RUNNING,
            ..DispatchFilter::default()
        };
        Ok(self.finisher.store.records.dispatches(running).await?.items)
    }

    /// Nodes whose lease has ended, of those of these dispatches that belong to one.
    async fn nodes_away(
        &self,
        dispatches: &[DispatchRecord],
    ) -> Result<BTreeMap<DispatchId, (Home, NodeRecord)>, store::Error> {
        let queued = dispatches.iter().filter(|dispatch| is_queued(dispatch));
        let queued: Vec<_> = queued.map(|dispatch| dispatch.id).collect();
        let (nodes, node) = (&self.finisher.store.nodes, self.node());
        if queued.is_empty() || node.lease.is_none() {
            return Ok(BTreeMap::new());
        }
        let mut homes = nodes.homes(&queued).await?;
        homes.retain(|(_, home)| {
            let others = node.others.borrow();
            home.node != node.id && others.iter().all(|other| other.id != home.node)
        });
        if homes.is_empty() {
            return Ok(BTreeMap::new());
        }
        let nodes = nodes.nodes().await?;
        let away = homes.into_iter().filter_map(|(id, home)| {
            let mut nodes = nodes.iter();
            let node = nodes.find(|node| node.id == home.node && !node.is_live)?;
            Some((id, (home, node.clone())))
        });
        Ok(away.collect())
    }

    fn wait_reason(
        &self,
        dispatch: &DispatchRecord,
        seen: &Seen<'_>,
        now: Timestamp,
    ) -> Option<WaitReason> {
        if !is_queued(dispatch) {
            return None;
        }
        let provider = &*dispatch.provider;
        let reason = |kind, message: String| WaitReason {
            kind,
            message,
            place: None,
            dispatch_id: None,
            node: None,
            given_up_at: Some(dispatch.start_by),
        };
        if dispatch.is_held {
            let message = "it waits for an approval".to_owned();
            return Some(reason(WaitKind::Approval, message));
        }
        if let Some(start) = dispatch.not_before.filter(|start| *start > now) {
            let message = format!("it starts at {} at the earliest", time::format(start));
            return Some(WaitReason {
                given_up_at: None,
                ..reason(WaitKind::NotBefore, message)
            });
        }
        let mut adapters = seen.adapters.iter();
        let Some(adapter) = adapters.find(|adapter| adapter.provider == provider) else {
            let message = format!("no adapter {provider} is loaded");
            return Some(reason(WaitKind::AdapterMissing, message));
        };
        if let Some((kind, message)) = of_adapter(adapter) {
            return Some(reason(kind, message));
        }
        if let Some((home, node)) = seen.away.get(&dispatch.id) {
            return Some(self.of_home(dispatch, home, node, &reason));
        }
        if dispatch.is_blocked {
            let session = dispatch.session.as_deref().unwrap_or_default();
            let is_before = |other: &&DispatchRecord| {
                other.provider == provider && other.session == dispatch.session
            };
            let before = seen.running.iter().find(is_before).map(|other| other.id);
            let message = match before {
                Some(id) => format!("{id} of the same session {session:?} runs"),
                None => format!("an earlier dispatch of the session {session:?} waits as well"),
            };
            return Some(WaitReason {
                dispatch_id: before,
                ..reason(WaitKind::Session, message)
            });
        }
        let place = seen.places.get(&dispatch.id).copied();
        let (running, slots) = (adapter.running, adapter.max_concurrent);
        let before = match place {
            // It starts now.
            Some(place) if place <= slots.saturating_sub(running) => return None,
            Some(place) => format!("{} wait before it", place - 1),
            None if seen.overflowing.contains(provider) => {
                format!("at least {PLACES} wait before it")
            }
            // It has just started, or its time has just come.
            None => return None,
        };
        let message = format!("{provider} runs {running} of {slots}, {before}");
        Some(WaitReason {
            place,
            ..reason(WaitKind::Concurrency, message)
        })
    }

    /// Reason that lies in the node that the dispatch belongs to.
    pub(super) fn of_home(
        &self,
        dispatch: &DispatchRecord,
        home: &Home,
        node: &NodeRecord,
        reason: &dyn Fn(WaitKind, String) -> WaitReason,
    ) -> WaitReason {
        let until = node.lease_until.filter(|_| !home.is_bound);
        let until = until.map(|until| time::after(until, self.config.offline_grace));
        let message = match home.is_bound {
            true => "its folder is on a node that is away",
            false => "the node that ran the last dispatch of its session is away",
        };
        WaitReason {
            node: Some(home.node.clone()),
            given_up_at: Some(
                until.map_or(dispatch.start_by, |until| until.min(dispatch.start_by)),
            ),
            ..reason(WaitKind::Node, format!("{message}: {}", home.node))
        }
    }
}

/// Reason that lies in the adapter itself: paused or offline, with its message.
pub(super) fn of_adapter(adapter: &Candidate<'_>) -> Option<(WaitKind, String)> {
    let provider = adapter.provider;
    match (adapter.paused, adapter.health) {
        (true, _) => Some((WaitKind::AdapterPaused, format!("{provider} is paused"))),
        (false, HealthStatus::Offline) => {
            let message = adapter.message.map(|message| format!(": {message}"));
            let message = format!("{provider} is offline{}", message.unwrap_or_default());
            Some((WaitKind::AdapterOffline, message))
        }
        (false, HealthStatus::Healthy | HealthStatus::Degraded) => None,
    }
}
