//! `forge-bridge dispatches`: lists dispatches, shows one on a page, cancels them and dispatches them again.

mod again;
mod bulk;
mod page;

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use super::client::Target;
use super::paging::{self, Range};
use super::screen::text;
use super::{Context, block_on};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    listing: Listing,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Default, PartialEq, Args)]
struct Listing {
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    range: Range,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List dispatches, newest first (the default)
    List(Listing),
    /// Show a dispatch: its request, routing, attempts, events, result and deliveries
    Show {
        /// Dispatch id (dsp_…), or a task id for the newest dispatch of that task
        id: String,
    },
    /// Cancel dispatches by their ids, or all that match and have not finished
    Cancel(bulk::Selection),
    /// Dispatch requests again, each as a new task with `retryOf`, by ids, or of all that match and ended with an error
    ///
    /// Headers, bearer and secret of the callback are not repeated: they are kept encrypted. Nor are notBefore and deadline.
    Retry(again::Arguments),
}

#[derive(Debug, Default, PartialEq, Args)]
struct Filter {
    /// Only dispatches in this state, or with this outcome
    #[arg(long)]
    status: Option<State>,
    /// Only dispatches of this adapter
    #[arg(long)]
    provider: Option<String>,
    /// Only dispatches of this agent
    #[arg(long)]
    agent: Option<String>,
    /// Only dispatches of this run
    #[arg(long)]
    run: Option<String>,
    /// Only dispatches accepted since this time: RFC 3339, or an age such as 30m, 1h or 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum State {
    Queued,
    Running,
    Finished,
    Ok,
    Error,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Ok => "ok",
            Self::Error => "error",
        }
    }
}

impl Filter {
    fn query(&self, status: Option<State>) -> Vec<(&str, &str)> {
        let given = [
            ("status", status.map(State::name)),
            ("provider", self.provider.as_deref()),
            ("agentId", self.agent.as_deref()),
            ("runId", self.run.as_deref()),
            ("since", self.since.as_deref()),
        ];
        let given = given.into_iter();
        given
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

const LIST: [&str; 3] = ["api", "v2", "dispatches"];

/// Path of a dispatch, or below it.
fn path<'a>(id: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
    [&["api", "v2", "dispatch", id], rest].concat()
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Some(command) = &arguments.command else {
        return list(context, &arguments.listing);
    };
    paging::is_behind_list(&arguments.listing)?;
    match command {
        Command::List(listing) => list(context, listing),
        Command::Show { id } => page::show(context, id),
        Command::Cancel(arguments) => bulk::run(context, bulk::Action::Cancel, arguments),
        Command::Retry(arguments) => again::run(context, arguments),
    }
}

fn list(context: &Context, Listing { filter, range }: &Listing) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    block_on(async {
        let list = Target {
            path: &LIST,
            query: &filter.query(filter.status),
        };
        let names = [
            "dispatch", "status", "task", "agent", "adapter", "accepted", "waits",
        ];
        range
            .print(context, &client, list, names, rows, "dispatches")
            .await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Rows of a page of the list.
fn rows(page: &Value) -> Vec<[String; 7]> {
    let row = |dispatch: &Value| {
        let [id, task, agent, provider, accepted] = [
            "/dispatchId",
            "/taskId",
            "/agentId",
            "/provider",
            "/acceptedAt",
        ]
        .map(|column| text(dispatch, column));
        let waits = match dispatch.get("waitReason") {
            Some(reason) => text(reason, "/message"),
            None => String::new(),
        };
        [id, status(dispatch), task, agent, provider, accepted, waits]
    };
    let dispatches = page["dispatches"].as_array().into_iter().flatten();
    dispatches.map(row).collect()
}

/// State of a dispatch; of a finished one `ok` or its error code.
fn status(dispatch: &Value) -> String {
    let outcome = dispatch.get("errorCode").or(dispatch.get("outcome"));
    match outcome {
        Some(outcome) => text(outcome, ""),
        None => text(dispatch, "/status"),
    }
}
