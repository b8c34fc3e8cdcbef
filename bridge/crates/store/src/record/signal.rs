//! Signals of AI tools, and the sessions that they belong to.

use jiff::Timestamp;

use forge_base::digest::Digest;
use forge_base::event::NewEvent;

/// API that a session came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalSource {
    /// The local agent.
    Agent,
    Engine,
}

/// Session of a tool that sends signals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalSession {
    pub id: String,
    /// Id that its signing key is derived from: its own, or that of the session it succeeds.
    pub key_id: String,
    pub source: SignalSource,
    pub adapter: String,
    pub user_id: Option<String>,
    pub project_id: Option<String>,
    pub client_session_id: Option<String>,
    pub started_at: Timestamp,
    /// Latest arrival of a record, or the start.
    pub last_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub totals: SignalTotals,
}

/// Sums over the records of a session, also over those that retention has removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SignalTotals {
    pub signals: u64,
    /// Records with an error code.
    pub errors: u64,
    pub tokens_in: u64,
    pub tokens_out: u64,
    /// Micro-dollars.
    pub cost_micros: u64,
    /// Records with tokens and without a cost.
    pub unpriced: u64,
}

/// Stored signal. Its numbers are at most 2^63 − 1.
#[derive(Clone, Debug, PartialEq)]
pub struct SignalRecord {
    /// Arrival.
    pub at: Timestamp,
    /// Time that the tool states.
    pub ts: Timestamp,
    /// Hook or type.
    pub kind: Option<String>,
    pub model: Option<String>,
    /// Name of the tool that an agent uses.
    pub tool: Option<String>,
    pub user_id: Option<String>,
    pub project_id: Option<String>,
    /// `None` for a call that succeeded.
    pub error_code: Option<String>,
    pub tokens_in: Option<u64>,
    pub tokens_out: Option<u64>,
    /// Micro-dollars.
    pub cost_micros: Option<u64>,
    /// Both are part of `tokens_in`.
    pub cache_read_tokens: Option<u64>,
    pub cache_write_tokens: Option<u64>,
    pub latency_ms: Option<f64>,
    /// Verdict that the tool was given.
    pub blocked: bool,
}

/// Signal to store.
#[derive(Clone, Debug)]
pub struct NewSignal {
    pub session_id: String,
    pub record: SignalRecord,
    /// The same for each repeat of a signal; compared among all sessions of one key.
    pub repeat_key: Option<Digest>,
    /// Session that this signal opens before it is counted.
    pub opens: Option<SignalSession>,
    /// Session that ends before its successor opens, or with this signal, and its end.
    pub ends: Option<(String, Timestamp)>,
    pub events: Vec<NewEvent>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignalRecorded {
    New,
    /// Sent before: the session that counts it, and its verdict then.
    Repeat {
        session_id: String,
        blocked: bool,
    },
}

#[derive(Clone, Debug, Default)]
pub struct SignalSessionFilter {
    pub adapter: Option<String>,
    pub user: Option<String>,
    pub project: Option<String>,
    /// True selects sessions that have not ended, false those that have.
    pub active: Option<bool>,
    /// `Page::next` of the previous page.
    pub before: Option<u64>,
    pub limit: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptSignals {
    pub signals: u64,
    pub sessions: u64,
    /// Another step would remove more.
    pub more: bool,
}
