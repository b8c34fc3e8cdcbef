//! Signals: sessions of tools, their records, and the removal of old ones.

use std::time::Instant;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, params};

use forge_base::digest::Digest;
use forge_base::event::NewEvent;
use forge_store::record::{
    NewSignal, Page, SignalRecord, SignalRecorded, SignalSession, SignalSessionFilter, SweptSignals,
};
use forge_store::roles::Signals;
use forge_store::signals::{self, Standing};
use forge_store::{Error, Result};

use super::retention::STEP_TIME;
use super::rows::{self, nanos};
use super::{Tx, events, sessions};
use crate::Sqlite;
use crate::engine::{Failure, Length, Urgency};

#[async_trait]
impl Signals for Sqlite {
    async fn open_signal_session(
        &self,
        session: SignalSession,
        events: Vec<NewEvent>,
    ) -> Result<()> {
        let bytes = events::size(&events);
        let change = move |tx: &mut Tx<'_>| {
            signals::open(sessions::is_known(tx, &session.id)?)?;
            sessions::insert(tx, &session)?;
            Ok(events::insert(tx, None, None, &events)?)
        };
        self.write(Urgency::Now, bytes, change).await
    }

    async fn record_signal(&self, signal: NewSignal) -> Result<SignalRecorded> {
        let bytes = events::size(&signal.events);
        let change = move |tx: &mut Tx<'_>| record(tx, &signal);
        self.write(Urgency::Now, bytes, change).await
    }

    async fn end_signal_sessions(
        &self,
        ends: Vec<(String, Timestamp)>,
        events: Vec<NewEvent>,
    ) -> Result<()> {
        let bytes = events::size(&events);
        let change = move |tx: &mut Tx<'_>| {
            ends.iter().try_for_each(|end| sessions::end(tx, end))?;
            Ok(events::insert(tx, None, None, &events)?)
        };
        self.write(Urgency::Now, bytes, change).await
    }

    async fn recent_signal_sessions(
        &self,
        since: Timestamp,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<SignalSession>> {
        let after = after.unwrap_or_default();
        let params = (after, nanos(since), rows::limit(limit));
        self.all(Length::Long, sessions::RECENT, params, sessions::session)
            .await
    }

    async fn signal_session(
        &self,
        id: &str,
        records: usize,
    ) -> Result<Option<(SignalSession, Vec<SignalRecord>)>> {
        let id = id.to_owned();
        let query = move |connection: &Connection| with_records(connection, &id, records);
        self.engine.read(Length::Long, query).await
    }

    async fn signal_sessions(&self, filter: SignalSessionFilter) -> Result<Page<SignalSession>> {
        let query = move |connection: &Connection| sessions::page(connection, &filter);
        self.engine.read(Length::Long, query).await
    }
}

fn record(tx: &mut Tx<'_>, new: &NewSignal) -> Result<SignalRecorded, Failure> {
    let stored = sessions::find(tx.conn, &new.session_id)?;
    let key_id = signals::key_of(new, stored.as_ref().map(|(_, session)| session))?;
    let opens = new.opens.as_ref();
    let recorded = signals::record(Standing {
        first: new
            .repeat_key
            .as_ref()
            .map(|repeat_key| first(tx.conn, key_id, repeat_key))
            .transpose()?
            .flatten(),
        is_open_known: opens.map_or(Ok(false), |session| sessions::is_known(tx, &session.id))?,
    })?;
    if recorded != SignalRecorded::New {
        return Ok(recorded);
    }
    new.ends.iter().try_for_each(|end| sessions::end(tx, end))?;
    let opened = opens
        .map(|session| sessions::insert(tx, session).map(|seq| (seq, session.clone())))
        .transpose()?;
    let own = opened.filter(|(_, session)| session.id == new.session_id);
    let (seq, mut session) = own.or(stored).ok_or(Error::NotFound)?;
    session.count(&new.record);
    sessions::update(tx, seq, &session)?;
    let repeat = new.repeat_key.as_ref().map(|key| (&*session.key_id, key));
    insert_record(tx, seq, &new.record, repeat)?;
    events::insert(tx, None, None, &new.events)?;
    Ok(recorded)
}

const FIRST: &str = "SELECT s.id, g.blocked FROM signal g INDEXED BY signal_repeat
   CROSS JOIN signal_session s ON s.seq = g.session
   WHERE g.key_id = ? AND g.repeat_key = ? AND g.repeat_key IS NOT NULL";

/// Session and verdict of the stored signal that has these keys.
fn first(
    connection: &Connection,
    key_id: &str,
    repeat_key: &Digest,
) -> rusqlite::Result<Option<(String, bool)>> {
    rows::one(connection, FIRST, params![key_id, repeat_key], |row| {
        row.try_into()
    })
}

fn insert_record(
    tx: &Tx<'_>,
    session: u64,
    record: &SignalRecord,
    repeat: Option<(&str, &Digest)>,
) -> rusqlite::Result<()> {
    tx.execute(
        "INSERT INTO signal (session, at, ts, kind, model, tool, user_id, project_id, error_code, tokens_in,
           tokens_out, cost_micros, cache_read_tokens, cache_write_tokens, latency_ms, blocked, key_id, repeat_key)
         VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        params![
            session,
            nanos(record.at),
            nanos(record.ts),
            record.kind,
            record.model,
            record.tool,
            record.user_id,
            record.project_id,
            record.error_code,
            record.tokens_in,
            record.tokens_out,
            record.cost_micros,
            record.cache_read_tokens,
            record.cache_write_tokens,
            record.latency_ms,
            record.blocked,
            repeat.map(|(key_id, _)| key_id),
            repeat.map(|(_, repeat_key)| repeat_key),
        ],
    )?;
    Ok(())
}

const RECORDS: &str =
    "SELECT at, ts, kind, model, tool, user_id, project_id, error_code, tokens_in, tokens_out, cost_micros,
       cache_read_tokens, cache_write_tokens, latency_ms, blocked
     FROM signal WHERE session = ? ORDER BY seq DESC LIMIT ?";

fn with_records(
    connection: &Connection,
    id: &str,
    records: usize,
) -> rusqlite::Result<Option<(SignalSession, Vec<SignalRecord>)>> {
    // Both statements must see the same commit: the totals count the records.
    let transaction = connection.unchecked_transaction()?;
    let Some((seq, session)) = sessions::find(&transaction, id)? else {
        return Ok(None);
    };
    let params = params![seq, rows::limit(records)];
    let records = rows::all(&transaction, RECORDS, params, |row| {
        Ok(SignalRecord {
            at: rows::time(row, 0)?,
            ts: rows::time(row, 1)?,
            kind: row.get(2)?,
            model: row.get(3)?,
            tool: row.get(4)?,
            user_id: row.get(5)?,
            project_id: row.get(6)?,
            error_code: row.get(7)?,
            tokens_in: row.get(8)?,
            tokens_out: row.get(9)?,
            cost_micros: row.get(10)?,
            cache_read_tokens: row.get(11)?,
            cache_write_tokens: row.get(12)?,
            latency_ms: row.get(13)?,
            blocked: row.get(14)?,
        })
    })?;
    Ok(Some((session, records)))
}

const OLDEST: &str = "SELECT seq, at FROM signal ORDER BY seq LIMIT ?";
const EMPTY: &str = "SELECT seq FROM signal_session s WHERE seq < ? AND last_at < ?
   AND NOT EXISTS (SELECT 1 FROM signal g WHERE g.session = s.seq) ORDER BY seq LIMIT ?";

/// Removes old records in the order of arrival, then sessions that have none left.
pub(crate) fn sweep(
    tx: &mut Tx<'_>,
    before: Timestamp,
    limit: usize,
) -> Result<SweptSignals, Failure> {
    let begun = Instant::now();
    let mut swept = SweptSignals::default();
    let oldest: Vec<(u64, i64)> = rows::all(
        tx.conn,
        OLDEST,
        [rows::limit(limit.saturating_add(1))],
        |row| row.try_into(),
    )?;
    let old = oldest
        .into_iter()
        .take_while(|(_, at)| *at < nanos(before))
        .map(|(seq, _)| seq);
    let (removed, more) = remove(tx, "DELETE FROM signal WHERE seq = ?", old, limit, begun)?;
    (swept.signals, swept.more) = (removed, more);
    if more {
        return Ok(swept);
    }
    let empty: Vec<u64> = rows::all(
        tx.conn,
        EMPTY,
        params![
            signals::place(before),
            nanos(before),
            rows::limit(limit.saturating_add(1))
        ],
        |row| row.get(0),
    )?;
    let sql = "DELETE FROM signal_session WHERE seq = ?";
    (swept.sessions, swept.more) = remove(tx, sql, empty.into_iter(), limit, begun)?;
    Ok(swept)
}

/// Removes up to `limit` rows while the step lasts, at least one; returns their number, and true if there are more.
fn remove(
    tx: &Tx<'_>,
    sql: &str,
    rows: impl Iterator<Item = u64>,
    limit: usize,
    begun: Instant,
) -> rusqlite::Result<(u64, bool)> {
    let mut removed = 0;
    for (place, seq) in rows.enumerate() {
        if place == limit || place > 0 && begun.elapsed() > STEP_TIME {
            return Ok((removed, true));
        }
        removed += tx.execute(sql, [seq])? as u64;
    }
    Ok((removed, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::schema;

    #[test]
    fn no_question_sorts_or_reads_more_than_it_answers() {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection).unwrap();
        for (sql, expected) in [
            (
                sessions::FIND,
                "signal_session USING INDEX signal_session_id (id=?)",
            ),
            (
                sessions::RECENT,
                "signal_session USING INDEX signal_session_id (id>?)",
            ),
            (
                sessions::NEWEST,
                "signal_session USING INTEGER PRIMARY KEY (rowid<?)",
            ),
            (
                sessions::NEWEST_ACTIVE,
                "signal_session USING INDEX signal_session_active (seq<?)",
            ),
            (
                FIRST,
                "g USING INDEX signal_repeat (key_id=? AND repeat_key=?)",
            ),
            (RECORDS, "signal USING INDEX signal_of_session (session=?)"),
            (EMPTY, "s USING INTEGER PRIMARY KEY (rowid<?)"),
        ] {
            let explain = format!("EXPLAIN QUERY PLAN {sql}");
            let mut statement = connection.prepare(&explain).unwrap();
            let nulls = vec![None::<i64>; statement.parameter_count()];
            let plan = statement.query_map(rusqlite::params_from_iter(nulls), |row| row.get(3));
            let plan: Vec<String> = plan.unwrap().map(Result::unwrap).collect();
            assert_eq!(plan[0], format!("SEARCH {expected}"), "{sql}");
            let sorts = plan.iter().any(|step| step.contains("TEMP B-TREE"));
            assert!(!sorts, "{sql}: {plan:?}");
        }
    }
}
