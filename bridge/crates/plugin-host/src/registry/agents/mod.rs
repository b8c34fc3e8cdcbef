//! Directory of the agents that the runtime of an adapter has, by id. Routing reads it, so that no dispatch waits for
//! a runtime.

#[cfg(test)]
mod tests;

use forge_adapter_api::foreign_json;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use forge_adapter_api::AdapterError;
use futures_util::future::join_all;
use jiff::Timestamp;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Registry;
use super::adapter::Adapter;

/// Most ids that are kept of one adapter.
const MAX_IDS: usize = 10_000;
/// Longest `agentId` of a dispatch; longer ids are never asked for.
const MAX_ID_BYTES: usize = 256;
/// Limit of one request to the runtime.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a caller waits for a request, which continues after it.
const WAIT: Duration = Duration::from_secs(2);
/// Requests that list the agents, by interface; the first that the adapter has is used.
const LISTS: [(&str, &str); 2] = [
    ("runtime", "runtime.discoverAgents"),
    ("agents", "agents.list"),
];

/// State of an adapter's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentListing {
    /// Number of ids that are known.
    pub count: usize,
    /// False if the runtime has more agents than the directory keeps.
    pub is_complete: bool,
    /// Time of the answer that the ids are from; `None` before the first one.
    pub listed_at: Option<Timestamp>,
    /// Reason why the last request failed; the ids are then those of the answer before.
    pub error: Option<String>,
}

/// Ids of the agents of one adapter.
#[derive(Default)]
pub(super) struct AgentDirectory {
    listed: RwLock<Listed>,
    /// Number of requests that were wanted so far.
    wanted: AtomicU64,
    /// Held during a request: number of wanted ones that began before the last request did.
    served: tokio::sync::Mutex<u64>,
}

#[derive(Default)]
struct Listed {
    ids: Ids,
    at: Option<Timestamp>,
    error: Option<String>,
}

impl AgentDirectory {
    fn listed(&self) -> RwLockReadGuard<'_, Listed> {
        self.listed.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` before the first answer of the runtime.
    fn has(&self, agent_id: &str) -> Option<bool> {
        let listed = self.listed();
        listed.at?;
        Some(listed.ids.known.contains(agent_id))
    }

    fn report(&self) -> AgentListing {
        let listed = self.listed();
        AgentListing {
            count: listed.ids.known.len(),
            is_complete: !listed.ids.is_cut,
            listed_at: listed.at,
            error: listed.error.clone(),
        }
    }

    /// Takes the answer of a runtime; after a failure, the ids of the answer before stay. Returns a line for the log if
    /// something is wrong that was not wrong before.
    fn record(&self, answer: Result<Vec<u8>, AdapterError>, now: Timestamp) -> Option<String> {
        let read = answer
            .map_err(|error| error.to_string())
            .and_then(|answer| {
                let read = foreign_json::from_slice::<Ids>(&answer);
                read.map_err(|error| format!("its list of agents is unreadable: {error}"))
            });
        let mut listed = self.listed.write().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(ids) => {
                let cut = ids.is_cut && !listed.ids.is_cut;
                *listed = Listed {
                    ids,
                    at: Some(now),
                    error: None,
                };
                cut.then(|| format!("it has more than {MAX_IDS} agents; the rest is not routed by"))
            }
            Err(error) => {
                let known = listed.error.replace(error.clone());
                known.is_none().then_some(error)
            }
        }
    }

    fn clear(&self) {
        let mut listed = self.listed.write().unwrap_or_else(PoisonError::into_inner);
        *listed = Listed::default();
    }
}

impl Adapter {
    /// True if the runtime has this agent, as far as is known; `None` if the adapter lists no agents.
    pub fn has_agent(&self, agent_id: &str) -> Option<bool> {
        self.shared.agents.has(agent_id)
    }

    /// State of the directory; `None` if the adapter lists no agents.
    pub fn agents(&self) -> Option<AgentListing> {
        self.lists_agents().then(|| self.shared.agents.report())
    }

    fn lists_agents(&self) -> bool {
        LISTS.iter().any(|(name, _)| self.has_interface(name))
    }

    /// Asks the runtime for its agents. Returns after the answer or after two seconds; the request then continues. One
    /// request at a time: all that were wanted before it begins share its answer.
    pub async fn refresh_agents(&self) {
        if !self.lists_agents() {
            self.shared.agents.clear();
            return;
        }
        let adapter = self.clone();
        let asking = self.shared.post.tracker.spawn(async move {
            let closing = &adapter.shared.closing;
            closing.run_until_cancelled(adapter.ask_for_agents()).await;
        });
        // Neither the timeout nor a panic, which is in the log, is of interest to the caller.
        let _ = tokio::time::timeout(WAIT, asking).await;
    }

    async fn ask_for_agents(&self) {
        let directory = &self.shared.agents;
        let mine = directory.wanted.fetch_add(1, Ordering::AcqRel) + 1;
        let mut served = directory.served.lock().await;
        if *served >= mine {
            return;
        }
        let wanted = directory.wanted.load(Ordering::Acquire);
        let answer = self.list_agents().await;
        if let Some(line) = directory.record(answer, Timestamp::now()) {
            let provider = self.provider();
            tracing::warn!(
                adapter.id = provider,
                "agents of adapter {provider}: {line}"
            );
        }
        *served = wanted;
    }

    async fn list_agents(&self) -> Result<Vec<u8>, AdapterError> {
        let mut answer = Err(AdapterError::new("unsupported_op", "it lists no agents"));
        for (interface, op) in LISTS {
            if self.has_interface(interface) {
                answer = self.call(op, b"{}".to_vec(), TIMEOUT).await;
            }
            match &answer {
                Err(error) if error.code == "unsupported_op" => {}
                Ok(_) | Err(_) => break,
            }
        }
        answer
    }
}

impl Registry {
    /// Asks the runtimes of all adapters for their agents, concurrently; waits at most two seconds.
    pub async fn refresh_agents(&self) {
        join_all(self.routable().iter().map(Adapter::refresh_agents)).await;
    }
}

/// The ids in a list of agents, up to the bound. Everything else in the list is skipped while it is read.
#[derive(Default)]
struct Ids {
    known: HashSet<Box<str>>,
    /// True if there were more.
    is_cut: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named<'a> {
    #[serde(borrow)]
    agent_id: Cow<'a, str>,
}

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(IdsVisitor)
    }
}

struct IdsVisitor;

impl<'de> Visitor<'de> for IdsVisitor {
    type Value = Ids;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of agents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Ids, A::Error> {
        let mut ids = Ids::default();
        while let Some(Named { agent_id }) = list.next_element()? {
            if agent_id.len() > MAX_ID_BYTES || ids.known.contains(&*agent_id) {
                continue;
            }
            if ids.known.len() < MAX_IDS {
                ids.known.insert(agent_id.into());
            } else {
                ids.is_cut = true;
            }
        }
        Ok(ids)
    }
}
