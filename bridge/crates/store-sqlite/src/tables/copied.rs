//! Rows of this store in the form of the tables that they are copied into. Rows of a removed run, which cannot be read
//! any more, are left out.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};

use forge_base::event::LogName;
use forge_store::copy::{Head, Table, Value};
use forge_store::{Error, Result, rules};

use super::{amounts, counters, rows, schema};

/// Rows of each table, with its columns, always in the same order.
const ROWS: [(&str, &str); 19] = [
    ("sealed", "SELECT name, value FROM sealed ORDER BY name"),
    (
        "breaker",
        "SELECT origin, opened_at, until, times, reason FROM breaker ORDER BY origin",
    ),
    (
        "dispatch",
        "SELECT id, seq, phase, provider, pinned, priority, attempts, epoch, events, cancel_requested, session,
           iif(turn IS NULL, NULL, provider || char(0) || session) AS queue, turn, callback_origin AS origin,
           not_before, start_by, first_started_at, started_at, finished_at, expires_at, error_code,
           recorded_session, spent FROM dispatch ORDER BY seq",
    ),
    (
        "body",
        "SELECT d.id, d.task_id, d.agent_id, d.run_id, d.trace_id,
           iif(d.header_key IS NULL, 't', 'h') || coalesce('@' || d.key_owner, '') || ':'
             || coalesce(d.header_key, d.task_id) AS key, d.fingerprint, d.retry_of, d.callback_url,
           d.accepted_at, b.routing, b.secrets, b.request
         FROM body b JOIN dispatch d ON d.seq = b.dispatch ORDER BY b.dispatch",
    ),
    // The newest dispatch of a task without a header key holds the task's key, that of its owner.
    (
        "key",
        "SELECT iif(header_key IS NULL, 't', 'h') || coalesce('@' || key_owner, '') || ':'
           || coalesce(header_key, task_id) AS value, id AS dispatch FROM dispatch d
         WHERE header_key IS NOT NULL OR seq =
           (SELECT max(seq) FROM dispatch n
            WHERE n.task_id = d.task_id AND n.header_key IS NULL AND n.key_owner IS d.key_owner) ORDER BY seq",
    ),
    (
        "session",
        "SELECT provider || char(0) || session AS name, min(turn) AS head, max(turn) AS last FROM dispatch
         WHERE turn IS NOT NULL GROUP BY provider, session ORDER BY provider, session",
    ),
    // `events` is read from the result.
    (
        "result",
        "SELECT d.id, 0 AS events, r.body FROM result r JOIN dispatch d ON d.seq = r.dispatch ORDER BY r.dispatch",
    ),
    (
        "spending",
        "SELECT d.id, s.at, s.model, s.tokens_in, s.tokens_out, s.cost_micros FROM spending s
         JOIN dispatch d ON d.seq = s.dispatch ORDER BY s.dispatch",
    ),
    (
        "content",
        "SELECT d.id, c.number, c.part, c.bytes FROM content c JOIN dispatch d ON d.seq = c.dispatch
         ORDER BY c.dispatch, c.number, c.part",
    ),
    (
        "decision",
        "SELECT d.id, c.approved, c.at, c.author AS by, c.reason FROM decision c JOIN dispatch d ON d.seq = c.dispatch
         ORDER BY c.dispatch",
    ),
    (
        "delivery",
        "SELECT id, delivery AS state, callback_origin AS origin, delivery_attempts AS attempts, since, due_at,
           settled_at, give_up_after, retention FROM dispatch WHERE delivery IS NOT NULL ORDER BY seq",
    ),
    (
        "attempt",
        "SELECT d.id, a.number, a.at, a.duration_ms, a.status, a.error, a.answer FROM dispatch d JOIN (
           SELECT dispatch, number, at, duration_ms, status, error, answer FROM attempt
           UNION ALL
           SELECT seq, delivery_attempts, last_at, last_duration_ms, last_status, last_error, last_answer
           FROM dispatch WHERE last_at IS NOT NULL) a ON a.dispatch = d.seq
         ORDER BY a.dispatch, a.number",
    ),
    (
        "event",
        "SELECT d.seq AS first, d.seq + d.first_events - 1 AS last, d.id AS dispatch, NULL AS run, 1 AS seq,
           0 AS attempt, coalesce(b.provider, d.provider) AS provider, NULL AS unbound_at, b.events AS body
         FROM dispatch d JOIN body b ON b.dispatch = d.seq
         UNION ALL
         SELECT e.first, e.last, d.id, r.id, e.seq, e.attempt, e.provider, e.unbound_at, e.body
         FROM event e LEFT JOIN dispatch d ON d.seq = e.dispatch LEFT JOIN run r ON r.seq = e.run
         WHERE e.run IS NULL OR r.id IS NOT NULL
         ORDER BY 1",
    ),
    (
        "run",
        "SELECT id, seq AS place, status, events AS seq, artifact_bytes, created_at, ended_at, expires_at,
           header_key AS key, fingerprint, trace_id, taken_over FROM run ORDER BY run.seq",
    ),
    (
        "run_body",
        "SELECT r.id, b.request, b.projection FROM run_body b JOIN run r ON r.seq = b.run ORDER BY b.run",
    ),
    (
        "run_artifact",
        "SELECT r.id, a.path, a.kind, a.updated_at, a.bytes FROM run_artifact a JOIN run r ON r.seq = a.run
         ORDER BY a.run, a.path",
    ),
    (
        "signal_session",
        "SELECT id, seq AS place, key_id, source, adapter, user_id, project_id, client_session_id, owner, started_at,
           last_at, paused_at, ended_at, signals, errors, tokens_in, tokens_out, cost_micros, unpriced
         FROM signal_session ORDER BY seq",
    ),
    (
        "signal",
        "SELECT g.seq, s.id AS session, g.key_id, g.repeat_key, g.at, g.ts, g.kind, g.model, g.tool, g.user_id,
           g.project_id, g.error_code, g.tokens_in, g.tokens_out, g.cost_micros, g.cache_read_tokens,
           g.cache_write_tokens, g.latency_ms, g.drift_score, g.confidence, g.details, g.blocked,
           g.intervention AS intervention_id
         FROM signal g JOIN signal_session s ON s.seq = g.session ORDER BY g.seq",
    ),
    (
        "signal_intervention",
        "SELECT id, seq, rule_id, blocks, severity, message, scope_value, period, session_id, at, is_open,
           acknowledged_at, ack_delay_ms FROM signal_intervention ORDER BY seq",
    ),
];

/// Position up to which events of removed runs, which are not copied, were in the log.
const REMOVED: &str = "SELECT max(
   (SELECT value FROM meta WHERE name = 'removed'),
   coalesce((SELECT max(e.last) FROM run_removed r JOIN event e ON e.run = r.run), 0))";
/// Highest position of a signal, there, removed or forwarded.
const LAST_SIGNAL: &str =
    "SELECT max(value) FROM meta WHERE name IN ('forwarded', 'signals_removed')";
const FORWARDED: &str = "SELECT value FROM meta WHERE name = 'forwarded'";

/// State of a copy in `meta`, if there is one.
const COPIED: &str = "SELECT value FROM meta WHERE name = 'copied'";

/// `None` if the store is not copied; else, true if the copy is complete.
pub(crate) fn mark(connection: &Connection) -> rusqlite::Result<Option<bool>> {
    rows::one(connection, COPIED, [], |row| row.get(0))
}

pub(crate) fn set_mark(connection: &Connection, is_complete: bool) -> rusqlite::Result<()> {
    let sql = "INSERT OR REPLACE INTO meta (name, value) VALUES ('copied', ?)";
    connection.execute(sql, [is_complete]).map(drop)
}

/// Removes the mark. After a complete copy, which can be in use, this is another store.
pub(crate) fn remove_mark(connection: &Connection) -> rusqlite::Result<()> {
    let change = connection.unchecked_transaction()?;
    if mark(&change)? == Some(true) {
        schema::rename(&change)?;
    }
    change.execute("DELETE FROM meta WHERE name = 'copied'", [])?;
    change.commit()
}

pub(crate) fn head(connection: &Connection) -> rusqlite::Result<Head> {
    let identity = schema::identity(connection)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    let number = |sql| rows::one(connection, sql, [], |row| row.get::<_, Option<u64>>(0));
    let last = number(LAST_SIGNAL)?.flatten().unwrap_or(0);
    let mark = mark(connection)?;
    Ok(Head {
        store_id: identity.store_id,
        log: LogName::from_stored(identity.log.as_str().to_owned()),
        epoch: identity.epoch,
        issued: counters::issued(connection)?,
        removed: number(REMOVED)?.flatten().unwrap_or(0),
        last_signal: amounts::last(connection)?.max(last),
        forwarded: number(FORWARDED)?.flatten(),
        has_begun: mark.is_some(),
        is_complete: mark == Some(true),
    })
}

/// Passes the rows of a table on until `each` returns false.
pub(crate) fn read(
    connection: &Connection,
    table: &Table,
    each: &mut dyn FnMut(Vec<Value>) -> bool,
) -> Result<()> {
    let unreadable = |error: rusqlite::Error| Error::Unreadable(error.to_string());
    let sql = ROWS.iter().find(|(name, _)| *name == table.name);
    let (_, sql) = sql.ok_or(Error::NotFound)?;
    let mut statement = connection.prepare(sql).map_err(unreadable)?;
    table.check(statement.column_names())?;
    let mut found = statement.query([]).map_err(unreadable)?;
    while let Some(row) = found.next().map_err(unreadable)? {
        let mut row = values(row, table.columns.len()).map_err(unreadable)?;
        if table.name == "result" {
            cut_events(&mut row)?;
        }
        if !each(row) {
            break;
        }
    }
    Ok(())
}

fn values(row: &Row<'_>, count: usize) -> rusqlite::Result<Vec<Value>> {
    let values = (0..count).map(|column| {
        Ok(match row.get_ref(column)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(number) => Value::Number(number),
            ValueRef::Real(real) => Value::Real(real),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Value::Bytes(bytes.to_vec()),
        })
    });
    values.collect()
}

/// Takes the events out of a result, and sets their number.
fn cut_events(row: &mut [Value]) -> Result<()> {
    let [_, events, Value::Bytes(body)] = row else {
        return Err(Error::NotFound);
    };
    let text = std::str::from_utf8(body).ok();
    let (without, count) = text
        .and_then(rules::without_events)
        .ok_or_else(|| Error::Unreadable("a result does not count its events".to_owned()))?;
    *events = Value::Number(i64::try_from(count).unwrap_or(i64::MAX));
    *body = without.into_bytes();
    Ok(())
}

#[cfg(test)]
mod tests {
    use forge_store::copy::TABLES;

    use super::*;
    use crate::tests::open;

    #[tokio::test]
    async fn every_table_is_read_with_its_columns() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(folder.path());
        store
            .engine
            .read(crate::engine::Length::Long, |connection| {
                assert_eq!(
                    ROWS.map(|(name, _)| name)[..],
                    TABLES.iter().map(|table| table.name).collect::<Vec<_>>()[..]
                );
                for table in TABLES {
                    read(connection, table, &mut |_| true).unwrap();
                }
                Ok(())
            })
            .await
            .unwrap();
    }
}
