//! Nodes: bridges that share a store. Each has an id, which lies in its data folder, and works under an epoch, which ends
//! with its lease. A store that only one process can open has one node, whose lease never ends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::value::RawValue;
use tokio::sync::watch;

use forge_base::id::DispatchId;
use forge_base::time::{Clock, Offset};

use crate::ticket::Tickets;

/// State of the lease of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure {
    /// Executions and attempts of this epoch may go on.
    Held { epoch: u64 },
    /// The lease could not be renewed and is about to end, or has ended: others take over what ran here.
    Lost,
}

/// News of the other nodes that concern this one, as of the last poll.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Notices {
    /// Attempts that run here and have a cancel request.
    pub cancelled: Vec<(DispatchId, u32)>,
    /// Adapters that have dispatches which can start here.
    pub ready: Vec<String>,
    /// Adapters that are paused on all nodes.
    pub paused: BTreeSet<String>,
    /// Grows when a node has ended or changed what it offers.
    pub nodes: u64,
}

/// A node as the others see it.
#[derive(Clone, Debug)]
pub struct NodeRecord {
    pub id: String,
    pub epoch: u64,
    /// Description of the node, which it publishes, as JSON.
    pub offer: Box<RawValue>,
    /// End of the lease by the clock of the database; `None` without one.
    pub lease_until: Option<Timestamp>,
    pub is_live: bool,
}

/// This node.
#[derive(Debug)]
pub struct Node {
    pub id: String,
    /// Length of the lease. `None`: it never ends, and there are no other nodes.
    pub lease: Option<Duration>,
    pub tenure: watch::Sender<Tenure>,
    pub notices: watch::Sender<Notices>,
    /// The other nodes that are live.
    pub others: watch::Sender<Arc<[NodeRecord]>>,
    /// Other nodes whose lease has ended, for a day; set before `others`.
    pub ended: watch::Sender<Arc<[NodeRecord]>>,
    /// Description of this node, which it publishes.
    pub offer: watch::Sender<Box<RawValue>>,
    /// Unused tickets of a store with one node.
    pub tickets: Tickets,
    /// Clock of the database, if it has one, as of the last renewal.
    pub offset: &'static Offset,
}

impl Node {
    pub fn new(id: String, lease: Option<Duration>, epoch: u64) -> Self {
        Self {
            id,
            lease,
            tenure: watch::Sender::new(Tenure::Held { epoch }),
            notices: watch::Sender::default(),
            others: watch::Sender::new(Arc::from([])),
            ended: watch::Sender::new(Arc::from([])),
            offer: watch::Sender::new(RawValue::NULL.to_owned()),
            tickets: Tickets::default(),
            // One for each store that a process opens.
            offset: Box::leak(Box::default()),
        }
    }

    /// The only node of a store, under this epoch.
    pub fn alone(id: String, epoch: u64) -> Self {
        Self::new(id, None, epoch)
    }

    /// The clock that all nodes share.
    pub fn clock(&self) -> Clock {
        match self.lease {
            None => Clock::System,
            Some(_) => Clock::Corrected(self.offset),
        }
    }

    /// True if this node does what one node has to do for all: the one whose lease began first. For a moment there can be
    /// two, or none.
    pub fn is_first(&self) -> bool {
        let Tenure::Held { epoch } = *self.tenure.borrow() else {
            return false;
        };
        self.others.borrow().iter().all(|node| epoch < node.epoch)
    }

    /// The record of this node, if it is the only one.
    pub fn record(&self) -> NodeRecord {
        let epoch = match *self.tenure.borrow() {
            Tenure::Held { epoch } => epoch,
            Tenure::Lost => 0,
        };
        NodeRecord {
            id: self.id.clone(),
            epoch,
            offer: self.offer.borrow().clone(),
            lease_until: None,
            is_live: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_node_is_the_one_that_has_its_lease_for_the_longest_time() {
        let node = Node::new("n".to_owned(), Some(Duration::from_secs(30)), 5);
        assert!(node.is_first());
        for (other, is_first) in [(6, true), (4, false)] {
            let other = NodeRecord {
                epoch: other,
                ..node.record()
            };
            node.others.send_replace(Arc::from([other]));
            assert_eq!(node.is_first(), is_first);
        }
        node.others.send_replace(Arc::from([]));
        node.tenure.send_replace(Tenure::Lost);
        assert!(!node.is_first());
    }
}
