//! Signals: sessions of tools, their records, and the interventions of rules.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, params};

use forge_base::digest::Digest;
use forge_base::event::NewEvent;
use forge_store::record::{
    Acknowledged, Acknowledgement, Charge, Intervention, InterventionFilter, NewSignal, Page,
    SignalEntry, SignalGroup, SignalProperty, SignalRecord, SignalRecorded, SignalSession,
    SignalSessionFilter, SignalSource, SignalSums, SignalTotals, SignalVerdict,
};
use forge_store::roles::Signals;
use forge_store::signals;
use forge_store::{Error, Result};

use super::rows::{self, nanos};
use super::{Tx, amounts, events, forward, interventions, sessions, signal_records};
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
        source: SignalSource,
        since: Timestamp,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<SignalSession>> {
        let after = after.unwrap_or_default();
        let source = sessions::source_code(source);
        let params = (after, source, nanos(since), rows::limit(limit));
        self.all(Length::Long, sessions::RECENT, params, sessions::session)
            .await
    }

    async fn signal_session(
        &self,
        id: &str,
        records: usize,
    ) -> Result<Option<(SignalSession, Vec<SignalRecord>)>> {
        let id = id.to_owned();
        let query =
            move |connection: &Connection| signal_records::with_records(connection, &id, records);
        self.engine.read(Length::Long, query).await
    }

    async fn mark_signals(&self, mark: Arc<dyn Fn() + Send + Sync>) -> Result<u64> {
        let change = move |tx: &mut Tx<'_>| {
            mark();
            Ok(amounts::last(tx.conn)?)
        };
        self.write(Urgency::Now, 0, change).await
    }

    async fn signal_amounts(
        &self,
        group: SignalGroup,
        since: Timestamp,
        last: u64,
    ) -> Result<Vec<(Timestamp, SignalTotals)>> {
        let query =
            move |connection: &Connection| amounts::by_minute(connection, &group, since, last);
        self.engine.read(Length::Long, query).await
    }

    async fn signal_sums(&self, by: SignalProperty, since: Timestamp) -> Result<SignalSums> {
        let query = move |connection: &Connection| amounts::by_value(connection, by, since);
        self.engine.read(Length::Long, query).await
    }

    async fn open_interventions(&self, limit: usize) -> Result<Vec<Intervention>> {
        let params = [rows::limit(limit)];
        let read = interventions::intervention;
        self.all(Length::Long, interventions::OPEN, params, read)
            .await
    }

    async fn acknowledge_intervention(
        &self,
        id: &str,
        owner: Option<Digest>,
        acknowledged: Acknowledgement,
        events: Vec<NewEvent>,
    ) -> Result<Acknowledged> {
        let id = id.to_owned();
        let bytes = events::size(&events);
        let change = move |tx: &mut Tx<'_>| {
            let mut stored = interventions::find(tx.conn, &id)?;
            if let (Some(one), Some(_)) = (&stored, owner) {
                let began_in = sessions::find(tx.conn, &one.session_id)?;
                let is_own = began_in.is_some_and(|(_, session)| session.owner == owner);
                stored = stored.filter(|_| is_own);
            }
            let outcome = signals::acknowledge(stored.as_ref());
            if outcome == Acknowledged::First {
                interventions::acknowledge(tx, &id, acknowledged)?;
                events::insert(tx, None, None, &events)?;
            }
            Ok(outcome)
        };
        self.write(Urgency::Now, bytes, change).await
    }

    async fn interventions(&self, filter: InterventionFilter) -> Result<Page<Intervention>> {
        let query = move |connection: &Connection| interventions::page(connection, &filter);
        self.engine.read(Length::Long, query).await
    }

    async fn signals_to_forward(&self, limit: usize) -> Result<Option<Vec<SignalEntry>>> {
        let query = move |connection: &Connection| forward::entries(connection, limit);
        self.engine.read(Length::Long, query).await
    }

    async fn keep_forwarded(&self, position: u64) -> Result<()> {
        let change = move |tx: &mut Tx<'_>| Ok(forward::keep(tx, position)?);
        self.write(Urgency::Now, 0, change).await
    }

    async fn signal_sessions(&self, filter: SignalSessionFilter) -> Result<Page<SignalSession>> {
        let query = move |connection: &Connection| sessions::page(connection, &filter);
        self.engine.read(Length::Long, query).await
    }
}

fn record(tx: &mut Tx<'_>, new: &NewSignal) -> Result<SignalRecorded, Failure> {
    let stored = sessions::find(tx.conn, &new.session_id)?;
    let key_id = signals::key_of(new, stored.as_ref().map(|(_, session)| session))?;
    if let Some(repeat_key) = &new.repeat_key
        && let Some(first) = first(tx.conn, key_id, repeat_key)?
    {
        return Ok(first);
    }
    let opens = new.opens.as_ref();
    signals::open(opens.map_or(Ok(false), |session| sessions::is_known(tx, &session.id))?)?;
    new.ends.iter().try_for_each(|end| sessions::end(tx, end))?;
    let opened = opens
        .map(|session| sessions::insert(tx, session).map(|seq| (seq, session.clone())))
        .transpose()?;
    let own = opened.filter(|(_, session)| session.id == new.session_id);
    let (seq, session) = own.or(stored).ok_or(Error::NotFound)?;
    insert(tx, seq, session, new).map(SignalRecorded::New)
}

/// Charges the usage of a dispatch.
pub(super) fn charge(tx: &mut Tx<'_>, charge: &Charge) -> Result<(), Failure> {
    let stored = sessions::find(tx.conn, &charge.session.id)?;
    let before = stored.as_ref().map(|(_, session)| session.totals);
    let Some(new) = signals::charged(charge, &before.unwrap_or_default()) else {
        return Ok(());
    };
    let (seq, session) = match stored {
        Some(stored) => stored,
        None => {
            let session = charge.session.clone();
            (sessions::insert(tx, &session)?, session)
        }
    };
    insert(tx, seq, session, &new).map(drop)
}

/// Judges a signal, and writes it with all that follows from it.
fn insert(
    tx: &mut Tx<'_>,
    seq: u64,
    mut session: SignalSession,
    new: &NewSignal,
) -> Result<SignalVerdict, Failure> {
    let (record, judgement) = signals::judge(new, &session);
    tx.counters.on_rollback(judgement.undo);
    session.count(&record);
    session.paused_at = new.paused_at;
    sessions::update(tx, seq, &session)?;
    let repeat = new.repeat_key.as_ref().map(|key| (&*session.key_id, key));
    insert_record(tx, seq, &record, repeat)?;
    interventions::end(tx, &judgement.ends)?;
    interventions::insert(tx, &judgement.begins)?;
    events::insert(tx, None, None, &new.events)?;
    events::insert(tx, None, None, &judgement.events)?;
    Ok(judgement.verdict)
}

const FIRST: &str = "SELECT s.id, g.blocked, g.intervention FROM signal g INDEXED BY signal_repeat
   CROSS JOIN signal_session s ON s.seq = g.session
   WHERE g.key_id = ? AND g.repeat_key = ? AND g.repeat_key IS NOT NULL";

/// The stored signal that has these keys, as the answer to a repeat.
fn first(
    connection: &Connection,
    key_id: &str,
    repeat_key: &Digest,
) -> rusqlite::Result<Option<SignalRecorded>> {
    let found: Option<(String, bool, Option<String>)> =
        rows::one(connection, FIRST, params![key_id, repeat_key], |row| {
            row.try_into()
        })?;
    let Some((session_id, blocked, told)) = found else {
        return Ok(None);
    };
    let told = told.map(|id| interventions::find(connection, &id));
    let verdict = signals::repeated(blocked, told.transpose()?.flatten());
    Ok(Some(SignalRecorded::Repeat(session_id, verdict)))
}

/// Takes the position after that of the last record; after the highest one that was removed or forwarded if there is none,
/// because no position is given twice.
fn insert_record(
    tx: &Tx<'_>,
    session: u64,
    record: &SignalRecord,
    repeat: Option<(&str, &Digest)>,
) -> rusqlite::Result<()> {
    tx.execute(
        "INSERT INTO signal (seq, session, at, ts, kind, model, tool, user_id, project_id, error_code, tokens_in,
           tokens_out, cost_micros, cache_read_tokens, cache_write_tokens, latency_ms, drift_score,
           confidence, details, blocked, intervention, key_id, repeat_key)
         VALUES ((SELECT max(value) + 1 FROM meta WHERE name IN ('forwarded', 'signals_removed')
                    AND NOT EXISTS (SELECT 1 FROM signal)),
           ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
            record.drift_score,
            record.confidence,
            record.details,
            record.blocked,
            record.intervention_id,
            repeat.map(|(key_id, _)| key_id),
            repeat.map(|(_, repeat_key)| repeat_key),
        ],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::signal_records::{AFTER, RECORDS};
    use crate::tables::{plans, signal_sweep};

    #[test]
    fn no_question_sorts_or_reads_more_than_it_answers() {
        plans::check(&[
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
            (AFTER, "signal USING INTEGER PRIMARY KEY (rowid>?)"),
            (
                forward::EARLIER,
                "signal USING COVERING INDEX signal_of_session (session=? AND seq<?)",
            ),
            (
                forward::LATER,
                "signal USING INDEX signal_of_session (session=? AND seq>?)",
            ),
            (
                sessions::OF_SEQ,
                "signal_session USING INTEGER PRIMARY KEY (rowid=?)",
            ),
            (signal_sweep::EMPTY, "s USING INTEGER PRIMARY KEY (rowid<?)"),
            (amounts::ALL, "g USING INDEX signal_at (at>?)"),
            (
                amounts::USER,
                "g USING INDEX signal_user (user_id=? AND at>?)",
            ),
            (
                amounts::PROJECT,
                "g USING INDEX signal_project (project_id=? AND at>?)",
            ),
            (
                amounts::SESSION,
                "s USING COVERING INDEX signal_session_id (id=?)",
            ),
            (amounts::BY_USER, "g USING INDEX signal_at (at>?)"),
            (amounts::BY_PROJECT, "g USING INDEX signal_at (at>?)"),
            (amounts::BY_ADAPTER, "g USING INDEX signal_at (at>?)"),
            (amounts::BY_MODEL, "g USING INDEX signal_at (at>?)"),
            (
                interventions::OPEN,
                "signal_intervention USING INDEX signal_intervention_open (seq>?)",
            ),
            (
                interventions::NEWEST,
                "signal_intervention USING INTEGER PRIMARY KEY (rowid<?)",
            ),
            (
                interventions::OF_SESSION,
                "signal_intervention USING INDEX signal_intervention_session (session_id=? AND seq<?)",
            ),
        ]);
    }
}
