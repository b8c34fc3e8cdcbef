//! `forge-bridge runs tail`: follows a run across disconnects and restarts of the bridge.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::super::client::Client;
use super::super::stream::{Events, Query};
use super::super::tail;
use super::{Runs, exit};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    run: String,
    /// Start after this event; `now` for new ones, the first event when absent
    #[arg(long, value_name = "EVENT")]
    after: Option<String>,
    /// Only events of the types that the public design names
    #[arg(long)]
    core: bool,
}

/// Events of a run, to `run.completed`.
pub(in super::super) fn events(
    client: Client,
    run: &str,
    after: Option<String>,
    core: bool,
) -> Events {
    let path = ["api", "v1", "runs", run, "stream"];
    let filter = core.then(|| ("events".to_owned(), "core".to_owned()));
    let query = Query {
        path: path.map(str::to_owned).to_vec(),
        filter: filter.into_iter().collect(),
        after,
    };
    Events::new(client, query)
}

pub(super) async fn tail(runs: &Runs, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let run = &arguments.run;
    let record = runs.get(run, &[]).await?;
    let last = record["lastEventId"].as_str();
    // After a disconnect, `now` would be later.
    let after = match arguments.after.as_deref() {
        Some("now") => last,
        other => other,
    };
    if !record["completedAt"].is_null() && after.is_some() && after == last {
        return Ok(exit(record["status"] == "completed"));
    }
    let after = after.map(str::to_owned);
    let mut events = events(runs.client.clone(), run, after, arguments.core);
    while let Some(event) = events.next().await? {
        match runs.json {
            true => runs.screen.value_line(&event)?,
            false => runs.screen.line(tail::line(&runs.screen, &event))?,
        }
        if is_last(&event) && !is_reopened(runs, run, &event).await? {
            return Ok(exit(event["data"]["status"] == "completed"));
        }
    }
    Ok(exit(false))
}

/// True if a run continues after it had ended with this event.
async fn is_reopened(runs: &Runs, run: &str, event: &Value) -> anyhow::Result<bool> {
    let record = runs.get(run, &[]).await?;
    Ok(record["lastEventId"] != event["eventId"])
}

/// True for the event that ends every run.
pub(in super::super) fn is_last(event: &Value) -> bool {
    event["type"] == "run.completed"
}
