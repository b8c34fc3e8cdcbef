//! Sessions of tools in memory: which key a signal was signed with, and which session it belongs to. No I/O.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::RwLock;

use forge_base::time;
use forge_store::record::{Intervention, SignalSession, SignalSource};

use crate::record::Hook;

/// Time after the last signal for which a key is valid.
pub(super) const KEY_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// Sessions of an adapter that are tried for a signal that names none.
const MOST_TRIED: usize = 8;

/// Session and those that succeed it under the same key.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) key_id: String,
    pub(super) adapter: String,
    pub(super) user_id: Option<String>,
    client_id: Option<String>,
    newest: Mutex<Newest>,
    /// Intervention of another bridge that the next answer carries.
    told: Mutex<Option<Intervention>>,
    /// Taken for reading while a signal is stored, for writing while a session ends or opens.
    pub(super) gate: RwLock<()>,
}

/// Newest session of a chain.
#[derive(Clone, Debug)]
pub(super) struct Newest {
    pub(super) session: SignalSession,
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
    pub(super) fn new(session: SignalSession) -> Self {
        Self {
            key_id: session.key_id.clone(),
            adapter: session.adapter.clone(),
            user_id: session.user_id.clone(),
            client_id: session.client_session_id.clone(),
            newest: Mutex::new(Newest {
                session,
                is_stored: true,
            }),
            told: Mutex::default(),
            gate: RwLock::new(()),
        }
    }

    pub(super) fn newest(&self) -> MutexGuard<'_, Newest> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self, intervention: Intervention) {
        *self.told() = Some(intervention);
    }

    pub(super) fn take_told(&self) -> Option<Intervention> {
        self.told().take()
    }

    fn told(&self) -> MutexGuard<'_, Option<Intervention>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True for the session of an execution of the bridge.
    pub(super) fn is_execution(&self) -> bool {
        self.newest().session.source == SignalSource::Execution
    }

    pub(super) fn expires_at(&self) -> Timestamp {
        time::after(self.newest().session.last_at, KEY_LIFE)
    }
}

impl Newest {
    pub(super) fn is_live(&self, now: Timestamp, timeout: Duration) -> bool {
        self.session.ended_at.is_none() && !self.is_idle(now, timeout)
    }

    /// True if the session has not ended, and no signal came for the timeout.
    pub(super) fn is_idle(&self, now: Timestamp, timeout: Duration) -> bool {
        let idle = time::between(self.session.last_at, now);
        self.session.ended_at.is_none() && idle >= timeout
    }

    pub(super) fn plan(&self, hook: Option<Hook>, now: Timestamp, timeout: Duration) -> Plan {
        if self.session.source == SignalSource::Execution {
            return match hook {
                Some(Hook::SessionStart | Hook::SessionEnd) => Plan::Ignore,
                _ => Plan::Store(Steps {
                    opens: !self.is_stored,
                    ends: false,
                }),
            };
        }
        let is_live = self.is_live(now, timeout);
        match (hook, is_live) {
            (Some(Hook::SessionEnd), false) | (Some(Hook::SessionStart), true) => Plan::Ignore,
            (hook, is_live) => Plan::Store(Steps {
                opens: !is_live || !self.is_stored,
                ends: hook == Some(Hook::SessionEnd),
            }),
        }
    }
}

/// Chains by the ids of their sessions and by adapter.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    by_id: HashMap<String, Arc<Chain>>,
    /// Oldest first.
    by_adapter: HashMap<String, VecDeque<Arc<Chain>>>,
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
        let known = tables.by_id.get(&session.key_id).map(Arc::clone);
        let chain = known.unwrap_or_else(|| {
            let chain = Arc::new(Chain::new(session.clone()));
            let of_adapter = tables.by_adapter.entry(chain.adapter.clone()).or_default();
            of_adapter.push_back(Arc::clone(&chain));
            chain
        });
        let mut newest = chain.newest();
        if newest.session.started_at <= session.started_at {
            newest.session = session;
        }
        drop(newest);
        tables
            .by_id
            .insert(chain.key_id.clone(), Arc::clone(&chain));
        tables.by_id.insert(id, Arc::clone(&chain));
        chain
    }

    /// Adds the session of an execution, which is found by its id alone, until it is removed. The first charge or signal
    /// stores it.
    pub(super) fn insert_execution(&self, session: SignalSession) {
        let chain = Chain::new(session);
        chain.newest().is_stored = false;
        let id = chain.key_id.clone();
        self.tables().by_id.insert(id, Arc::new(chain));
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
        let newest = all.map(|chain| chain.newest().clone());
        let live = newest.filter(|newest| newest.is_live(now, timeout));
        let mut live: Vec<_> = live
            .map(|newest| newest.session)
            .filter(|session| session.totals.signals > 0)
            .collect();
        live.sort_by_key(|session| Reverse(session.last_at));
        live
    }

    /// Sessions that have not ended and were idle for the timeout.
    pub(super) fn idle(&self, now: Timestamp, timeout: Duration) -> Vec<Arc<Chain>> {
        let tables = self.tables();
        let all = tables.by_adapter.values().flatten();
        let idle = all.filter(|chain| chain.newest().is_idle(now, timeout));
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
