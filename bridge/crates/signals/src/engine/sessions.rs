//! Sessions of the engine API in memory. The adapters choose their ids, so each token has its own. No I/O.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::RwLock;

use forge_base::digest::{Digest, hex, sha256};
use forge_base::time;
use forge_store::record::SignalSession;

use super::signal::Effect;

/// Time for which a paused session does not end by itself.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 60 * 60);
/// Sessions of an adapter that one heartbeat is counted for.
const MOST_BEATING: usize = 64;

/// Place of the sessions that have one id of one token: at most one of them is live.
#[derive(Debug)]
pub(super) struct Place {
    /// Id on the wire: the adapter's, or the one that was assigned.
    pub(super) id: String,
    pub(super) owner: Digest,
    pub(super) newest: Mutex<Newest>,
    /// Taken for reading while a signal is stored, for writing while a session opens, pauses or ends.
    pub(super) gate: RwLock<()>,
}

/// Newest session of a place.
#[derive(Clone, Debug)]
pub(super) struct Newest {
    pub(super) session: SignalSession,
    /// False while the store has not taken it.
    pub(super) is_stored: bool,
    /// Last proof of life of its adapter; `None` if there was none, or if its end was noticed.
    pub(super) beat_at: Option<Timestamp>,
    /// Repeat key of the signal that ended it.
    pub(super) ended_by: Option<Digest>,
}

/// Effect of a signal on the sessions of its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Plan {
    /// Nothing is stored.
    Ignore,
    Store(Change),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Change {
    /// The session has to be opened first: it is new, or the former one has ended.
    pub(super) opens: bool,
    pub(super) ends: bool,
    /// Pause after the signal.
    pub(super) paused_at: Option<Timestamp>,
}

impl Newest {
    pub(super) fn is_live(&self, now: Timestamp, timeout: Duration) -> bool {
        self.session.ended_at.is_none() && !self.is_idle(now, timeout)
    }

    /// Counts a signal ahead of the clock, which was set back, as one of now.
    fn follow_clock(&mut self, now: Timestamp) -> &Self {
        let session = &mut self.session;
        session.last_at = session.last_at.min(now);
        session.paused_at = session.paused_at.map(|at| at.min(now));
        self.beat_at = self.beat_at.map(|at| at.min(now));
        self
    }

    /// True if the session has not ended, and no signal came for the timeout, or for longer than a pause lasts.
    pub(super) fn is_idle(&self, now: Timestamp, timeout: Duration) -> bool {
        let (since, limit) = match self.session.paused_at {
            Some(paused_at) => (paused_at.max(self.session.last_at), LONGEST_PAUSE),
            None => (self.session.last_at, timeout),
        };
        self.session.ended_at.is_none() && time::wall_age(since, now) >= limit
    }

    pub(super) fn plan(&self, effect: Effect, now: Timestamp, timeout: Duration) -> Plan {
        let is_live = self.is_live(now, timeout);
        if effect == Effect::Ends && !is_live {
            return Plan::Ignore;
        }
        let former = self.session.paused_at.filter(|_| is_live);
        Plan::Store(Change {
            opens: !is_live || !self.is_stored,
            ends: effect == Effect::Ends,
            paused_at: match effect {
                Effect::Pauses => Some(now),
                // The adapter lives, and the user is still away.
                Effect::Beats => former,
                Effect::Ends | Effect::None => None,
            },
        })
    }

    /// True if the signal leaves its session as it is.
    pub(super) fn keeps(&self, change: Change) -> bool {
        !change.opens && !change.ends && change.paused_at == self.session.paused_at
    }
}

impl Place {
    fn new(session: SignalSession, owner: Digest, is_stored: bool) -> Self {
        Self {
            id: wire_id(&session).to_owned(),
            owner,
            newest: Mutex::new(Newest {
                session,
                is_stored,
                beat_at: None,
                ended_by: None,
            }),
            gate: RwLock::new(()),
        }
    }

    pub(super) fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Id of a session on the wire.
pub(super) fn wire_id(session: &SignalSession) -> &str {
    session.client_session_id.as_deref().unwrap_or(&session.id)
}

/// Key that repeats are compared under, and that no key of the local agent is like.
pub(super) fn key_of(owner: &Digest, id: &str) -> String {
    format!("eng_{}", hex(&sha256([owner, id.as_bytes()].concat())))
}

/// Places by owner and id, and by owner and adapter.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    by_key: HashMap<String, Arc<Place>>,
    /// Oldest first.
    by_adapter: HashMap<(Digest, String), Vec<Arc<Place>>>,
}

impl Tables {
    fn insert(&mut self, session: SignalSession, owner: Digest, is_stored: bool) -> Arc<Place> {
        let (key, adapter) = (session.key_id.clone(), session.adapter.clone());
        let place = Arc::new(Place::new(session, owner, is_stored));
        self.by_key.insert(key, Arc::clone(&place));
        let of_adapter = self.by_adapter.entry((owner, adapter)).or_default();
        of_adapter.push(Arc::clone(&place));
        place
    }

    fn retain(&mut self, keep: impl Fn(&Place) -> bool) {
        self.by_key.retain(|_, place| keep(place));
        self.by_adapter.retain(|_, places| {
            places.retain(|place| keep(place));
            !places.is_empty()
        });
    }
}

impl Sessions {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stored session, unless its place has a newer one.
    pub(super) fn restore(&self, session: SignalSession) {
        let Some(owner) = session.owner else { return };
        let mut tables = self.tables();
        match tables.by_key.get(&session.key_id) {
            None => drop(tables.insert(session, owner, true)),
            Some(place) => {
                let mut newest = place.newest();
                if newest.session.started_at <= session.started_at {
                    newest.session = session;
                }
            }
        }
    }

    /// Place of this key, or a new one for the session that `open` makes; `None` if there are `most` already.
    pub(super) fn enter(
        &self,
        key: &str,
        most: usize,
        open: impl FnOnce() -> (SignalSession, Digest),
    ) -> Option<Arc<Place>> {
        let mut tables = self.tables();
        if let Some(place) = tables.by_key.get(key) {
            return Some(Arc::clone(place));
        }
        if tables.by_key.len() >= most {
            return None;
        }
        let (session, owner) = open();
        Some(tables.insert(session, owner, false))
    }

    /// Live sessions of an adapter, newest first.
    pub(super) fn beating(
        &self,
        owner: &Digest,
        adapter: &str,
        now: Timestamp,
        timeout: Duration,
    ) -> Vec<Arc<Place>> {
        let tables = self.tables();
        let places = tables.by_adapter.get(&(*owner, adapter.to_owned()));
        let newest_first = places.into_iter().flatten().rev();
        let live = newest_first.filter(|place| place.newest().is_live(now, timeout));
        let mut live: Vec<_> = live.cloned().collect();
        live.sort_by_key(|place| std::cmp::Reverse(place.newest().session.started_at));
        live.truncate(MOST_BEATING);
        live
    }

    pub(super) fn live(&self, now: Timestamp, timeout: Duration) -> usize {
        let tables = self.tables();
        let mut places = tables.by_key.values();
        let is_live = |place: &&Arc<Place>| place.newest().is_live(now, timeout);
        places.by_ref().filter(is_live).count()
    }

    /// Places whose newest session fits.
    pub(super) fn matching(
        &self,
        now: Timestamp,
        fits: impl Fn(&Newest) -> bool,
    ) -> Vec<Arc<Place>> {
        let tables = self.tables();
        let places = tables.by_key.values();
        let matching = places.filter(|place| fits(place.newest().follow_clock(now)));
        matching.cloned().collect()
    }

    /// Forgets the places whose newest session does not fit.
    pub(super) fn retain(&self, fits: impl Fn(&Newest) -> bool) {
        self.tables().retain(|place| fits(&place.newest()));
    }
}
