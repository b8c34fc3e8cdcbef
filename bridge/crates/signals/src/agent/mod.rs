//! Local agent: opens sessions for tools on this machine, verifies the signals that they sign, and stores them before
//! they are answered. While the store is away, signals are answered from memory as not logged.

mod executions;
mod sessions;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use forge_base::event::kind;
use forge_base::tasks::Rounds;
use forge_base::time::Clock;
use forge_base::vault::{self, Vault};
use forge_store::record::{Intervention, SignalSession, SignalSource, SignalTotals, SignalVerdict};
use forge_store::roles::{Secrets, Signals};
use forge_store::sealed;
use secrecy::ExposeSecret as _;

pub use self::executions::ExecutionSession;
use self::sessions::{Chain, KEY_LIFE, Sessions};
use crate::FieldProblem;
use crate::config::Config;
use crate::forward;
use crate::ledger::Ledger;
use crate::meters::{Meters, Outcome};
use crate::record::{self, Record};
use crate::session::{self, new_id, session_event};
use crate::sign::{SessionKeys, Signature};

/// Name and sealing context of the secret that session keys are derived from.
pub const SECRET: &str = "signals-secret";
const SECRET_BYTES: usize = 32;
const END_IDLE_EVERY: Duration = Duration::from_secs(15);

/// Dependencies of the agent.
pub struct Setup {
    pub config: Config,
    pub store: Arc<dyn Signals>,
    pub ledger: Ledger,
    pub clock: Clock,
}

/// Error at the start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("sessions of signals cannot be read")]
    Store(#[from] forge_store::Error),
    #[error("the secret of session keys cannot be decrypted")]
    Secret(#[from] vault::Error),
}

/// Handle of the agent. Cheap to clone.
#[derive(Clone)]
pub struct Agent {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    store: Arc<dyn Signals>,
    ledger: Ledger,
    clock: Clock,
    keys: SessionKeys,
    /// Address of the listener, once it is bound.
    address: OnceLock<SocketAddr>,
    sessions: Sessions,
    meters: Meters,
    forwarding: forward::Meters,
    /// Notified after a signal was stored.
    stored: Notify,
    /// Held while a session with a client's own id is started, so that it is started once.
    starting: Mutex<()>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").finish_non_exhaustive()
    }
}

/// Session that was opened, or found again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    pub session_id: String,
    /// Padded base64 of 32 bytes.
    pub session_key: String,
    pub expires_at: Timestamp,
}

/// Reason why no session was opened.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the request is not valid")]
    Invalid(Vec<FieldProblem>),
    #[error("there are {0} sessions (signals.max_sessions)")]
    Full(usize),
    #[error(transparent)]
    Store(#[from] forge_store::Error),
}

/// Answer to a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emitted {
    pub session_id: String,
    pub verdict: SignalVerdict,
    /// True if the signal is on disk.
    pub is_logged: bool,
}

/// Reason why a signal was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    #[error("{0}")]
    Unauthorized(&'static str),
    #[error("the signal is not valid")]
    Invalid(Vec<FieldProblem>),
}

impl Agent {
    /// Reads the sessions whose keys are still valid.
    pub async fn open(setup: Setup, secrets: &dyn Secrets, vault: &Vault) -> Result<Self, Error> {
        let sealed = sealed::named(secrets, SECRET, || {
            vault.seal(SECRET, &rand::random::<[u8; SECRET_BYTES]>())
        });
        let secret = vault.unseal(SECRET, &sealed.await?)?;
        let inner = Inner {
            config: setup.config,
            store: setup.store,
            ledger: setup.ledger,
            clock: setup.clock,
            keys: SessionKeys::new(secret.expose_secret()),
            address: OnceLock::new(),
            sessions: Sessions::default(),
            meters: Meters::default(),
            forwarding: forward::Meters::default(),
            stored: Notify::new(),
            starting: Mutex::default(),
        };
        let since = inner
            .clock
            .now()
            .checked_sub(KEY_LIFE)
            .unwrap_or(Timestamp::MIN);
        let restore = |session| drop(inner.sessions.insert(session));
        session::recent(&*inner.store, SignalSource::Agent, since, restore).await?;
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// User of signals and dispatches that name none.
    pub fn user(&self) -> Option<&str> {
        self.inner.config.user.as_deref()
    }

    pub fn ledger(&self) -> &Ledger {
        &self.inner.ledger
    }

    /// Number of sessions whose key is valid.
    pub fn sessions(&self) -> usize {
        self.inner.sessions.len()
    }

    pub fn meters(&self) -> &Meters {
        &self.inner.meters
    }

    /// Numbers of forwarded records.
    pub fn forwarding(&self) -> &forward::Meters {
        &self.inner.forwarding
    }

    /// Returns when signals were stored since the last call.
    pub(crate) async fn stored(&self) {
        self.inner.stored.notified().await;
    }

    /// Live sessions that have signals, the one with the latest signal first.
    pub(crate) fn live(&self) -> Vec<SignalSession> {
        let inner = &*self.inner;
        let (now, timeout) = (inner.clock.now(), inner.config.session_timeout);
        inner.sessions.live(now, timeout)
    }

    /// Has the next answer in this session carry an intervention, unless that has one of its own.
    pub(crate) fn tell(&self, intervention: Intervention) {
        let chain = self.inner.sessions.find(&intervention.session_id);
        if let Some(chain) = chain {
            chain.tell(intervention);
        }
    }

    /// Opens a session for a tool; the same one again for a client's own id that is live.
    pub async fn start(&self, tree: &Value) -> Result<Started, StartError> {
        let inner = &*self.inner;
        let request = record::Start::read(tree).map_err(StartError::Invalid)?;
        let config = &inner.config;
        let user_id = request.user_id.or_else(|| config.user.clone());
        let now = inner.clock.now();
        let _starting = match &request.client_session_id {
            None => None,
            Some(client) => {
                let starting = inner.starting.lock().await;
                let user = user_id.as_deref();
                let known = inner.sessions.of_client(
                    &request.adapter,
                    user,
                    client,
                    now,
                    config.session_timeout,
                );
                if let Some(chain) = known {
                    return Ok(inner.started(&chain));
                }
                Some(starting)
            }
        };
        if inner.sessions.len() >= config.max_sessions {
            inner.sessions.prune(now);
            if inner.sessions.len() >= config.max_sessions {
                return Err(StartError::Full(config.max_sessions));
            }
        }
        let id = new_id();
        let session = SignalSession {
            key_id: id.clone(),
            id,
            source: SignalSource::Agent,
            adapter: request.adapter,
            user_id,
            project_id: None,
            client_session_id: request.client_session_id,
            owner: None,
            started_at: now,
            last_at: now,
            paused_at: None,
            ended_at: None,
            totals: SignalTotals::default(),
        };
        let event = session_event(kind::SIGNAL_SESSION_STARTED, &session, now);
        inner
            .store
            .open_signal_session(session.clone(), vec![event])
            .await?;
        Ok(inner.started(&inner.sessions.insert(session)))
    }

    /// Verifies and stores a signal. `body` holds the bytes that were signed, `tree` is their JSON.
    pub async fn emit(
        &self,
        body: &[u8],
        tree: &Value,
        signature: Option<Signature>,
    ) -> Result<Emitted, EmitError> {
        let inner = &*self.inner;
        let now = inner.clock.now();
        let signature = signature.ok_or(EmitError::Unauthorized(
            "X-Forg-Signature must be given once, as sha256= and 64 hexadecimal digits",
        ))?;
        let text = |name: &str| tree[name].as_str();
        let adapter = text("adapter").unwrap_or_default();
        let user = text("user_id");
        let candidates = inner
            .sessions
            .candidates(text("session_id"), adapter, user, now);
        let mut signing = candidates.into_iter();
        let signing = signing.find(|chain| signature.is_of(&inner.keys.key(&chain.key_id), body));
        let chain = signing.ok_or(EmitError::Unauthorized(
            "the signature is of no session that is known; start one by POST /session/start",
        ))?;
        let record = Record::read(tree).map_err(|problems| inner.refuse(problems))?;
        if inner.config.strict {
            let problem = record::skewed(record.ts, now);
            problem.map_or(Ok(()), |problem| Err(inner.refuse(vec![problem])))?;
        }
        let repeat_key = record::repeat_key(record.call_id.as_deref(), body, tree);
        let mut emitted = inner.store_signal(&chain, &record, repeat_key, now).await;
        inner.stored.notify_one();
        let verdict = &mut emitted.verdict;
        if !verdict.blocked && verdict.intervention.is_none() {
            verdict.intervention = chain.take_told();
        }
        Ok(emitted)
    }

    /// Ends idle sessions, until the token is cancelled.
    pub async fn run(self, ending: CancellationToken) {
        let mut rounds = Rounds::every(END_IDLE_EVERY, ending);
        while rounds.due().await {
            rounds.work(self.end_idle()).await;
        }
    }

    /// Ends the sessions that were idle for the timeout.
    pub(crate) async fn end_idle(&self) {
        let inner = &*self.inner;
        let now = inner.clock.now();
        let limit = inner.config.session_timeout;
        for chain in inner.sessions.idle(now, limit) {
            let _gate = chain.gate.write().await;
            if !chain.newest().is_idle(now, limit) {
                continue;
            }
            let (session, _) = chain.session();
            let ended_at = session.last_at.max(session.started_at);
            let event = session_event(kind::SIGNAL_SESSION_ENDED, &session, ended_at);
            let ends = vec![(session.id.clone(), ended_at)];
            match inner.store.end_signal_sessions(ends, vec![event]).await {
                Ok(()) => chain.newest().ended_at = Some(ended_at),
                Err(error) => {
                    tracing::warn!("idle sessions of signals are not ended: {error}");
                    return;
                }
            }
        }
        inner.sessions.prune(now);
    }
}

impl Inner {
    fn refuse(&self, problems: Vec<FieldProblem>) -> EmitError {
        self.meters.count(Outcome::Invalid);
        EmitError::Invalid(problems)
    }

    fn started(&self, chain: &Chain) -> Started {
        let expires_at = chain.expires_at();
        Started {
            session_id: chain.session_id(),
            session_key: self.keys.encoded(&chain.key_id),
            expires_at,
        }
    }
}
