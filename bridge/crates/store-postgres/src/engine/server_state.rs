//! Knowledge about the server that all connections of a process share. *Invariant: after a connection was lost, or a newer
//! timeline was found, no connection of before is used without a check; one to an older timeline is never used.*

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::watch;

use super::lock;

/// Cluster and timeline of a server; the timeline grows with each promotion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) system: i64,
    pub(crate) timeline: i64,
}

impl Place {
    /// Refuses a server that is not this one or its successor.
    fn admit(self, found: Self) -> Result<(), NotTheServer> {
        if found.system != self.system {
            return Err(NotTheServer::OtherCluster);
        }
        match found.timeline < self.timeline {
            true => Err(NotTheServer::Former {
                found: found.timeline,
                newest: self.timeline,
            }),
            false => Ok(()),
        }
    }
}

/// Reason why a connection is not one to the server of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotTheServer {
    #[error(
        "it is a former primary: its timeline is {found}, and the store continues on timeline {newest}"
    )]
    Former { found: i64, newest: i64 },
    #[error("it is a server of another database cluster")]
    OtherCluster,
}

#[derive(Debug, Default)]
pub(crate) struct ServerState {
    /// Place of the host that was connected to last, which is tried first.
    last_host: AtomicUsize,
    /// Newest place of the store; none before the store was found on a connection.
    newest: Mutex<Option<Place>>,
    /// Number of lost connections and of newer timelines.
    changes: watch::Sender<u64>,
}

impl ServerState {
    pub(super) fn last_host(&self) -> usize {
        self.last_host.load(Ordering::Relaxed)
    }

    pub(super) fn set_last_host(&self, place: usize) {
        self.last_host.store(place, Ordering::Relaxed);
    }

    /// Refuses a server that the store has left.
    pub(super) fn check(&self, found: Place) -> Result<(), NotTheServer> {
        lock(&self.newest).map_or(Ok(()), |newest| newest.admit(found))
    }

    /// Records that the store was found on this server, or refuses one that it has left.
    pub(crate) fn set_found(&self, found: Place) -> Result<(), NotTheServer> {
        let mut newest = lock(&self.newest);
        let before = *newest;
        before.map_or(Ok(()), |before| before.admit(found))?;
        *newest = Some(found);
        drop(newest);
        if before.is_some_and(|before| before != found) {
            self.suspect_all();
        }
        Ok(())
    }

    /// Suspects all connections that exist.
    pub(super) fn suspect_all(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Mark of a connection that is made or checked from now on.
    pub(super) fn mark(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Returns once connections of this mark are suspected.
    pub(super) async fn suspected(&self, mark: u64) {
        let mut changes = self.changes.subscribe();
        // It fails without a sender, which lives as long as this.
        let _ = changes.wait_for(|now| *now != mark).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(system: i64, timeline: i64) -> Place {
        Place { system, timeline }
    }

    #[test]
    fn only_the_newest_timeline_of_the_cluster_is_the_server() {
        let state = ServerState::default();
        assert_eq!(state.check(place(1, 1)), Ok(()));
        state.set_found(place(1, 2)).unwrap();
        for (found, expected) in [
            (place(1, 2), Ok(())),
            (place(1, 3), Ok(())),
            (
                place(1, 1),
                Err(NotTheServer::Former {
                    found: 1,
                    newest: 2,
                }),
            ),
            (place(2, 9), Err(NotTheServer::OtherCluster)),
        ] {
            assert_eq!(state.check(found), expected, "{found:?}");
            if expected.is_err() {
                assert_eq!(state.set_found(found), expected, "{found:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_newer_timeline_suspects_the_connections_of_before() {
        let state = ServerState::default();
        state.set_found(place(1, 1)).unwrap();
        let mark = state.mark();
        state.set_found(place(1, 1)).unwrap();
        assert_eq!(state.mark(), mark);
        state.set_found(place(1, 2)).unwrap();
        state.suspected(mark).await;
        assert_ne!(state.mark(), mark);
    }
}
