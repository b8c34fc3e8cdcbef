//! Rows of the tables of dispatches, and the records made of them.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::value::RawValue;

use forge_base::digest::Digest;
use forge_base::id::{DispatchId, RunId};
use forge_store::Result;
use forge_store::record::{
    Callback, Decision, DeliveryAttempt, DeliveryState, DispatchRecord, DispatchState,
    IdempotencyKey, KeyOwner, KeySpace, Spending,
};
use forge_store::transition::{Stage, Standing};

use crate::Columns;
use crate::rows::table::{Fields, columns, fields, row};

/// `dispatch.phase`. Queries that use a partial index spell the number, as the index does.
pub(crate) mod phase {
    pub(crate) const HELD: i64 = -1;
    pub(crate) const READY: i64 = 0;
    pub(crate) const DELAYED: i64 = 1;
    pub(crate) const BLOCKED: i64 = 2;
    pub(crate) const CANCELLED: i64 = 3;
    pub(crate) const RUNNING: i64 = 4;
    pub(crate) const FINISHED: i64 = 5;
}

row! { KeyRow in "key" { value: String, dispatch: DispatchId } }

impl KeyRow {
    /// The column `value` of a key.
    pub(crate) fn of(key: &IdempotencyKey) -> String {
        let space = Self::space(key);
        format!("{space}{}{}", Self::owned_by(key.owner), key.value)
    }

    /// The column `value` of the same key in a store of before, whose keys had no owners.
    pub(crate) fn of_before(key: &IdempotencyKey) -> String {
        format!("{}:{}", Self::space(key), key.value)
    }

    /// Part of the column after its first character, which names the owner.
    pub(crate) fn owned_by(owner: KeyOwner) -> String {
        format!("@{owner}:")
    }

    fn space(key: &IdempotencyKey) -> char {
        match key.space {
            KeySpace::Header => 'h',
            KeySpace::Task => 't',
        }
    }
}

row! {
    /// Session that dispatches run in one after another.
    SessionRow in "session" {
        name: String,
        /// Turn of the dispatch that can run.
        head: i64,
        /// Last turn that was given.
        last: i64,
    }
}

impl SessionRow {
    pub(crate) fn name(provider: &str, session: &str) -> String {
        format!("{provider}\0{session}")
    }
}

row! {
    /// Node that ran the last dispatch of a session.
    HomeRow { session: String, node: String, at: Timestamp }
}

impl HomeRow {
    /// The home of a dispatch that runs, if it has a session.
    pub(crate) fn of(dispatch: &DispatchRow, at: Timestamp) -> Option<Self> {
        let session = SessionRow::name(&dispatch.provider, dispatch.session.as_deref()?);
        let node = dispatch.home.clone()?;
        Some(Self { session, node, at })
    }
}

row! {
    DispatchRow in "dispatch" {
        id: DispatchId, phase: i64, provider: String, pinned: bool, priority: i8, attempts: u32, epoch: u64,
        /// Number of its events.
        events: u64,
        cancel_requested: bool, session: Option<String>,
        /// Session that it runs in or waits for, and its turn there.
        queue: Option<String>, turn: Option<i64>,
        /// Node that ran it last, or the last one of its session.
        home: Option<String>,
        /// True if it runs on no other node than `home`.
        is_bound: bool,
        /// Origin of the callback, if there is one.
        origin: Option<String>,
        not_before: Option<Timestamp>, start_by: Timestamp,
        first_started_at: Option<Timestamp>, started_at: Option<Timestamp>, finished_at: Option<Timestamp>,
        expires_at: Option<Timestamp>, error_code: Option<String>,
        recorded_session: Option<String>, spent: Option<Box<RawValue>>,
    }
}

impl DispatchRow {
    pub(crate) fn standing(&self) -> Standing {
        let stage = match self.phase {
            phase::RUNNING => Stage::Running { epoch: self.epoch },
            phase::FINISHED => Stage::Finished,
            phase::HELD => Stage::Held,
            _ => Stage::Queued,
        };
        Standing {
            stage,
            attempts: self.attempts,
            cancel_requested: self.cancel_requested,
            has_callback: self.origin.is_some(),
        }
    }

    fn state(&self) -> DispatchState {
        let started_at = self.started_at.unwrap_or_default();
        match self.phase {
            phase::RUNNING => DispatchState::Running {
                attempt: self.attempts,
                started_at,
            },
            phase::FINISHED => DispatchState::Finished {
                at: self.finished_at.unwrap_or_default(),
                error_code: self.error_code.clone(),
            },
            _ => DispatchState::Queued,
        }
    }

    /// The record, without a result.
    pub(crate) fn record(&self, body: &BodyRow) -> DispatchRecord {
        let callback = body.callback_url.clone().zip(self.origin.clone());
        DispatchRecord {
            id: self.id,
            task_id: body.task_id.clone(),
            agent_id: body.agent_id.clone(),
            run_id: body.run_id.clone(),
            trace_id: body.trace_id.clone(),
            provider: self.provider.clone(),
            pinned: self.pinned,
            routing: body.routing.clone(),
            session: self.session.clone(),
            priority: self.priority,
            state: self.state(),
            attempts: self.attempts,
            cancel_requested: self.cancel_requested,
            is_held: self.phase == phase::HELD,
            is_blocked: self.phase == phase::BLOCKED,
            accepted_at: body.accepted_at,
            not_before: self.not_before,
            start_by: self.start_by,
            first_started_at: self.first_started_at,
            retry_of: body.retry_of,
            callback: callback.map(|(url, origin)| Callback { url, origin }),
            delivery: None,
            spending: None,
            result: None,
        }
    }
}

row! {
    /// Accepted data, except for request and secrets.
    BodyRow in "body" {
        id: DispatchId, task_id: String, agent_id: String, run_id: Option<String>, trace_id: String,
        key: String, fingerprint: Digest, retry_of: Option<DispatchId>, callback_url: Option<String>,
        accepted_at: Timestamp, routing: Box<RawValue>,
    }
}
row! {
    /// The whole row of `body`.
    NewBody { secrets: Option<Vec<u8>>, request: Box<RawValue> } body: BodyRow
}
fields!(Spending { model tokens_in tokens_out cost_micros });
row! { SpendingRow { id: DispatchId, at: Timestamp } spending: Spending }
row! { ResultRow { id: DispatchId, events: u64, body: Box<RawValue> } }
row! {
    DeliveryRow in "delivery" {
        id: DispatchId, state: DeliveryState,
        /// Epoch that attempts it; 0 if any node can.
        epoch: u64,
        origin: String, attempts: u32, since: Timestamp,
        due_at: Option<Timestamp>, settled_at: Option<Timestamp>, give_up_after: Duration, retention: Duration,
    }
}
fields!(DeliveryAttempt { number at duration_ms status error answer });
row! { AttemptRow { id: DispatchId } attempt: DeliveryAttempt }
fields!(Decision { at by reason });
row! { DecisionRow { id: DispatchId, approved: bool } decision: Decision }
row! { ContentRow { id: DispatchId, number: i64, part: usize, bytes: Vec<u8> } }
row! {
    /// Events of one write; `before` counts those of the batch before them.
    EventRow {
        before: u64, count: u64, dispatch: Option<DispatchId>, run: Option<RunId>, seq: u64, attempt: u32,
        provider: String, unbound_at: Option<Timestamp>, body: String,
    }
}

/// A dispatch with its accepted data.
pub(crate) struct Whole {
    pub(crate) dispatch: DispatchRow,
    pub(crate) body: BodyRow,
}

impl Whole {
    /// Columns of `read`, of `dispatch AS d` and `body AS b`.
    pub(crate) fn columns() -> String {
        let (own, accepted) = (columns::<DispatchRow>("d."), columns::<BodyRow>("b."));
        format!("{own}, {accepted}")
    }

    pub(crate) fn read(columns: &mut Columns<'_>) -> Result<Self> {
        let (dispatch, body) = (Fields::read(columns)?, Fields::read(columns)?);
        Ok(Self { dispatch, body })
    }

    pub(crate) fn record(&self) -> DispatchRecord {
        self.dispatch.record(&self.body)
    }
}
