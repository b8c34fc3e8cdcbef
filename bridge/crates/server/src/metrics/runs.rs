//! Metrics of runs. The gauges are those of runs that have not ended.

use std::fmt;

use forge_runs::Runs;

use super::page::Page;

pub(super) fn write(runs: &Runs, page: &mut Page<'_>) -> fmt::Result {
    let meters = runs.meters();
    page.gauge(("runs", "Runs that have not ended, by status"), |to| {
        let mut rows = meters.runs().into_iter();
        rows.try_for_each(|(status, count)| to.level(&[("status", status)], count))
    })?;
    let about = ("run_tasks", "Tasks of runs that have not ended, by status");
    page.gauge(about, |to| {
        let mut rows = meters.tasks().into_iter();
        rows.try_for_each(|(status, count)| to.level(&[("status", status)], count))
    })?;
    page.counter(("runs_ended", "Runs that ended, by status"), |to| {
        let mut rows = meters.ended().into_iter();
        rows.try_for_each(|(status, count)| to.count(&[("status", status)], count))
    })?;
    let about = (
        "run_attempts",
        "Attempts of tasks that ended, by outcome; failed ones include those of refineries",
    );
    page.counter(about, |to| {
        let mut rows = meters.attempts().into_iter();
        rows.try_for_each(|(outcome, count)| to.count(&[("outcome", outcome)], count))
    })?;
    let about = ("run_merges", "Merges of refineries that were proved");
    page.counter(about, |to| to.count(&[], meters.merges.get()))
}
