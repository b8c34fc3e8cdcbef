//! Runs on echo, from their creation to their end.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Value, json};

use super::super::loaded::Caller;
use super::super::target::Target;
use super::origin::Origin;
use super::reader::Reader;

/// Instructions of a task that writes one file.
pub(crate) fn instructions(number: usize) -> String {
    format!("write f{number}.txt text {number}")
}

/// Creates a run; returns its id.
pub(crate) fn begin(target: &Target, origin: &Origin) -> anyhow::Result<String> {
    let body = json!({ "repoUrl": origin.url() }).to_string();
    let (status, answer) = Caller::connect(target)?.call("POST", "/api/v1/runs", &body)?;
    ensure!(status == 201, "{status}: {answer}");
    let answer: Value = serde_json::from_str(&answer)?;
    let id = answer["runId"].as_str();
    id.map(str::to_owned).context("the answer has no runId")
}

/// Creates a run with a plan and reads its events to the end, which must be a good one.
fn whole(
    target: &Target,
    origin: &Origin,
    tasks: &[Value],
    mut see: impl FnMut(&Value),
) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let run = begin(target, origin)?;
    let mut reader = Reader::open(target, &format!("/api/v1/runs/{run}/stream"))?;
    let message = json!({ "tasks": tasks }).to_string();
    let body = json!({ "runId": run, "message": message }).to_string();
    let (status, answer) =
        Caller::connect(target)?.call("POST", "/api/v1/captain/message", &body)?;
    ensure!(status == 202, "{status}: {answer}");
    while let Some((at, event)) = reader.next()? {
        see(&event);
        if event["type"] == "run.completed" {
            ensure!(event["data"]["status"] == "completed", "{event}");
            return Ok(at.duration_since(begun));
        }
    }
    bail!("the stream of the run ended before it")
}

/// A run of tasks that do not depend on each other.
pub(crate) fn independent_tasks(
    target: &Target,
    origin: &Origin,
    tasks: usize,
) -> anyhow::Result<Duration> {
    let task = |number: usize| {
        json!({
            "id": format!("t{number}"), "title": format!("Task {number}"), "type": 1,
            "dependencies": [], "instructions": instructions(number),
        })
    };
    let tasks: Vec<_> = (0..tasks).map(task).collect();
    whole(target, origin, &tasks, |_| {})
}

/// Text of a task in the log of its run.
pub(crate) struct Joined {
    pub(crate) events: usize,
    pub(crate) bytes: usize,
    /// From the start of the run to its end.
    pub(crate) took: Duration,
}

/// A run with one task that sends this number of text deltas.
pub(crate) fn text(target: &Target, origin: &Origin, deltas: usize) -> anyhow::Result<Joined> {
    let lines: Vec<_> = (0..deltas)
        .map(|number| format!("say {number:09}"))
        .collect();
    let task = json!({
        "id": "t", "title": "Talk", "type": 1, "dependencies": [], "instructions": lines.join("\n"),
    });
    let (mut events, mut bytes) = (0, 0);
    let took = whole(target, origin, &[task], |event| {
        if event["type"] == "task.progress" {
            events += 1;
            bytes += event["data"]["content"].as_str().map_or(0, str::len);
        }
    })?;
    ensure!(bytes >= deltas * 9, "only {bytes} bytes arrived");
    Ok(Joined {
        events,
        bytes,
        took,
    })
}

/// Adds events to a run by pausing and resuming it.
pub(crate) fn pause_and_resume(target: &Target, run: &str, events: usize) -> anyhow::Result<()> {
    let mut caller = Caller::connect(target)?;
    for number in 0..events {
        hold(&mut caller, run, number % 2 == 0)?;
    }
    Ok(())
}

/// Pauses a run, or resumes it.
pub(crate) fn hold(caller: &mut Caller, run: &str, pauses: bool) -> anyhow::Result<()> {
    let command = if pauses { "pause" } else { "resume" };
    let (status, answer) = caller.call("POST", &format!("/api/v1/runs/{run}/{command}"), "")?;
    ensure!(status == 200, "{status}: {answer}");
    Ok(())
}
