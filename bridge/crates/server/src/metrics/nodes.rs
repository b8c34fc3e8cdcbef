//! Metrics of a store that several nodes share. With a store of one node they are zero, so that a query over bridges of
//! both kinds has a value for each.

use std::fmt;

use super::MetricSources;
use super::page::Page;
use forge_store::meters::{DEAD_ROWS, LOST_ANSWERS};

pub(super) fn write(parties: &MetricSources, page: &mut Page<'_>) -> fmt::Result {
    let node = parties.store.node();
    let meters = parties.store.meters();
    let meters = &meters.shared;
    let about = ("nodes", "Live bridges on the store, this one included");
    let live = node.others.borrow().len() as u64 + 1;
    page.gauge(about, |to| to.level(&[], live))?;
    let about = ("store_lease", "Length of the lease; 0 if it never ends");
    let lease = node.lease.unwrap_or_default();
    page.seconds(about, |to| to.level(&[], lease.as_secs_f64()))?;
    let about = ("store_lease_age", "Time since the lease was last renewed");
    page.seconds(about, |to| {
        to.level(&[], seconds(meters.lease_age_ms.get()))
    })?;
    let about = (
        "store_poll",
        "Time of one poll of what the other bridges have changed",
    );
    page.times(about, |to| to.spread(&[], &meters.polls.read()))?;
    let about = (
        "store_commit_answers_lost",
        "Commits whose answer was lost, by what became of them",
    );
    page.counter(about, |to| {
        let mut counts = LOST_ANSWERS.into_iter().zip(&meters.lost_answers);
        counts.try_for_each(|(outcome, count)| to.count(&[("outcome", outcome)], count.get()))
    })?;
    let about = (
        "store_oldest_snapshot",
        "Age of the oldest transaction on the database, which keeps dead rows; read every 30 s",
    );
    page.seconds(about, |to| {
        to.level(&[], seconds(meters.oldest_snapshot_ms.get()))
    })?;
    let about = (
        "store_dead_rows",
        "Dead rows on the database by its estimate, by table; read every 30 s",
    );
    page.gauge(about, |to| {
        let mut tables = DEAD_ROWS.into_iter().zip(&meters.dead_rows);
        tables.try_for_each(|(table, rows)| to.level(&[("table", table)], rows.get()))
    })?;
    let about = (
        "dispatches_taken_over",
        "Dispatches of ended leases that this bridge took over, by outcome",
    );
    let take_overs = &parties.dispatcher.meters().take_overs;
    page.counter(about, |to| {
        to.count(&[("outcome", "requeued")], take_overs.requeued.get())?;
        to.count(&[("outcome", "ended")], take_overs.ended.get())
    })
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}
