//! Reading of the rows of a batch: one statement for each table, in the order in which all nodes lock them.

use tokio_postgres::Row;

use super::{Needs, Rows};
use crate::rows::cell::Cell;
use crate::rows::statement::{Columns, Statement, array};
use crate::rows::table::{Fields as _, lock, select};
use crate::tables::rows::{BodyRow, DeliveryRow, DispatchRow, KeyRow, SessionRow};
use crate::tables::run_rows::RunRow;
use forge_store::Result;
use forge_store::record::SignalSession;

/// Rows that the answer to a statement holds.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Keys,
    Sessions,
    Homes,
    Dispatches,
    Bodies,
    Requests,
    Deliveries,
    Runs,
    SignalSessions,
}

const LOCKED: &str = "FOR UPDATE";

/// All values of one kind of need.
fn all<'a, T: 'a>(needs: &[&'a Needs], of: impl Fn(&'a Needs) -> &'a [T]) -> Vec<&'a T> {
    needs.iter().flat_map(|needs| of(needs)).collect()
}

fn among<'a, C: Cell>(sql: &'static str, values: Vec<&'a C>) -> Statement<'a> {
    Statement::new(sql, vec![array(values)])
}

/// Sessions that these dispatches run in or wait for.
fn of_leaving(dispatches: &str) -> String {
    format!("SELECT queue FROM dispatch WHERE id = ANY({dispatches}) AND queue IS NOT NULL")
}

/// Statements that read the rows of these needs.
pub(crate) fn statements<'a>(needs: &[&'a Needs]) -> Vec<(Part, Statement<'a>)> {
    let mut found = Vec::new();
    let keys = all(needs, |needs| &needs.keys);
    let enters = all(needs, |needs| &needs.sessions);
    let dispatches = all(needs, |needs| &needs.dispatches);
    let leaving: Vec<_> = needs.iter().copied().filter(|needs| needs.leaves).collect();
    let leaving = all(&leaving, |needs| &needs.dispatches);
    if !keys.is_empty() {
        found.push((Part::Keys, select::<KeyRow>(&keys, LOCKED)));
    }
    if !enters.is_empty() || !leaving.is_empty() {
        let name = format!("$1 OPERATOR(pg_catalog.||) ARRAY({})", of_leaving("$2"));
        let params = vec![
            array(enters.iter().copied()),
            array(leaving.iter().copied()),
        ];
        found.push((Part::Sessions, lock::<SessionRow>(&name, params)));
    }
    // Written under the lock of the session.
    if !enters.is_empty() {
        let sql = "SELECT session, node FROM home WHERE session = ANY($1)";
        found.push((Part::Homes, among(sql, enters)));
    }
    if !leaving.is_empty() {
        let own = of_leaving("$2");
        let next =
            "SELECT id FROM dispatch WHERE queue = s.name AND turn > s.head ORDER BY turn LIMIT 1";
        let id = format!(
            "$1 OPERATOR(pg_catalog.||) ARRAY(SELECT ({next}) FROM session s WHERE s.name = ANY(ARRAY({own})))"
        );
        let params = vec![array(dispatches), array(leaving)];
        found.push((Part::Dispatches, lock::<DispatchRow>(&id, params)));
    } else if !dispatches.is_empty() {
        found.push((Part::Dispatches, select::<DispatchRow>(&dispatches, LOCKED)));
    }
    let runs = all(needs, |needs| &needs.runs);
    if !runs.is_empty() {
        found.push((Part::Runs, select::<RunRow>(&runs, LOCKED)));
    }
    let signals = all(needs, |needs| &needs.signal_sessions);
    if !signals.is_empty() {
        let sessions = select::<SignalSession>(&signals, LOCKED);
        found.push((Part::SignalSessions, sessions));
    }
    // These change only under the lock of their dispatch.
    let bodies = all(needs, |needs| &needs.bodies);
    if !bodies.is_empty() {
        found.push((Part::Bodies, select::<BodyRow>(&bodies, "")));
    }
    let requests = all(needs, |needs| &needs.requests);
    if !requests.is_empty() {
        let sql = "SELECT id, request, secrets FROM body WHERE id = ANY($1)";
        found.push((Part::Requests, among(sql, requests)));
    }
    let deliveries = all(needs, |needs| &needs.deliveries);
    if !deliveries.is_empty() {
        found.push((Part::Deliveries, select::<DeliveryRow>(&deliveries, "")));
    }
    found
}

impl Rows {
    /// Takes the answers to the statements of these needs.
    pub(crate) fn load(
        &mut self,
        needs: &[&Needs],
        tables: &[(Part, Statement<'_>)],
        answers: &mut impl Iterator<Item = Vec<Row>>,
    ) -> Result<()> {
        let sessions = needs.iter().flat_map(|needs| &needs.sessions);
        self.sought_sessions.extend(sessions.cloned());
        let bodies = needs.iter().flat_map(|needs| &needs.bodies);
        self.sought_bodies.extend(bodies);
        let mut parts = tables.iter().zip(answers);
        parts.try_for_each(|((part, _), rows)| self.load_part(*part, &rows))
    }

    fn load_part(&mut self, part: Part, rows: &[Row]) -> Result<()> {
        match part {
            Part::Keys => self.keys.load(rows),
            Part::Sessions => self.sessions.load(rows),
            Part::Homes => rows.iter().try_for_each(|row| {
                let mut columns = Columns::of(row);
                self.session_nodes.insert(columns.next()?, columns.next()?);
                Ok(())
            }),
            Part::Dispatches => self.dispatches.load(rows),
            // One that cannot be read concerns its own dispatch.
            Part::Bodies => {
                let rows = rows.iter().map(|row| BodyRow::read(&mut Columns::of(row)));
                self.bodies.add(rows.filter_map(Result::ok).collect());
                Ok(())
            }
            Part::Deliveries => self.deliveries.load(rows),
            Part::Runs => self.runs.load(rows),
            Part::SignalSessions => self.signal_sessions.load(rows),
            Part::Requests => rows.iter().try_for_each(|row| {
                let mut columns = Columns::of(row);
                let id = columns.next()?;
                self.requests.insert(id, (columns.next()?, columns.next()?));
                Ok(())
            }),
        }
    }
}
