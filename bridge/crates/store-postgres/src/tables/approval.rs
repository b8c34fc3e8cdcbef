//! Approvals: held dispatches, and decisions about them.

use async_trait::async_trait;

use forge_base::event::NewEvent;
use forge_base::id::DispatchId;
use forge_store::record::{Approval, ApprovalFilter, ApprovalStatus, Decision, Page};
use forge_store::roles::Approvals;
use forge_store::transition;
use forge_store::{Error, Result};

use super::execute::of;
use super::queue::{can_enter, enter};
use super::read::page;
use super::rows::{DecisionRow, Whole, phase};
use crate::Postgres;
use crate::batch::Rows;
use crate::rows::statement::params;

#[async_trait]
impl Approvals for Postgres {
    async fn approve(&self, id: DispatchId, decision: Decision, event: NewEvent) -> Result<()> {
        let change = move |rows: &mut Rows| {
            let dispatch = rows.dispatches.get(&id).ok_or(Error::NotFound)?;
            transition::approve(&dispatch.standing())?;
            match transition::waits_until(dispatch.not_before, decision.at) {
                true => {
                    if let Some(dispatch) = rows.dispatches.get_mut(&id) {
                        dispatch.phase = phase::DELAYED;
                    }
                }
                false => {
                    can_enter(rows, id)?;
                    enter(rows, id, phase::HELD);
                }
            }
            rows.append(id, std::slice::from_ref(&event));
            rows.decisions.push(DecisionRow {
                id,
                approved: true,
                decision: decision.clone(),
            });
            Ok(())
        };
        self.write(0, of(id), change).await
    }

    async fn approvals(&self, filter: ApprovalFilter) -> Result<Page<Approval>> {
        let ApprovalFilter {
            status,
            before,
            limit,
        } = filter;
        let which = match status {
            ApprovalStatus::Waiting => "d.phase = -1",
            ApprovalStatus::Approved => "c.approved",
            ApprovalStatus::Rejected => "NOT c.approved",
        };
        let sql = format!(
            "SELECT d.seq, {}, c.at, c.by, c.reason FROM dispatch d JOIN body b ON b.id = d.id
               LEFT JOIN decision c ON c.id = d.id
             WHERE {which} AND d.seq < $1 ORDER BY d.seq DESC LIMIT $2",
            Whole::columns()
        );
        let (before, most) = (before.unwrap_or(u64::MAX), limit.saturating_add(1));
        let found = self.all(sql, params![before, most], |row| {
            let seq = row.next()?;
            let whole = Whole::read(row)?;
            let (at, by, reason): (Option<_>, Option<_>, _) =
                (row.next()?, row.next()?, row.next()?);
            let decision = at.zip(by).map(|(at, by)| Decision { at, by, reason });
            let approval = Approval {
                dispatch: whole.record(),
                status,
                decision,
            };
            Ok((seq, approval))
        });
        Ok(page(found.await?, limit, None))
    }
}
