//! Signals of AI tools, the sessions that they belong to, and the interventions of rules.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use forge_base::digest::Digest;
use forge_base::event::NewEvent;

/// API that a session came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalSource {
    /// The local agent.
    Agent,
    Engine,
    /// A dispatch of the bridge; the session begins with its first charge.
    Execution,
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
    /// The tool's own id; that of a session of the engine is unique for one owner until it ends.
    pub client_session_id: Option<String>,
    /// SHA-256 of the token whose session it is; `None` for sessions of the local agent.
    pub owner: Option<Digest>,
    pub started_at: Timestamp,
    /// Latest arrival of a record, or the start.
    pub last_at: Timestamp,
    pub paused_at: Option<Timestamp>,
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
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Both are from 0 to 1.
    pub drift_score: Option<f64>,
    pub confidence: Option<f64>,
    /// JSON object of the fields that its type has besides.
    pub details: Option<String>,
    /// Verdict that the tool was given.
    pub blocked: bool,
    /// Intervention that the tool was told.
    pub intervention_id: Option<String>,
}

/// Consequence of a rule that holds. A tool is told it once, or each time if it blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intervention {
    pub id: String,
    pub rule_id: String,
    pub blocks: bool,
    pub severity: Severity,
    pub message: String,
    /// User, project, team or session that the rule holds for; empty for all together.
    pub scope_value: String,
    /// Period of the rule's window in which it began to hold.
    pub period: i64,
    pub session_id: String,
    pub at: Timestamp,
    /// False if the rule no longer held when a later record was judged.
    pub is_open: bool,
    pub acknowledged: Option<Acknowledgement>,
}

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Info,
    Warning,
    Critical,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Acknowledgement {
    pub at: Timestamp,
    /// Delay that the tool states.
    pub delay_ms: u64,
}

/// Effect of an acknowledgement.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Acknowledged {
    First,
    Again,
    /// There is no such intervention.
    Unknown,
}

/// Judge of signals. It is asked inside the transaction that stores a signal, so in the order in which they are stored.
pub trait Judge: fmt::Debug + Send + Sync + 'static {
    /// Judges a record of this session, whose totals do not contain it yet. Must not wait. A transaction that is rolled
    /// back takes the effect back, and asks again if it is repeated.
    fn judge(&self, session: &SignalSession, record: &SignalRecord) -> Judgement;
}

/// Outcome of a judgement, written with the record.
pub struct Judgement {
    pub verdict: SignalVerdict,
    pub begins: Vec<Intervention>,
    /// Ids of the interventions whose rule no longer holds.
    pub ends: Vec<String>,
    pub events: Vec<NewEvent>,
    /// Takes back the effect on the judge.
    pub undo: Box<dyn FnOnce() + Send>,
}

/// Answer to a signal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignalVerdict {
    pub blocked: bool,
    /// Intervention to tell: that of the rule that blocks, or one that began.
    pub intervention: Option<Intervention>,
    /// Something was noted that needs no attention.
    pub is_noted: bool,
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
    /// Pause of the session after this signal.
    pub paused_at: Option<Timestamp>,
    pub events: Vec<NewEvent>,
    /// Sets the verdict of the record. Without a judge it is stored as it is.
    pub judge: Option<Arc<dyn Judge>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignalRecorded {
    New(SignalVerdict),
    /// Sent before: the session that counts it, and its verdict then.
    Repeat(String, SignalVerdict),
}

/// Usage of a dispatch so far, counted as a signal. What was charged before is subtracted.
#[derive(Clone, Debug)]
pub struct Charge {
    /// Session of the dispatch, without totals; opened by its first charge.
    pub session: SignalSession,
    /// Record with the whole usage.
    pub record: SignalRecord,
    pub judge: Arc<dyn Judge>,
}

/// Records whose amounts are added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignalGroup {
    All,
    Users(Vec<String>),
    Project(String),
    Session(String),
}

/// Amounts of a signal that another bridge of the store has recorded, and the values that it counts for.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherSignal {
    /// Number of the record in the order in which all are stored.
    pub position: u64,
    pub session: String,
    pub user_id: Option<String>,
    pub project_id: Option<String>,
    pub at: Timestamp,
    pub amounts: SignalTotals,
}

/// Stored record, as it is read to be forwarded.
#[derive(Clone, Debug, PartialEq)]
pub struct SignalEntry {
    /// Number of the record in the order in which all are stored.
    pub position: u64,
    pub session: SignalSession,
    /// True if the store has no earlier record of the session.
    pub is_first: bool,
    /// Tokens in and out of the session up to and with this record.
    pub tokens: u64,
    pub record: SignalRecord,
}

/// Property whose values records are added up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalProperty {
    User,
    Project,
    /// Adapter of the session.
    Adapter,
    Model,
}

/// Sums over records by the values of a property.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignalSums {
    /// `None` is the value of records without the property.
    pub values: BTreeMap<Option<String>, SignalTotals>,
    /// Arrival of the newest record that is not counted, because there are too many.
    pub left_out: Option<Timestamp>,
}

#[derive(Clone, Debug, Default)]
pub struct InterventionFilter {
    pub session: Option<String>,
    /// `Page::next` of the previous page.
    pub before: Option<u64>,
    pub limit: usize,
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
    pub interventions: u64,
    pub sessions: u64,
    /// Another step would remove more.
    pub more: bool,
}
