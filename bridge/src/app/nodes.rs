//! The nodes that share the store: what this one tells the others, and takes over from them.

use forge_dispatch::nodes::Offer;
use rustix::system::uname;

use super::Bridge;

impl Bridge {
    /// Follows the other nodes: cancellations until the end, their work until this one drains.
    pub(super) fn follow_nodes(&self) {
        let itself = Offer {
            name: uname().nodename().to_string_lossy().into_owned(),
            address: self.url(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Offer::default()
        };
        let (follow, take_over) = (self.dispatcher.clone(), self.dispatcher.clone());
        let following = follow.follow_nodes(itself, self.ending.clone());
        self.tracker.spawn(following);
        self.tracker
            .spawn(take_over.take_over(self.starting.clone()));
    }
}
