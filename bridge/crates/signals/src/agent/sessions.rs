//! Sessions of tools in memory: which key a signal was signed with, and which session it belongs to. No I/O.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::RwLock;

use forge_base::time;
use forge_store::record::{Intervention, SignalRecord, SignalSession, SignalSource, SignalTotals};

use crate::record::Hook;

/// Time after the last signal for which a key is valid.
pub(super) const KEY_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// Sessions of an adapter that are tried for a signal that names none.
const MOST_TRIED: usize = 8;

/// Session and those that succeed it under the same key. Most are idle and there are many, so it is small.
#[derive(Debug)]
pub(super) struct Chain {
    /// Also the id of the first session.
    pub(super) key_id: Arc<str>,
    adapter: Arc<str>,
    pub(super) user_id: Option<Box<str>>,
    client_id: Option<Box<str>>,
    project_id: Option<Box<str>>,
    source: SignalSource,
    newest: Mutex<Newest>,
    /// Intervention of another bridge that the next answer carries.
    told: Mutex<Option<Box<Intervention>>>,
    /// Taken for reading while a signal is stored, for writing while a session ends or opens.
    pub(super) gate: RwLock<()>,
}

/// Newest session of a chain, without the fields that all of them share.
#[derive(Debug)]
pub(super) struct Newest {
    /// `None` for the first session.
    id: Option<Box<str>>,
    started_at: Timestamp,
    last_at: Timestamp,
    pub(super) ended_at: Option<Timestamp>,
    totals: SignalTotals,
    /// False while the store could not be told of it.
    pub(super) is_stored: bool,
}

/// Effect of a signal on its session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Plan {
    /// Nothing is stored.
    Ignore,
    Store(Steps),
}

/// Change of a session with a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Steps {
    /// The session has to be opened first: it is new, or was not stored.
    pub(super) opens: bool,
    /// The signal ends the session.
    pub(super) ends: bool,
}

impl Chain {
    fn new(session: SignalSession, adapter: Arc<str>, is_stored: bool) -> Self {
        let newest = Newest::of(&session, is_stored);
        Self {
            key_id: session.key_id.into(),
            adapter,
            user_id: session.user_id.map(Into::into),
            client_id: session.client_session_id.map(Into::into),
            project_id: session.project_id.map(Into::into),
            source: session.source,
            newest: Mutex::new(newest),
            told: Mutex::default(),
            gate: RwLock::new(()),
        }
    }

    pub(super) fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest session, and true if the store has it.
    pub(super) fn session(&self) -> (SignalSession, bool) {
        let newest = self.newest();
        let owned = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
        let session = SignalSession {
            id: newest.id.as_deref().unwrap_or(&self.key_id).to_owned(),
            key_id: self.key_id.to_string(),
            source: self.source,
            adapter: self.adapter.to_string(),
            user_id: owned(&self.user_id),
            project_id: owned(&self.project_id),
            client_session_id: owned(&self.client_id),
            owner: None,
            started_at: newest.started_at,
            last_at: newest.last_at,
            paused_at: None,
            ended_at: newest.ended_at,
            totals: newest.totals,
        };
        (session, newest.is_stored)
    }

    pub(super) fn session_id(&self) -> String {
        let newest = self.newest();
        newest.id.as_deref().unwrap_or(&self.key_id).to_owned()
    }

    pub(super) fn tell(&self, intervention: Intervention) {
        *self.told() = Some(Box::new(intervention));
    }

    pub(super) fn take_told(&self) -> Option<Intervention> {
        self.told().take().map(|told| *told)
    }

    fn told(&self) -> MutexGuard<'_, Option<Box<Intervention>>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True for the session of an execution of the bridge.
    pub(super) fn is_execution(&self) -> bool {
        self.source == SignalSource::Execution
    }

    pub(super) fn expires_at(&self) -> Timestamp {
        time::after(self.newest().last_at, KEY_LIFE)
    }

    pub(super) fn plan(&self, hook: Option<Hook>, now: Timestamp, timeout: Duration) -> Plan {
        let newest = self.newest();
        if self.is_execution() {
            return match hook {
                Some(Hook::SessionStart | Hook::SessionEnd) => Plan::Ignore,
                _ => Plan::Store(Steps {
                    opens: !newest.is_stored,
                    ends: false,
                }),
            };
        }
        let is_live = newest.is_live(now, timeout);
        match (hook, is_live) {
            (Some(Hook::SessionEnd), false) | (Some(Hook::SessionStart), true) => Plan::Ignore,
            (hook, is_live) => Plan::Store(Steps {
                opens: !is_live || !newest.is_stored,
                ends: hook == Some(Hook::SessionEnd),
            }),
        }
    }
}

impl Newest {
    pub(super) fn of(session: &SignalSession, is_stored: bool) -> Self {
        let is_first = session.id == session.key_id;
        Self {
            id: (!is_first).then(|| session.id.as_str().into()),
            started_at: session.started_at,
            last_at: session.last_at,
            ended_at: session.ended_at,
            totals: session.totals,
            is_stored,
        }
    }

    fn is_live(&self, now: Timestamp, timeout: Duration) -> bool {
        self.ended_at.is_none() && !self.is_idle(now, timeout)
    }

    /// Counts a signal ahead of the clock, which was set back, as one of now.
    fn follow_clock(&mut self, now: Timestamp) -> &Self {
        self.last_at = self.last_at.min(now);
        self
    }

    /// True if the session has not ended, and no signal came for the timeout.
    pub(super) fn is_idle(&self, now: Timestamp, timeout: Duration) -> bool {
        self.ended_at.is_none() && time::wall_age(self.last_at, now) >= timeout
    }

    /// Counts a record.
    pub(super) fn count(&mut self, record: &SignalRecord) {
        self.totals.add(record);
        self.last_at = self.last_at.max(record.at);
    }
}

/// Chains by the ids of their sessions and by adapter.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    by_id: HashMap<Arc<str>, Arc<Chain>>,
    /// Oldest first.
    by_adapter: HashMap<Arc<str>, VecDeque<Arc<Chain>>>,
}

impl Tables {
    /// Name of an adapter, which its chains share.
    fn adapter(&self, name: &str) -> Arc<str> {
        let known = self.by_adapter.get_key_value(name);
        known.map_or_else(|| name.into(), |(name, _)| Arc::clone(name))
    }
}

impl Sessions {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of chains.
    pub(super) fn len(&self) -> usize {
        let tables = self.tables();
        tables.by_adapter.values().map(VecDeque::len).sum()
    }

    /// Adds a new session: a chain of its own, or the newest one of its chain.
    pub(super) fn insert(&self, session: SignalSession) -> Arc<Chain> {
        let mut tables = self.tables();
        let id = session.id.clone();
        let chain = match tables.by_id.get(&*session.key_id).map(Arc::clone) {
            Some(chain) => {
                let mut newest = chain.newest();
                if newest.started_at <= session.started_at {
                    *newest = Newest::of(&session, newest.is_stored);
                }
                drop(newest);
                chain
            }
            None => {
                let adapter = tables.adapter(&session.adapter);
                let chain = Arc::new(Chain::new(session, Arc::clone(&adapter), true));
                let of_adapter = tables.by_adapter.entry(adapter).or_default();
                of_adapter.push_back(Arc::clone(&chain));
                let key_id = Arc::clone(&chain.key_id);
                tables.by_id.insert(key_id, Arc::clone(&chain));
                chain
            }
        };
        if !tables.by_id.contains_key(&*id) {
            tables.by_id.insert(id.into(), Arc::clone(&chain));
        }
        chain
    }

    /// Adds the session of an execution, which is found by its id alone, until it is removed. The first charge or signal
    /// stores it.
    pub(super) fn insert_execution(&self, session: SignalSession) {
        let mut tables = self.tables();
        let adapter = tables.adapter(&session.adapter);
        let chain = Chain::new(session, adapter, false);
        let id = Arc::clone(&chain.key_id);
        tables.by_id.insert(id, Arc::new(chain));
    }

    pub(super) fn remove_execution(&self, id: &str) {
        self.tables().by_id.remove(id);
    }

    /// Live session that a client named when it was started.
    pub(super) fn of_client(
        &self,
        adapter: &str,
        user: Option<&str>,
        client: &str,
        now: Timestamp,
        timeout: Duration,
    ) -> Option<Arc<Chain>> {
        let tables = self.tables();
        let mut of_adapter = tables.by_adapter.get(adapter)?.iter().rev();
        let found = of_adapter.find(|chain| {
            chain.client_id.as_deref() == Some(client)
                && chain.user_id.as_deref() == user
                && chain.newest().is_live(now, timeout)
        });
        found.cloned()
    }

    /// Chains whose key may have signed a signal: the one that it names, else the newest of its adapter and user.
    pub(super) fn candidates(
        &self,
        id: Option<&str>,
        adapter: &str,
        user: Option<&str>,
        now: Timestamp,
    ) -> Vec<Arc<Chain>> {
        let tables = self.tables();
        let is_valid = |chain: &&Arc<Chain>| now < chain.expires_at();
        match id {
            Some(id) => tables
                .by_id
                .get(id)
                .filter(is_valid)
                .cloned()
                .into_iter()
                .collect(),
            None => {
                let of_adapter = tables.by_adapter.get(adapter).into_iter().flatten().rev();
                let matching = of_adapter
                    .filter(|chain| user.is_none() || chain.user_id.as_deref() == user)
                    .filter(is_valid);
                matching.take(MOST_TRIED).cloned().collect()
            }
        }
    }

    pub(super) fn find(&self, id: &str) -> Option<Arc<Chain>> {
        self.tables().by_id.get(id).cloned()
    }

    /// Live sessions that have signals, the one with the latest signal first.
    pub(super) fn live(&self, now: Timestamp, timeout: Duration) -> Vec<SignalSession> {
        let tables = self.tables();
        let all = tables.by_adapter.values().flatten();
        let live = all.filter(|chain| {
            let newest = chain.newest();
            newest.totals.signals > 0 && newest.is_live(now, timeout)
        });
        let mut live: Vec<_> = live.map(|chain| chain.session().0).collect();
        live.sort_by_key(|session| Reverse(session.last_at));
        live
    }

    /// Sessions that have not ended and were idle for the timeout.
    pub(super) fn idle(&self, now: Timestamp, timeout: Duration) -> Vec<Arc<Chain>> {
        let tables = self.tables();
        let all = tables.by_adapter.values().flatten();
        let idle = all.filter(|chain| {
            let mut newest = chain.newest();
            newest.follow_clock(now).is_idle(now, timeout)
        });
        idle.cloned().collect()
    }

    /// Forgets chains whose key is no longer valid.
    pub(super) fn prune(&self, now: Timestamp) {
        let mut tables = self.tables();
        tables.by_adapter.retain(|_, chains| {
            chains.retain(|chain| now < chain.expires_at());
            !chains.is_empty()
        });
        tables.by_id.retain(|_, chain| now < chain.expires_at());
    }
}

#[cfg(test)]
mod tests {
    use std::mem::size_of;

    use super::*;

    /// Ten thousand idle sessions cost at most 10 MiB, of which the store's caches need some.
    #[test]
    fn an_idle_session_is_small() {
        const MOST_BYTES: usize = 6 * 1024 * 1024 / 10_000;
        // Three ids of a UUID's length, each in an allocation of its own, and the counters of two shared ones.
        let texts = 3 * 48 + 2 * 16;
        // A table that has just grown is half empty.
        let places = 2 * (size_of::<(Arc<str>, Arc<Chain>)>() + 1) + 2 * size_of::<Arc<Chain>>();
        let bytes = size_of::<Chain>() + texts + places;
        assert!(
            bytes <= MOST_BYTES,
            "{bytes}, the chain {}",
            size_of::<Chain>()
        );
    }
}
