//! Approvals: held dispatches, and decisions about them.

use async_trait::async_trait;
use rusqlite::{Connection, Row, params};

use forge_base::event::NewEvent;
use forge_base::id::DispatchId;
use forge_store::record::{Approval, ApprovalFilter, ApprovalStatus, Decision, Page};
use forge_store::roles::Approvals;
use forge_store::transition;
use forge_store::{Error, Result};

use super::rows::{self, Current, nanos, phase, select_dispatch};
use super::{Tx, events, queue};
use crate::Sqlite;
use crate::engine::{Failure, Length, Urgency};

#[async_trait]
impl Approvals for Sqlite {
    async fn approve(&self, id: DispatchId, decision: Decision, event: NewEvent) -> Result<()> {
        let change = move |tx: &mut Tx<'_>| approve(tx, id, &decision, &event);
        self.write(Urgency::Now, 0, change).await
    }

    async fn approvals(&self, filter: ApprovalFilter) -> Result<Page<Approval>> {
        let query = move |connection: &Connection| approvals(connection, &filter);
        self.engine.read(Length::Long, query).await
    }
}

fn approve(
    tx: &mut Tx<'_>,
    id: DispatchId,
    decision: &Decision,
    event: &NewEvent,
) -> Result<(), Failure> {
    let found = Current::find(tx.conn, id.as_bytes())?.ok_or(Error::NotFound)?;
    transition::approve(&found.standing())?;
    let sql = "SELECT not_before FROM dispatch WHERE seq = ?";
    let not_before = rows::one(tx.conn, sql, [found.seq], |row| rows::time_option(row, 0))?;
    let (phase, turn) = match transition::waits_until(not_before.flatten(), decision.at) {
        true => (phase::DELAYED, None),
        false => queue::turn(tx, &found.provider, found.session.as_deref())?,
    };
    let sql = "UPDATE dispatch SET phase = ?, turn = ?, events = events + 1 WHERE seq = ?";
    tx.execute(sql, params![phase, turn, found.seq])?;
    events::append(tx, &found, std::slice::from_ref(event))?;
    Ok(insert(tx, found.seq, decision, true)?)
}

/// Records a decision.
pub(crate) fn insert(
    tx: &Tx<'_>,
    dispatch: i64,
    decision: &Decision,
    approved: bool,
) -> rusqlite::Result<()> {
    let Decision { at, by, reason } = decision;
    tx.execute(
        "INSERT INTO decision (dispatch, approved, at, author, reason) VALUES (?, ?, ?, ?, ?)",
        params![dispatch, approved, nanos(*at), by, reason],
    )?;
    Ok(())
}

fn approvals(connection: &Connection, filter: &ApprovalFilter) -> rusqlite::Result<Page<Approval>> {
    let status = filter.status;
    let waiting = select_dispatch!(
        " FROM dispatch d INDEXED BY dispatch_held JOIN body b ON b.dispatch = d.seq
         WHERE d.phase = -1 AND d.seq < ?1 ORDER BY d.seq DESC LIMIT ?2"
    );
    let decided = select_dispatch!(
        ", c.at, c.author, c.reason FROM decision c INDEXED BY decision_approved
         JOIN dispatch d ON d.seq = c.dispatch JOIN body b ON b.dispatch = d.seq
         WHERE c.approved = ?3 AND c.dispatch < ?1 ORDER BY c.dispatch DESC LIMIT ?2"
    );
    let before = filter.before.and_then(|before| i64::try_from(before).ok());
    let before = before.unwrap_or(i64::MAX);
    let limit = rows::limit(filter.limit.saturating_add(1));
    let read = |row: &Row<'_>, decision| {
        let dispatch = rows::dispatch(row)?;
        let approval = Approval {
            dispatch,
            status,
            decision,
        };
        Ok((row.get(rows::SEQ)?, approval))
    };
    let mut found: Vec<(u64, Approval)> = match status {
        ApprovalStatus::Waiting => {
            rows::all(connection, waiting, [before, limit], |row| read(row, None))?
        }
        ApprovalStatus::Approved | ApprovalStatus::Rejected => {
            let approved = status == ApprovalStatus::Approved;
            rows::all(
                connection,
                decided,
                params![before, limit, approved],
                |row| {
                    let decision = Decision {
                        at: rows::time(row, rows::MORE)?,
                        by: row.get(rows::MORE + 1)?,
                        reason: row.get(rows::MORE + 2)?,
                    };
                    read(row, Some(decision))
                },
            )?
        }
    };
    let is_last = found.len() <= filter.limit;
    found.truncate(filter.limit);
    let next = found.last().map(|(seq, _)| *seq).filter(|_| !is_last);
    Ok(Page {
        items: found.into_iter().map(|(_, approval)| approval).collect(),
        next,
    })
}
