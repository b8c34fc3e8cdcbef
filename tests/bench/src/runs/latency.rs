//! Delays: from a request to its event at a reader, and of reading a run.

use std::time::{Duration, Instant};

use anyhow::ensure;

use super::super::load;
use super::super::loaded::Caller;
use super::super::target::Target;
use super::reader::Reader;
use super::run;

const SAMPLES: usize = 400;

fn p50(times: Vec<Duration>) -> f64 {
    load::latency(times.into_iter()).p50_us
}

/// From a dispatch to its first event, in the stream of all events.
pub(crate) fn of_dispatches(target: &Target) -> anyhow::Result<f64> {
    let mut reader = Reader::open(target, "/api/v2/events?after=now&type=execution.accepted")?;
    let mut caller = Caller::connect(target)?;
    let mut times = Vec::new();
    for _ in 0..SAMPLES {
        let begun = Instant::now();
        caller.dispatch("delay", r#""model":"ok""#)?;
        let next = reader.next()?;
        times.extend(next.map(|(at, _)| at.duration_since(begun)));
    }
    ensure!(times.len() == SAMPLES, "the stream of events ended");
    Ok(p50(times))
}

/// From a pause or a resume of a run to its event, in the stream of the run.
pub(crate) fn of_run(target: &Target, id: &str) -> anyhow::Result<f64> {
    let mut reader = Reader::open(target, &format!("/api/v1/runs/{id}/stream?after=now"))?;
    let mut caller = Caller::connect(target)?;
    let mut times = Vec::new();
    for number in 0..SAMPLES {
        let begun = Instant::now();
        run::hold(&mut caller, id, number % 2 == 0)?;
        let next = reader.next()?;
        times.extend(next.map(|(at, _)| at.duration_since(begun)));
    }
    ensure!(times.len() == SAMPLES, "the stream of the run ended");
    Ok(p50(times))
}

/// Reading a run.
pub(crate) fn of_get(target: &Target, id: &str) -> anyhow::Result<f64> {
    let mut caller = Caller::connect(target)?;
    let path = format!("/api/v1/runs/{id}");
    let mut times = Vec::new();
    for _ in 0..SAMPLES {
        let begun = Instant::now();
        let (status, answer) = caller.call("GET", &path, "")?;
        times.push(begun.elapsed());
        ensure!(status == 200, "{status}: {answer}");
    }
    Ok(p50(times))
}
