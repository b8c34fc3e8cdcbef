//! Signals: sessions of tools, and their records.

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use forge_base::digest::Digest;
use forge_base::event::NewEvent;
use forge_store::event_batch::size;
use forge_store::record::{
    Acknowledged, Acknowledgement, Charge, Intervention, InterventionFilter, NewSignal,
    OtherSignal, Page, SignalEntry, SignalGroup, SignalProperty, SignalRecord, SignalRecorded,
    SignalSession, SignalSessionFilter, SignalSource, SignalSums, SignalTotals, SignalVerdict,
};
use forge_store::roles::Signals;
use forge_store::signals;
use forge_store::{Error, Result};

use super::events::NO_PROVIDER;
use super::read::page;
use super::signal_rows::SignalRow;
use crate::batch::{Needs, Rows, Stop};
use crate::rows::statement::{Statement, params};
use crate::rows::table::{Fields as _, columns};
use crate::{Columns, Postgres};

/// Rows that a change of these sessions needs.
fn of(sessions: Vec<String>) -> Needs {
    Needs {
        signal_sessions: sessions,
        ..Needs::default()
    }
}

#[async_trait]
impl Signals for Postgres {
    async fn open_signal_session(
        &self,
        session: SignalSession,
        events: Vec<NewEvent>,
    ) -> Result<()> {
        let needs = of(vec![session.id.clone()]);
        let change = move |rows: &mut Rows| {
            signals::open(rows.signal_sessions.get(&session.id).is_some())?;
            rows.signal_sessions.put(session.clone());
            rows.add_unbound(NO_PROVIDER, &events);
            Ok(())
        };
        self.write(0, needs, change).await
    }

    async fn record_signal(&self, signal: NewSignal) -> Result<SignalRecorded> {
        let bytes = size(&signal.events);
        let opens = signal.opens.as_ref();
        let mut sessions = vec![signal.session_id.clone()];
        sessions.extend(opens.map(|session| session.id.clone()));
        sessions.extend(signal.ends.as_ref().map(|(id, _)| id.clone()));
        let own = opens.filter(|session| session.id == signal.session_id);
        let key_id = own.map(|session| session.key_id.clone());
        let first = Statement::new(
            format!(
                "SELECT g.session, g.blocked, i.id IS NOT NULL, {} FROM signal g
                   LEFT JOIN signal_intervention i ON i.id = g.intervention_id
                 WHERE g.repeat_key = $1 AND g.key_id =
                   coalesce($2, (SELECT key_id FROM signal_session WHERE id = $3))",
                columns::<Intervention>("i.")
            ),
            params![signal.repeat_key, key_id, signal.session_id],
        );
        let needs = Needs {
            reads: vec![first.into_owned()],
            ..of(sessions)
        };
        self.write(bytes, needs, move |rows| record(rows, &signal))
            .await
    }

    async fn end_signal_sessions(
        &self,
        ends: Vec<(String, Timestamp)>,
        events: Vec<NewEvent>,
    ) -> Result<()> {
        let needs = of(ends.iter().map(|(id, _)| id.clone()).collect());
        let change = move |rows: &mut Rows| {
            ends.iter().for_each(|one| end(rows, one));
            rows.add_unbound(NO_PROVIDER, &events);
            Ok(())
        };
        self.write(0, needs, change).await
    }

    async fn recent_signal_sessions(
        &self,
        source: SignalSource,
        since: Timestamp,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<SignalSession>> {
        let sql = format!(
            "SELECT {} FROM signal_session WHERE id > $1 AND source = $2 AND last_at >= $3 ORDER BY id LIMIT $4",
            columns::<SignalSession>("")
        );
        let after = after.unwrap_or_default();
        self.all(
            sql,
            params![after, source, since, limit],
            SignalSession::read,
        )
        .await
    }

    async fn signal_session(
        &self,
        id: &str,
        records: usize,
    ) -> Result<Option<(SignalSession, Vec<SignalRecord>)>> {
        // One statement, because the totals count the records.
        let sql = format!(
            "SELECT {}, g.seq IS NOT NULL, {} FROM signal_session s LEFT JOIN LATERAL (
               SELECT * FROM signal WHERE session = s.id ORDER BY seq DESC LIMIT $2) g ON true
             WHERE s.id = $1 ORDER BY g.seq DESC",
            columns::<SignalSession>("s."),
            columns::<SignalRecord>("g.")
        );
        let id = id.to_owned();
        let found = self.all(sql, params![id, records], |row| {
            let session = SignalSession::read(row)?;
            let record = match row.next()? {
                true => Some(SignalRecord::read(row)?),
                false => None,
            };
            Ok((session, record))
        });
        let (mut sessions, records): (Vec<_>, Vec<_>) = found.await?.into_iter().unzip();
        Ok(sessions
            .pop()
            .map(|session| (session, records.into_iter().flatten().collect())))
    }

    async fn mark_signals(&self, mark: Arc<dyn Fn() + Send + Sync>) -> Result<u64> {
        self.mark(mark).await
    }

    async fn signal_amounts(
        &self,
        group: SignalGroup,
        since: Timestamp,
        last: u64,
    ) -> Result<Vec<(Timestamp, SignalTotals)>> {
        self.amounts(group, since, last).await
    }

    async fn signals_of_others(&self, after: Option<u64>) -> Result<(u64, Vec<OtherSignal>)> {
        self.of_others(after).await
    }

    async fn signal_sums(&self, by: SignalProperty, since: Timestamp) -> Result<SignalSums> {
        self.sums(by, since).await
    }

    async fn open_interventions(&self, limit: usize) -> Result<Vec<Intervention>> {
        self.interventions_that_are_open(limit).await
    }

    async fn acknowledge_intervention(
        &self,
        id: &str,
        owner: Option<Digest>,
        acknowledged: Acknowledgement,
        events: Vec<NewEvent>,
    ) -> Result<Acknowledged> {
        self.acknowledge(id.to_owned(), owner, acknowledged, events)
            .await
    }

    async fn interventions(&self, filter: InterventionFilter) -> Result<Page<Intervention>> {
        self.page_of_interventions(filter).await
    }

    async fn signals_to_forward(&self, limit: usize) -> Result<Option<Vec<SignalEntry>>> {
        self.entries(limit).await
    }

    async fn keep_forwarded(&self, position: u64) -> Result<()> {
        let change = move |rows: &mut Rows| {
            let sql = "INSERT INTO meta (name, value) VALUES ('forwarded', $1)
                       ON CONFLICT (name) DO UPDATE SET value = excluded.value";
            rows.execute(sql, params![position]);
            Ok(())
        };
        self.write(0, Needs::default(), change).await
    }

    async fn signal_sessions(&self, filter: SignalSessionFilter) -> Result<Page<SignalSession>> {
        let SignalSessionFilter {
            adapter,
            user,
            project,
            active,
            before,
            limit,
        } = filter;
        let sql = format!(
            "SELECT place, {} FROM signal_session WHERE place < $1
               AND ($2 IS NULL OR adapter = $2) AND ($3 IS NULL OR user_id = $3) AND ($4 IS NULL OR project_id = $4)
               AND ($5 IS NULL OR (ended_at IS NULL) = $5)
             ORDER BY place DESC LIMIT $6",
            columns::<SignalSession>("")
        );
        let (before, most) = (before.unwrap_or(u64::MAX), limit.saturating_add(1));
        let params = params![before, adapter, user, project, active, most];
        let found = self.all(sql, params, |row| {
            Ok((row.next()?, SignalSession::read(row)?))
        });
        Ok(page(found.await?, limit, None))
    }
}

/// Needs of a change, with those of its charge.
pub(super) fn with_charge(needs: Needs, charge: Option<&Charge>) -> Needs {
    let sessions = charge.map(|charge| charge.session.id.clone());
    Needs {
        signal_sessions: sessions.into_iter().collect(),
        ..needs
    }
}

/// Charges the usage of a dispatch.
pub(super) fn charge(rows: &mut Rows, charge: &Charge) {
    let id = &charge.session.id;
    let stored = rows.signal_sessions.get(id).map(|session| session.totals);
    let Some(new) = signals::charged(charge, &stored.unwrap_or_default()) else {
        return;
    };
    if stored.is_none() {
        rows.signal_sessions.put(charge.session.clone());
    }
    insert_signal(rows, &new);
}

pub(super) fn end(rows: &mut Rows, (id, at): &(String, Timestamp)) {
    if let Some(session) = rows.signal_sessions.get_mut(id) {
        session.ended_at.get_or_insert(*at);
    }
}

fn record(rows: &mut Rows, new: &NewSignal) -> Result<SignalRecorded, Stop> {
    let stored = rows.signal_sessions.get(&new.session_id);
    signals::key_of(new, stored)?;
    if let Some(first) = rows.answers.first().and_then(|answer| answer.first()) {
        let mut columns = Columns::of(first);
        let (session, blocked) = (columns.next()?, columns.next()?);
        let told = match columns.next()? {
            true => Some(Intervention::read(&mut columns)?),
            false => None,
        };
        return Ok(SignalRecorded::Repeat(
            session,
            signals::repeated(blocked, told),
        ));
    }
    let opens = new.opens.as_ref();
    let is_known = opens.is_some_and(|session| rows.signal_sessions.get(&session.id).is_some());
    signals::open(is_known)?;
    let is_own = opens.is_some_and(|session| session.id == new.session_id);
    if !is_own && stored.is_none() {
        return Err(Error::NotFound.into());
    }
    new.ends.iter().for_each(|one| end(rows, one));
    if let Some(session) = opens {
        rows.signal_sessions.put(session.clone());
    }
    Ok(SignalRecorded::New(insert_signal(rows, new)))
}

/// Judges a signal of a session that is here, and writes it with all that follows from it.
fn insert_signal(rows: &mut Rows, new: &NewSignal) -> SignalVerdict {
    let Some(session) = rows.signal_sessions.get_mut(&new.session_id) else {
        return SignalVerdict::default();
    };
    let (record, judgement) = signals::judge(new, session);
    session.count(&record);
    session.paused_at = new.paused_at;
    let key_id = new.repeat_key.map(|_| session.key_id.clone());
    rows.on_rollback(judgement.undo);
    rows.signals.push(SignalRow {
        instance: rows.instance,
        session: new.session_id.clone(),
        key_id,
        repeat_key: new.repeat_key,
        record,
    });
    if !judgement.ends.is_empty() {
        let sql = "UPDATE signal_intervention SET is_open = false WHERE id = ANY($1)";
        rows.execute(sql, vec![crate::rows::statement::array(&judgement.ends)]);
    }
    if !judgement.begins.is_empty() {
        let begins: Vec<_> = judgement.begins.iter().collect();
        rows.insert("signal_intervention", &begins);
    }
    rows.add_unbound(NO_PROVIDER, &new.events);
    rows.add_unbound(NO_PROVIDER, &judgement.events);
    judgement.verdict
}
