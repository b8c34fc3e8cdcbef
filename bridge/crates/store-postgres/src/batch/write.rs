//! Writing of a batch: one write for each table, then the events, whose positions are assigned while no other batch adds
//! any. They are one statement, unless changes have added further ones.

use std::collections::BTreeMap;
use std::mem;

use super::Rows;
use crate::rows::script::Script;
use crate::rows::statement::{Statement, param, params};
use crate::rows::table::{Fields, columns};
use crate::tables::rows::EventRow;

fn insert_all<'a, F: Fields>(table: &str, rows: &'a [F], script: &mut Script<'a>) {
    if !rows.is_empty() {
        script.insert(table, &rows.iter().collect::<Vec<_>>());
    }
}

/// Statements that write a batch, in their order.
pub(crate) struct Writes<'a> {
    first: Option<Statement<'a>>,
    further: &'a [Statement<'static>],
    proof: Option<Statement<'a>>,
    signals: Option<Statement<'a>>,
    /// Returns the position before the events, if there are any.
    last: Option<Statement<'a>>,
}

impl<'a> Writes<'a> {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Statement<'a>> {
        let first = self.first.iter().chain(self.further);
        first
            .chain(&self.proof)
            .chain(&self.signals)
            .chain(&self.last)
    }
}

impl Rows {
    /// Statements that write the batch. `proof` is among them if no event proves the commit.
    pub(crate) fn writes<'a>(&'a self, event_count: &'a u64, proof: Statement<'a>) -> Writes<'a> {
        let mut script = self.row_writes();
        let has_event = self.owned_event().is_some();
        let is_one = has_event && self.statements.is_empty() && self.signals.is_empty();
        let first = (!is_one).then(|| mem::take(&mut script).statement());
        let mut writes = Writes {
            first: first.flatten(),
            further: &self.statements,
            proof: None,
            signals: self.signal_writes().statement(),
            last: match self.events.is_empty() {
                true => script.statement(),
                false => Some(self.with_events(script, event_count)),
            },
        };
        if !has_event && writes.all().next().is_some() {
            writes.proof = Some(proof);
        }
        writes
    }

    /// Writes of the rows. Tables in which another node can be inserting the same row come first, each in the order of
    /// its keys.
    fn row_writes(&self) -> Script<'_> {
        let mut all = Script::default();
        self.keys.write(&mut all);
        self.sessions.write(&mut all);
        self.dispatches.write(&mut all);
        self.runs.write(&mut all);
        self.signal_sessions.write(&mut all);
        self.bodies.write(&mut all);
        insert_all("body", &self.new_bodies, &mut all);
        self.deliveries.write(&mut all);
        insert_all("result", &self.results, &mut all);
        insert_all("spending", &self.spendings, &mut all);
        insert_all("content", &self.contents, &mut all);
        insert_all("attempt", &self.attempts, &mut all);
        insert_all("decision", &self.decisions, &mut all);
        self.keep_homes(&mut all);
        all
    }

    fn keep_homes<'a>(&'a self, script: &mut Script<'a>) {
        // One statement cannot write a row twice: the last one of a session counts.
        let homes: BTreeMap<_, _> = self
            .homes
            .iter()
            .map(|home| (&home.session, home))
            .collect();
        let homes: Vec<_> = homes.into_values().collect();
        if !homes.is_empty() {
            let last = "ON CONFLICT (session) DO UPDATE SET node = excluded.node, at = excluded.at";
            script.insert_or("home", &homes, last);
        }
    }

    /// Signals, like events, are read in the order of their commits.
    fn signal_writes(&self) -> Script<'_> {
        let mut script = Script::default();
        if !self.signals.is_empty() {
            let rows: Vec<_> = self.signals.iter().collect();
            script.insert_after("lock_log()", "signal", &rows);
        }
        script
    }

    /// Writes, and then the events under the lock of the log. Returns the position before them.
    fn with_events<'a>(&'a self, mut script: Script<'a>, event_count: &'a u64) -> Statement<'a> {
        let (number, after) = (script.param(param(event_count)), script.after());
        let log = format!(
            "log AS MATERIALIZED (SELECT assign_positions({number}) AS base WHERE {after})"
        );
        let events = script.values(&self.events.iter().collect::<Vec<_>>());
        let (columns, from) = (columns::<EventRow>(""), events.from(Some("log")));
        let columns = columns.replacen("before, count", "first, last", 1);
        let (before, count) = (&events.columns[0], &events.columns[1]);
        let values = events.columns[2..].join(", ");
        let added = format!(
            "added AS (
               INSERT INTO event ({columns})
               SELECT log.base + {before} + 1, log.base + {before} + {count}, {values} {from})"
        );
        script.with(vec![log, added], "SELECT base FROM log")
    }

    /// The first event of a dispatch or run: no other batch writes the same.
    pub(crate) fn owned_event(&self) -> Option<&EventRow> {
        let is_owned = |one: &&EventRow| one.dispatch.is_some() || one.run.is_some();
        self.events.iter().find(is_owned)
    }

    /// Question for the position before the events, after the batch was written.
    pub(crate) fn place_query(&self) -> Statement<'_> {
        let count = self.event_count();
        match self.owned_event() {
            Some(one) => Statement::new(
                "SELECT first - 1 - $1 FROM event
                 WHERE seq = $2 AND (dispatch = $3 OR run = $4) AND attempt = $5 AND body = $6",
                params![
                    one.before,
                    one.seq,
                    one.dispatch,
                    one.run,
                    one.attempt,
                    one.body
                ],
            ),
            // No answer has the positions of events without an owner.
            None => {
                let sql = "SELECT coalesce(pg_catalog.max(last), $1) - $1 FROM event";
                Statement::new(sql, params![count]).into_owned()
            }
        }
    }
}
