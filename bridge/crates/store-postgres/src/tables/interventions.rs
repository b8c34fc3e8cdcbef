//! Interventions of rules over signals: their rows.

use forge_base::digest::Digest;
use forge_base::event::NewEvent;
use forge_store::record::{Acknowledged, Acknowledgement, Intervention, InterventionFilter, Page};
use forge_store::{Result, signals};

use super::events::NO_PROVIDER;
use super::read::page;
use crate::batch::{Needs, Rows};
use crate::rows::statement::{Statement, params};
use crate::rows::table::{Fields as _, columns};
use crate::{Columns, Postgres};

impl Postgres {
    pub(super) async fn interventions_that_are_open(
        &self,
        limit: usize,
    ) -> Result<Vec<Intervention>> {
        let sql = format!(
            "SELECT {} FROM signal_intervention WHERE is_open ORDER BY seq DESC LIMIT $1",
            columns::<Intervention>("")
        );
        self.all(sql, params![limit], Intervention::read).await
    }

    pub(super) async fn page_of_interventions(
        &self,
        filter: InterventionFilter,
    ) -> Result<Page<Intervention>> {
        let sql = format!(
            "SELECT seq, {} FROM signal_intervention WHERE seq < $1 AND ($2 IS NULL OR session_id = $2)
             ORDER BY seq DESC LIMIT $3",
            columns::<Intervention>("")
        );
        let before = filter.before.unwrap_or(u64::MAX);
        let most = filter.limit.saturating_add(1);
        let params = params![before, filter.session, most];
        let found = self.all(sql, params, |row| {
            Ok((row.next()?, Intervention::read(row)?))
        });
        Ok(page(found.await?, filter.limit, None))
    }

    /// With an owner, one that began in a session of another owner is unknown.
    pub(super) async fn acknowledge(
        &self,
        id: String,
        owner: Option<Digest>,
        acknowledged: Acknowledgement,
        events: Vec<NewEvent>,
    ) -> Result<Acknowledged> {
        let found = format!(
            "SELECT {} FROM signal_intervention i WHERE i.id = $1 AND ($2 IS NULL OR EXISTS (
               SELECT 1 FROM signal_session s WHERE s.id = i.session_id AND s.owner = $2)) FOR UPDATE",
            columns::<Intervention>("i.")
        );
        let needs = Needs {
            reads: vec![Statement::new(found, params![id, owner]).into_owned()],
            apart: Some(id.clone()),
            ..Needs::default()
        };
        let change = move |rows: &mut Rows| {
            let row = rows.answers[0].first();
            let stored = row
                .map(|row| Intervention::read(&mut Columns::of(row)))
                .transpose()?;
            let outcome = signals::acknowledge(stored.as_ref());
            if outcome == Acknowledged::First {
                let sql = "UPDATE signal_intervention SET acknowledged_at = $1, ack_delay_ms = $2 WHERE id = $3";
                rows.execute(sql, params![acknowledged.at, acknowledged.delay_ms, id]);
                rows.add_unbound(NO_PROVIDER, &events);
            }
            Ok(outcome)
        };
        self.write(0, needs, change).await
    }
}
