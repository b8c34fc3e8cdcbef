//! Conversion between columns and records.

use jiff::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, Params, Row};
use serde_json::value::RawValue;

use forge_base::id::DispatchId;
use forge_base::time::from_nanos;
pub(crate) use forge_base::time::nanos;
use forge_store::record::{Callback, DeliveryState, DispatchRecord, DispatchState};
use forge_store::transition::{Stage, Standing};

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

pub(crate) fn state_code(state: DeliveryState) -> i64 {
    match state {
        DeliveryState::Pending => 0,
        DeliveryState::Delivered => 1,
        DeliveryState::Dead => 2,
        DeliveryState::Superseded => 3,
    }
}

pub(crate) fn delivery_state(row: &Row<'_>, column: usize) -> rusqlite::Result<DeliveryState> {
    match row.get(column)? {
        0 => Ok(DeliveryState::Pending),
        1 => Ok(DeliveryState::Delivered),
        2 => Ok(DeliveryState::Dead),
        3 => Ok(DeliveryState::Superseded),
        other => Err(rusqlite::Error::IntegralValueOutOfRange(column, other)),
    }
}

pub(crate) fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    row.get(column).map(from_nanos)
}

pub(crate) fn time_option(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(from_nanos))
}

/// JSON that is opaque here. A text that is not JSON comes out as `null`, so that one damaged row does not hide those
/// beside it.
pub(crate) fn opaque(row: &Row<'_>, column: usize) -> rusqlite::Result<Box<RawValue>> {
    Ok(opaque_option(row, column)?.unwrap_or_else(|| RawValue::NULL.to_owned()))
}

fn no_steps() -> Box<RawValue> {
    RawValue::from_string("[]".to_owned()).expect("an empty list is JSON")
}

pub(crate) fn opaque_option(
    row: &Row<'_>,
    column: usize,
) -> rusqlite::Result<Option<Box<RawValue>>> {
    let text = row.get_ref(column)?.as_str_or_null().ok().flatten();
    Ok(text.and_then(|text| RawValue::from_string(text.to_owned()).ok()))
}

pub(crate) fn json_option(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Box<RawValue>>> {
    let text: Option<String> = row.get(column)?;
    let json = text.map(RawValue::from_string).transpose();
    json.map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
    })
}

pub(crate) fn dispatch_id(row: &Row<'_>, column: usize) -> rusqlite::Result<DispatchId> {
    row.get(column).map(DispatchId::from_bytes)
}

/// The columns that `dispatch` reads, of `dispatch AS d JOIN body AS b`.
macro_rules! select_dispatch {
    ($rest:literal) => {
        concat!(
            "SELECT d.id, d.task_id, d.agent_id, d.run_id, d.trace_id, d.provider, d.pinned,
             b.routing, d.session, d.priority, d.phase, d.attempts, d.cancel_requested,
             d.accepted_at, d.not_before, d.start_by, d.first_started_at, d.started_at,
             d.finished_at, d.error_code, d.retry_of, d.callback_url, d.callback_origin, d.seq,
             d.recorded_session, d.spent",
            $rest
        )
    };
}
pub(crate) use select_dispatch;

/// Columns of `select_dispatch` that are not part of the record, and the first column after its own.
pub(crate) const SEQ: usize = 23;
pub(crate) const RECORDED_SESSION: usize = 24;
pub(crate) const SPENT: usize = 25;
pub(crate) const MORE: usize = 26;

pub(crate) fn dispatch(row: &Row<'_>) -> rusqlite::Result<DispatchRecord> {
    let attempts: u32 = row.get(11)?;
    let phase = row.get(10)?;
    let state = match phase {
        phase::RUNNING => DispatchState::Running {
            attempt: attempts,
            started_at: time(row, 17)?,
        },
        phase::FINISHED => DispatchState::Finished {
            at: time(row, 18)?,
            error_code: row.get(19)?,
        },
        _ => DispatchState::Queued,
    };
    let url: Option<String> = row.get(21)?;
    let origin: Option<String> = row.get(22)?;
    Ok(DispatchRecord {
        id: dispatch_id(row, 0)?,
        task_id: row.get(1)?,
        agent_id: row.get(2)?,
        run_id: row.get(3)?,
        trace_id: row.get(4)?,
        provider: row.get(5)?,
        pinned: row.get(6)?,
        // Shown and never acted on, so an unreadable one does not hide the rest.
        routing: opaque_option(row, 7)?.unwrap_or_else(no_steps),
        session: row.get(8)?,
        priority: row.get(9)?,
        state,
        attempts,
        cancel_requested: row.get(12)?,
        is_held: phase == phase::HELD,
        is_blocked: phase == phase::BLOCKED,
        accepted_at: time(row, 13)?,
        not_before: time_option(row, 14)?,
        start_by: time(row, 15)?,
        first_started_at: time_option(row, 16)?,
        retry_of: row.get::<_, Option<_>>(20)?.map(DispatchId::from_bytes),
        callback: url
            .zip(origin)
            .map(|(url, origin)| Callback { url, origin }),
        delivery: None,
        spending: None,
        result: None,
    })
}

/// A dispatch and its delivery as changes see them.
pub(crate) struct Current {
    pub(crate) seq: i64,
    pub(crate) phase: i64,
    pub(crate) attempts: u32,
    pub(crate) epoch: u64,
    pub(crate) cancel_requested: bool,
    /// Number of its events.
    pub(crate) events: u64,
    pub(crate) provider: String,
    pub(crate) session: Option<String>,
    pub(crate) has_callback: bool,
    pub(crate) delivery: Option<DeliveryState>,
    pub(crate) delivery_attempts: u32,
}

impl Current {
    pub(crate) fn find(connection: &Connection, id: &[u8; 16]) -> rusqlite::Result<Option<Self>> {
        let sql = "SELECT seq, phase, attempts, epoch, cancel_requested, events, provider, session,
                     callback_url IS NOT NULL, delivery, delivery_attempts FROM dispatch WHERE id = ?";
        one(connection, sql, [id], |row| {
            let delivery: Option<i64> = row.get(9)?;
            Ok(Self {
                seq: row.get(0)?,
                phase: row.get(1)?,
                attempts: row.get(2)?,
                epoch: row.get(3)?,
                cancel_requested: row.get(4)?,
                events: row.get(5)?,
                provider: row.get(6)?,
                session: row.get(7)?,
                has_callback: row.get(8)?,
                delivery: delivery.map(|_| delivery_state(row, 9)).transpose()?,
                delivery_attempts: row.get(10)?,
            })
        })
    }

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
            has_callback: self.has_callback,
        }
    }
}

/// The first row of a statement, if there is one.
pub(crate) fn one<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Option<T>> {
    connection
        .prepare_cached(sql)?
        .query_row(params, read)
        .optional()
}

/// All rows of a statement, which bounds them itself.
pub(crate) fn all<T>(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection
        .prepare_cached(sql)?
        .query_map(params, read)?
        .collect()
}

/// A limit as SQLite takes it.
pub(crate) fn limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
