//! A batch: the changes of one transaction. Each change names the rows that it needs; the rows of all are read and locked
//! with one message, each decision is made on them in memory, in the order of arrival, and what has changed is written
//! with a second message, which commits. A decision sees what those before it have decided.

pub(crate) mod load;
mod write;

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use serde_json::value::RawValue;
use tokio_postgres::Row;
use uuid::Uuid;

use forge_base::event::LogName;
use forge_base::id::{DispatchId, RunId};
use forge_store::Error;
use forge_store::record::SignalSession;

use crate::published::Published;
use crate::rows::script::Script;
use crate::rows::set::Set;
use crate::rows::statement::{Param, Statement};
use crate::rows::table::Fields;
use crate::tables::rows::{
    AttemptRow, BodyRow, ContentRow, DecisionRow, DeliveryRow, DispatchRow, EventRow, HomeRow,
    KeyRow, NewBody, ResultRow, SessionRow, SpendingRow,
};
use crate::tables::run_rows::RunRow;
use crate::tables::signal_rows::SignalRow;
use crate::totals::Numbers;

/// Rows that a change needs. Rows that do not exist are left out.
#[derive(Default)]
pub(crate) struct Needs {
    /// Idempotency keys, with their dispatches.
    pub(crate) keys: Vec<String>,
    /// Sessions that a dispatch enters.
    pub(crate) sessions: Vec<String>,
    pub(crate) dispatches: Vec<DispatchId>,
    /// The dispatches can leave their sessions, which are needed with the next dispatch of each.
    pub(crate) leaves: bool,
    pub(crate) bodies: Vec<DispatchId>,
    pub(crate) requests: Vec<DispatchId>,
    pub(crate) deliveries: Vec<DispatchId>,
    pub(crate) runs: Vec<RunId>,
    pub(crate) signal_sessions: Vec<String>,
    /// Further questions, answered in `Rows::answers`.
    pub(crate) reads: Vec<Statement<'static>>,
    /// Changes of the same name do not share a batch: they depend on their questions.
    pub(crate) apart: Option<String>,
    /// Shares a batch with no other change.
    pub(crate) is_alone: bool,
    /// No caller waits for its effect: it waits for others to share a transaction with.
    pub(crate) can_wait: bool,
}

impl Needs {
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        let is_same = self.apart.is_some() && self.apart == other.apart;
        is_same || self.is_alone || other.is_alone
    }
}

/// Reason why a decision was not made.
pub(crate) enum Stop {
    Refused(Error),
    /// Further rows that the decision needs.
    More(Box<Needs>),
    /// Rows that were read are no longer those that the decision needs, because of changes before it: it goes to the
    /// next batch.
    Later,
    Panicked,
}

impl Stop {
    pub(crate) fn more(needs: Needs) -> Self {
        Self::More(Box::new(needs))
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

/// Place of the events of one write among those of the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventsPlace {
    before: u64,
    count: u64,
}

/// Positions of a batch in the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    /// Position before the first of the batch.
    pub(crate) base: u64,
}

impl Placed {
    /// Position of the last of the events.
    pub(crate) fn last(self, place: EventsPlace) -> u64 {
        self.base + place.before + place.count
    }
}

/// The rows of a batch, and what is to be written besides their changes.
pub(crate) struct Rows {
    pub(crate) log: LogName,
    pub(crate) node: String,
    pub(crate) epoch: u64,
    /// This process.
    pub(crate) instance: Uuid,
    /// Number of queued dispatches, with those that the batch accepts.
    pub(crate) queued: u64,
    pub(crate) keys: Set<KeyRow>,
    pub(crate) sessions: Set<SessionRow>,
    pub(crate) dispatches: Set<DispatchRow>,
    pub(crate) bodies: Set<BodyRow>,
    pub(crate) requests: HashMap<DispatchId, (Box<RawValue>, Option<Vec<u8>>)>,
    pub(crate) deliveries: Set<DeliveryRow>,
    pub(crate) runs: Set<RunRow>,
    pub(crate) signal_sessions: Set<SignalSession>,
    /// Answers to the questions of the change that is decided.
    pub(crate) answers: Vec<Vec<Row>>,
    /// Sessions, and accepted data, that were looked for.
    pub(crate) sought_sessions: HashSet<String>,
    pub(crate) sought_bodies: HashSet<DispatchId>,
    /// Nodes of sessions that a dispatch enters, and those of dispatches that have started.
    pub(crate) session_nodes: HashMap<String, String>,
    pub(crate) homes: Vec<HomeRow>,
    /// Sessions that a dispatch has left.
    pub(crate) left: HashSet<String>,
    pub(crate) new_bodies: Vec<NewBody>,
    pub(crate) results: Vec<ResultRow>,
    pub(crate) spendings: Vec<SpendingRow>,
    pub(crate) contents: Vec<ContentRow>,
    pub(crate) attempts: Vec<AttemptRow>,
    pub(crate) decisions: Vec<DecisionRow>,
    pub(crate) signals: Vec<SignalRow>,
    pub(crate) events: Vec<EventRow>,
    statements: Vec<Statement<'static>>,
    /// Numbers of records before the batch, if they were counted.
    pub(crate) counted: Option<Numbers>,
    /// Highest position that the batch removes.
    pub(crate) removed: u64,
    /// Take back the effects on judges of signals. Never locked: it makes the rows `Sync`.
    undo: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl Rows {
    pub(crate) fn new(published: &Published) -> Self {
        Self {
            log: published.identity.log.clone(),
            node: published.node.id.clone(),
            epoch: published.epoch(),
            instance: published.identity.instance,
            queued: published.totals().numbers.counts.queued,
            keys: Set::default(),
            sessions: Set::default(),
            dispatches: Set::default(),
            bodies: Set::default(),
            requests: HashMap::new(),
            deliveries: Set::default(),
            runs: Set::default(),
            signal_sessions: Set::default(),
            answers: Vec::new(),
            sought_sessions: HashSet::new(),
            sought_bodies: HashSet::new(),
            session_nodes: HashMap::new(),
            homes: Vec::new(),
            left: HashSet::new(),
            new_bodies: Vec::new(),
            results: Vec::new(),
            spendings: Vec::new(),
            contents: Vec::new(),
            attempts: Vec::new(),
            decisions: Vec::new(),
            signals: Vec::new(),
            events: Vec::new(),
            statements: Vec::new(),
            counted: None,
            removed: 0,
            undo: Mutex::default(),
        }
    }

    /// Makes sure that accepted data and requests were looked for. Those that cannot be read are not here.
    pub(crate) fn need_requests(&self, ids: &[DispatchId]) -> Result<(), Stop> {
        match ids.iter().all(|id| self.sought_bodies.contains(id)) {
            true => Ok(()),
            false => Err(Stop::more(Needs {
                bodies: ids.to_vec(),
                requests: ids.to_vec(),
                ..Needs::default()
            })),
        }
    }

    /// The accepted data of a dispatch, or what it takes to have them.
    pub(crate) fn body(&self, id: DispatchId) -> Result<&BodyRow, Stop> {
        let new = || {
            self.new_bodies
                .iter()
                .map(|new| &new.body)
                .find(|body| body.id == id)
        };
        let needs = || Needs {
            bodies: vec![id],
            deliveries: vec![id],
            ..Needs::default()
        };
        let missing = || match self.sought_bodies.contains(&id) {
            true => Error::Unreadable("the accepted data of a dispatch".to_owned()).into(),
            false => Stop::more(needs()),
        };
        self.bodies.get(&id).or_else(new).ok_or_else(missing)
    }

    /// Adds a statement.
    pub(crate) fn execute(&mut self, sql: &'static str, params: Vec<Param<'_>>) {
        self.add(Statement::new(sql, params));
    }

    fn add(&mut self, statement: Statement<'_>) {
        self.statements.push(statement.into_owned());
    }

    /// Adds a statement that inserts rows.
    pub(crate) fn insert<F: Fields>(&mut self, table: &str, rows: &[&F]) {
        let mut script = Script::default();
        script.insert(table, rows);
        script.statement().into_iter().for_each(|one| self.add(one));
    }

    /// Adds events, at least one, and numbers them.
    pub(crate) fn add_events(&mut self, events: EventRow) -> EventsPlace {
        let before = self.event_count();
        let count = events.count;
        self.events.push(EventRow { before, ..events });
        EventsPlace { before, count }
    }

    /// Number of events of the batch.
    pub(crate) fn event_count(&self) -> u64 {
        self.events
            .last()
            .map_or(0, |last| last.before + last.count)
    }

    /// Calls `undo` if the batch is not written.
    pub(crate) fn on_rollback(&mut self, undo: Box<dyn FnOnce() + Send>) {
        self.undo().push(undo);
    }

    fn undo(&mut self) -> &mut Vec<Box<dyn FnOnce() + Send>> {
        self.undo.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn roll_back(&mut self) {
        self.undo().drain(..).rev().for_each(|undo| undo());
    }
}
