//! Writing of a batch: one statement for each table, then the events, whose positions are assigned while no other batch
//! adds any.

use std::collections::BTreeMap;

use super::Rows;
use crate::rows::statement::{Statement, param, params};
use crate::rows::table::{Fields, columns, insert, unnest};
use crate::tables::rows::{EventRow, HomeRow};
use crate::tables::signal_rows::SignalRow;

fn insert_all<'a, F: Fields>(table: &str, rows: &'a [F], all: &mut Vec<Statement<'a>>) {
    if !rows.is_empty() {
        all.push(insert(table, &rows.iter().collect::<Vec<_>>()));
    }
}

impl Rows {
    /// Statements that write the rows. Tables in which another node can be inserting the same row come first, each in
    /// the order of its keys.
    pub(crate) fn row_statements(&self) -> Vec<Statement<'_>> {
        let mut all = Vec::new();
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
        if !self.homes.is_empty() {
            all.push(self.keep_homes());
        }
        all
    }

    fn keep_homes(&self) -> Statement<'_> {
        // One statement cannot write a row twice: the last one of a session counts.
        let homes: BTreeMap<_, _> = self
            .homes
            .iter()
            .map(|home| (&home.session, home))
            .collect();
        let homes: Vec<_> = homes.into_values().collect();
        let mut params = Vec::new();
        HomeRow::send(&homes, &mut params);
        let sql = format!(
            "INSERT INTO home ({}) SELECT * FROM {}
             ON CONFLICT (session) DO UPDATE SET node = excluded.node, at = excluded.at",
            columns::<HomeRow>(""),
            unnest::<HomeRow>(0)
        );
        Statement::new(sql, params)
    }

    /// Statements that changes have added.
    pub(crate) fn further_statements(&self) -> &[Statement<'static>] {
        &self.statements
    }

    /// Statements that add to what is read in the order of its commits, behind one lock. The last one returns the
    /// position before the events, if there are any.
    pub(crate) fn log_statements<'a>(&'a self, event_count: &'a u64) -> Vec<Statement<'a>> {
        let mut all = Vec::new();
        if !self.signals.is_empty() {
            let rows: Vec<_> = self.signals.iter().collect();
            let mut params = Vec::new();
            SignalRow::send(&rows, &mut params);
            let sql = format!(
                "INSERT INTO signal ({}) SELECT n.* FROM lock_log() AS l, {}",
                columns::<SignalRow>(""),
                unnest::<SignalRow>(0)
            );
            all.push(Statement::new(sql, params));
        }
        if !self.events.is_empty() {
            let rows: Vec<_> = self.events.iter().collect();
            let mut params = vec![param(event_count)];
            EventRow::send(&rows, &mut params);
            let sql = format!(
                "WITH log AS MATERIALIZED (SELECT assign_positions($1) AS base),
                 added AS (
                   INSERT INTO event (first, last, dispatch, run, seq, attempt, provider, unbound_at, body)
                   SELECT log.base + n.before + 1, log.base + n.before + n.count,
                     n.dispatch, n.run, n.seq, n.attempt, n.provider, n.unbound_at, n.body
                   FROM log, {})
                 SELECT base FROM log",
                unnest::<EventRow>(1)
            );
            all.push(Statement::new(sql, params));
        }
        all
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
