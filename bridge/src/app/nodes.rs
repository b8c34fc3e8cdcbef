//! The nodes that share the store: what this one tells the others, and takes over from them, and the keys that all have.

use std::collections::BTreeSet;
use std::sync::Arc;

use forge_base::vault::{KeyId, Vault};
use forge_dispatch::nodes::Offer;
use forge_store as store;
use forge_store::node::NodeRecord;
use forge_store::roles::Nodes;
use rustix::system::uname;

use super::Bridge;

/// Lets the vault encrypt with a key that all live nodes have, before anything is encrypted.
pub(super) async fn share_keys(nodes: &dyn Nodes, vault: &Vault) -> Result<(), store::Error> {
    let own = &nodes.node().id;
    let others = nodes.nodes().await?.into_iter();
    let others: Vec<_> = others
        .filter(|node| node.is_live && node.id != *own)
        .collect();
    share(vault, &others);
    Ok(())
}

/// True if another key encrypts from now on. Nothing changes while a node has not said which keys it has.
fn share(vault: &Vault, others: &[NodeRecord]) -> bool {
    let keys = |node| {
        let known = Offer::of(node).keys;
        known.iter().filter_map(|id| KeyId::parse(id)).collect()
    };
    let others: Vec<BTreeSet<KeyId>> = others.iter().map(keys).collect();
    !others.iter().any(BTreeSet::is_empty) && vault.share(others)
}

impl Bridge {
    /// Follows the other nodes: cancellations until the end, their work until this one drains.
    pub(super) fn follow_nodes(&self) {
        let itself = Offer {
            name: uname().nodename().to_string_lossy().into_owned(),
            address: self.url(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Offer::default()
        };
        if self.store.node().lease.is_some() {
            let ledger = self.agent.ledger().clone();
            self.tracker
                .spawn(ledger.follow_others(self.ending.clone()));
        }
        let mut others = self.store.node().others.subscribe();
        let (vault, key_rotated) = (self.vault.clone(), Arc::clone(&self.key_rotated));
        let keep = async move {
            while others.changed().await.is_ok() {
                if share(&vault, &others.borrow_and_update()) {
                    tracing::info!(
                        "all bridges have the key {}, which encrypts from now on",
                        vault.sealing()
                    );
                    key_rotated.notify_one();
                }
            }
        };
        let ending = self.ending.clone();
        self.tracker
            .spawn(async move { ending.run_until_cancelled(keep).await });
        let (follow, take_over) = (self.dispatcher.clone(), self.dispatcher.clone());
        let following = follow.follow_nodes(itself, self.ending.clone());
        self.tracker.spawn(following);
        self.tracker
            .spawn(take_over.take_over(self.starting.clone()));
    }
}
