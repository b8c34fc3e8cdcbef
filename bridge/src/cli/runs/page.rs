//! `forge-bridge runs show`: a run on one page.

use std::io;
use std::process::ExitCode;

use serde_json::Value;

use super::super::client::Target;
use super::super::screen::{Screen, Tone, text};
use super::super::tail::rounded;
use super::{Runs, path, plan};

/// Events of a page that is searched for merges; the most that the bridge answers.
const PAGE: &str = "1000";
/// Characters of a commit that are shown.
const COMMIT: usize = 12;

pub(super) async fn show(runs: &Runs, run: &str) -> anyhow::Result<ExitCode> {
    let mut record = runs.get(run, &[]).await?;
    let is_merged = |task: &Value| task["type"] == "refinery" && task["status"] == "MERGED";
    let mut tasks = record["tasks"].as_object().into_iter().flatten();
    record["merges"] = match tasks.any(|(_, task)| is_merged(task)) {
        true => merges(runs, run, &record["lastEventSeq"]).await?.into(),
        false => Vec::<Value>::new().into(),
    };
    left_out(runs, run, &mut record).await?;
    let pending = record["activeCRs"]
        .as_array()
        .is_some_and(|ids| !ids.is_empty());
    record["changeRequests"] = match pending {
        true => runs.get(run, &["change-requests"]).await?,
        false => Vec::<Value>::new().into(),
    };
    match runs.json {
        true => runs.screen.value(&record)?,
        false => describe(&runs.screen, &record)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds to the tasks what was left out of their results, which a list does not have.
async fn left_out(runs: &Runs, run: &str, record: &mut Value) -> anyhow::Result<()> {
    let tasks = record["tasks"].as_object_mut().into_iter().flatten();
    for (id, task) in tasks.filter(|(_, task)| task["leftOutCount"].as_u64() > Some(0)) {
        let detail = runs.get(run, &["tasks", id]).await?;
        task["leftOut"] = detail["leftOut"].clone();
    }
    Ok(())
}

/// Data of all `refinery.merged`. The proof of a merge is in the log alone.
async fn merges(runs: &Runs, run: &str, last: &Value) -> anyhow::Result<Vec<Value>> {
    let path = path(run, &["events"])?;
    let mut found = Vec::new();
    let mut after = "0".to_owned();
    loop {
        let query = [("limit", PAGE), ("after", &after)];
        let page = Target {
            path: &path,
            query: &query,
        };
        let page = runs.client.get(page).await?;
        let events = page["events"].as_array().into_iter().flatten();
        let merged = events.filter(|event| event["type"] == "refinery.merged");
        found.extend(merged.map(|event| event["data"].clone()));
        let newest = page["events"].as_array().and_then(|events| events.last());
        match newest {
            Some(event) if event["seq"].as_u64() < last.as_u64() => {
                after = text(event, "/eventId");
            }
            Some(_) | None => return Ok(found),
        }
    }
}

fn describe(screen: &Screen, record: &Value) -> io::Result<()> {
    for (name, value) in members(record) {
        let shown = match name {
            "status" => screen.paint(tone(&value), value),
            "error" => screen.paint(Tone::Bad, value),
            _ => value,
        };
        let name = screen.paint(Tone::Quiet, format_args!("{name:<12}"));
        screen.line(format_args!("{name}{shown}"))?;
    }
    let nodes = record.pointer("/dag/nodes").and_then(Value::as_array);
    let nodes = nodes.map_or(&[][..], Vec::as_slice);
    if !nodes.is_empty() {
        screen.line("")?;
        let names = ["task", "status", "attempt", "after", "title"];
        let mut rows = vec![names.map(str::to_owned).to_vec()];
        rows.extend(plan::lines(nodes).into_iter().map(|(id, after)| {
            let task = &record["tasks"][id.trim_start()];
            let after = if after.is_empty() {
                "-".to_owned()
            } else {
                after
            };
            let [status, attempt, title] =
                ["/status", "/attemptId", "/title"].map(|name| text(task, name));
            vec![id, status, attempt, after, title]
        }));
        screen.table(&rows)?;
    }
    let tasks = record["tasks"].as_object().into_iter().flatten();
    for (id, task) in tasks.filter(|(_, task)| task["error"].is_string()) {
        let error = screen.paint(Tone::Bad, text(task, "/error"));
        screen.line(format_args!("{id}: {error}"))?;
    }
    let tasks = record["tasks"].as_object().into_iter().flatten();
    for (id, task) in tasks {
        if task["changedFiles"] == 0 {
            screen.line(format_args!("{id} changed nothing"))?;
        }
        let left_out = task["leftOut"].as_array().map_or(&[][..], Vec::as_slice);
        for entry in left_out {
            let [path, reason] = ["/path", "/reason"].map(|name| text(entry, name));
            screen.line(format_args!("{id} left out {path}: {reason}"))?;
        }
        let count = task["leftOutCount"].as_u64().unwrap_or_default();
        let more = count.saturating_sub(left_out.len() as u64);
        if more > 0 {
            screen.line(format_args!("{id} left out {more} others"))?;
        }
    }
    for change in record["changeRequests"].as_array().into_iter().flatten() {
        request(screen, change)?;
    }
    for merge in record["merges"].as_array().into_iter().flatten() {
        screen.line("")?;
        for line in merged(screen, merge, &text(record, "/target")) {
            screen.line(line)?;
        }
    }
    Ok(())
}

/// Members at the top, without those that the run does not have yet.
fn members(record: &Value) -> Vec<(&'static str, String)> {
    let commit = short(&text(record, "/commit"));
    let start = match record["ref"].as_str() {
        Some(name) => format!("{name} at {commit}"),
        None => "-".to_owned(),
    };
    let cost = rounded(record["costUsd"].as_f64().unwrap_or_default());
    let usage = format!("{} tokens, {cost} USD", text(record, "/tokens"));
    let mut members = vec![
        ("run", text(record, "/runId")),
        ("status", text(record, "/status")),
        ("error", text(record, "/error")),
        ("repository", text(record, "/repoUrl")),
        ("from", start),
        ("target", text(record, "/target")),
        ("created", text(record, "/createdAt")),
        ("started", text(record, "/startedAt")),
        ("ended", text(record, "/completedAt")),
        ("usage", usage),
        ("trace", text(record, "/traceId")),
    ];
    members.retain(|(_, value)| value != "-");
    members
}

fn tone(status: &str) -> Tone {
    match status {
        "completed" => Tone::Good,
        "failed" | "cancelled" => Tone::Bad,
        _ => Tone::Strong,
    }
}

/// A change request that waits for `runs approve` or `runs reject`.
fn request(screen: &Screen, change: &Value) -> io::Result<()> {
    if change["status"] != "pending" {
        return Ok(());
    }
    let id = screen.paint(Tone::Strong, text(change, "/crId"));
    screen.line("")?;
    screen.line(format_args!(
        "change request {id} of {}: {}",
        text(change, "/emittedBy"),
        text(change, "/title"),
    ))?;
    screen.line(format_args!("  {}", text(change, "/description")))?;
    screen.line(format_args!("  affects {}", text(change, "/impact")))
}

/// Result of a refinery with the evidence for each of its inputs, as lines; `merge` is data of `refinery.merged`.
pub(in super::super) fn merged(screen: &Screen, merge: &Value, target: &str) -> Vec<String> {
    let proof = merge["proof"].as_array().map_or(&[][..], Vec::as_slice);
    let head = format!(
        "{} merged {} results to {} of {target}",
        text(merge, "/taskId"),
        proof.len(),
        screen.paint(Tone::Good, text(merge, "/resultRef")),
    );
    let inputs = proof.iter().map(|input| {
        let evidence = match input["by"].as_str() {
            Some("ancestor") => "is an ancestor of it",
            Some("patch") => "has its patch in it",
            Some(_) | None => "is proved otherwise",
        };
        let commit = short(&text(input, "/commit"));
        format!("  {commit} of {} {evidence}", text(input, "/branch"))
    });
    [head].into_iter().chain(inputs).collect()
}

fn short(commit: &str) -> String {
    commit.chars().take(COMMIT).collect()
}
