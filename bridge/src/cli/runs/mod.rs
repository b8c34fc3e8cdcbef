//! `forge-bridge runs`: the routes for runs of a running bridge.

pub(super) mod follow;
pub(super) mod page;
pub(super) mod plan;

use std::io::Read as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::client::{Client, Target};
use super::paging::{self, Range};
use super::screen::{Screen, text};
use super::{Context, FAILED, Unusable, block_on};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    listing: Listing,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Default, PartialEq, Args)]
struct Listing {
    /// Only runs in this state
    #[arg(long)]
    status: Option<Status>,
    #[command(flatten)]
    range: Range,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List runs, newest first (the default)
    List(Listing),
    /// Start a run on a repository; prints its id
    Start(Start),
    /// Send a message to the Captain
    Say {
        run: String,
        /// Message; `-` reads it from standard input
        text: String,
    },
    /// Show a run: its tasks, pending change requests, and merges with their proof
    Show { run: String },
    /// Follow the events of a run to its end; exit code 1 unless it was completed
    Tail(follow::Arguments),
    /// Start nothing new, and let what runs wrap up where its adapter can, else end by itself
    Pause {
        run: String,
        /// Cancel what runs; it is repeated after `runs resume`
        #[arg(long)]
        abort: bool,
    },
    /// Continue a paused run
    Resume { run: String },
    /// Cancel what runs and end the run
    Cancel { run: String },
    /// Continue a run that ended without completing, or try at once what waits
    Retry {
        run: String,
        /// Only this task
        task: Option<String>,
        /// New budget of the run in US dollars
        #[arg(long, value_name = "USD", conflicts_with = "task")]
        max_cost_usd: Option<f64>,
        /// New budget of the run in tokens
        #[arg(long, value_name = "COUNT", conflicts_with = "task")]
        max_tokens: Option<u64>,
    },
    /// Approve the plan, or a change request
    Approve {
        run: String,
        /// Change request; the plan when absent
        change: Option<String>,
    },
    /// Reject a change request
    Reject {
        run: String,
        change: String,
        /// Reason, for the Captain
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Fold the events of a run and compare the result with its stored state; exit code 1 if they differ
    Verify { run: String },
}

#[derive(Debug, Args)]
struct Start {
    /// Repository: https without credentials, or what the settings of the bridge allow
    repo_url: String,
    /// Branch, tag or commit to begin with; the default branch when absent
    #[arg(long = "ref", value_name = "NAME")]
    reference: Option<String>,
    /// Adapter of all steps
    #[arg(long)]
    provider: Option<String>,
    /// Model of all steps
    #[arg(long)]
    model: Option<String>,
    /// Let the plan wait for `runs approve`
    #[arg(long)]
    plan_review: bool,
    /// First message to the Captain; `-` reads it from standard input
    #[arg(long, value_name = "TEXT")]
    message: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Status {
    Planning,
    PlanReview,
    Executing,
    Paused,
    Completed,
    Failed,
    Cancelled,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let runs = Runs {
        client: context.client()?,
        screen: context.screen(),
        json: context.global.json,
    };
    let none = json!({});
    block_on(async {
        let Some(command) = &arguments.command else {
            return list_runs(context, &runs, &arguments.listing).await;
        };
        paging::is_behind_list(&arguments.listing)?;
        match command {
            Command::List(listing) => list_runs(context, &runs, listing).await,
            Command::Start(start) => runs.start(start).await,
            Command::Say { run, text } => runs.say(run, text).await,
            Command::Show { run } => page::show(&runs, run).await,
            Command::Tail(arguments) => follow::tail(&runs, arguments).await,
            Command::Pause { run, abort } => {
                let body = abort.then(|| json!({ "mode": "abort" }));
                runs.change(run, &["pause"], &body.unwrap_or(none)).await
            }
            Command::Resume { run } => runs.change(run, &["resume"], &none).await,
            Command::Cancel { run } => runs.change(run, &["cancel"], &none).await,
            Command::Retry {
                run,
                task: Some(task),
                ..
            } => runs.change(run, &["tasks", task, "retry"], &none).await,
            Command::Retry {
                run,
                task: None,
                max_cost_usd,
                max_tokens,
            } => {
                let body = match (max_cost_usd, max_tokens) {
                    (None, None) => none,
                    (cost, tokens) => {
                        json!({ "budget": { "maxCostUsd": cost, "maxTokens": tokens } })
                    }
                };
                runs.change(run, &["retry"], &body).await
            }
            Command::Approve { run, change: None } => {
                runs.change(run, &["plan", "approve"], &none).await
            }
            Command::Approve {
                run,
                change: Some(change),
            } => {
                let path = ["change-requests", change, "approve"];
                runs.change(run, &path, &none).await
            }
            Command::Reject {
                run,
                change,
                reason,
            } => {
                let path = ["change-requests", change, "reject"];
                let body = reason.as_ref().map(|reason| json!({ "reason": reason }));
                runs.change(run, &path, &body.unwrap_or(none)).await
            }
            Command::Verify { run } => runs.verify(run).await,
        }
    })
}

/// Routes of runs, and the output of a command.
struct Runs {
    client: Client,
    screen: Screen,
    json: bool,
}

/// Path of a run, or below it.
fn path<'a>(run: &'a str, rest: &[&'a str]) -> anyhow::Result<Vec<&'a str>> {
    // Such a segment would name another route.
    if [&[run], rest]
        .concat()
        .iter()
        .any(|part| matches!(*part, "" | "." | ".."))
    {
        bail!(Unusable("an id cannot be empty, `.` or `..`".to_owned()));
    }
    Ok([&["api", "v1", "runs", run], rest].concat())
}

/// Text of an argument, which can be on standard input.
fn message(argument: &str) -> anyhow::Result<String> {
    if argument != "-" {
        return Ok(argument.to_owned());
    }
    let mut text = String::new();
    let read = std::io::stdin().read_to_string(&mut text);
    read.context("cannot read standard input")?;
    Ok(text)
}

impl Runs {
    async fn get(&self, run: &str, rest: &[&str]) -> anyhow::Result<Value> {
        Ok(self.client.get(Target::path(&path(run, rest)?)).await?)
    }

    async fn start(&self, start: &Start) -> anyhow::Result<ExitCode> {
        let message = start.message.as_deref().map(message).transpose()?;
        let body = json!({
            "repoUrl": start.repo_url, "ref": start.reference, "provider": start.provider,
            "model": start.model, "planReview": start.plan_review, "message": message,
        });
        let runs = Target::path(&["api", "v1", "runs"]);
        let created = self.client.post(runs, &body).await?;
        match self.json {
            true => self.screen.value(&created)?,
            false => self.screen.line(text(&created, "/runId"))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn say(&self, run: &str, argument: &str) -> anyhow::Result<ExitCode> {
        let answer = self.send(run, &message(argument)?).await?;
        match self.json {
            true => self.screen.value(&answer)?,
            false => self
                .screen
                .aside("sent; the answer is an event of the run")?,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn send(&self, run: &str, message: &str) -> anyhow::Result<Value> {
        let body = json!({ "runId": run, "message": message });
        let captain = Target::path(&["api", "v1", "captain", "message"]);
        Ok(self.client.post(captain, &body).await?)
    }

    /// Posts a request and prints the status after it.
    async fn change(&self, run: &str, rest: &[&str], body: &Value) -> anyhow::Result<ExitCode> {
        let target = path(run, rest)?;
        let answer = self.client.post(Target::path(&target), body).await?;
        match self.json {
            true => self.screen.value(&answer)?,
            false => self.screen.line(text(&answer, "/status"))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn verify(&self, run: &str) -> anyhow::Result<ExitCode> {
        let report = self.get(run, &["verify"]).await?;
        let is_same = report["ok"] == true;
        if self.json {
            self.screen.value(&report)?;
        } else {
            let seq = text(&report, "/seq");
            let verdict = if is_same {
                "the stored state is the fold of"
            } else {
                "the stored state differs from"
            };
            self.screen.line(format_args!("{verdict} {seq} events"))?;
            for difference in report["differences"].as_array().into_iter().flatten() {
                self.screen
                    .line(format_args!("  {}", text(difference, "")))?;
            }
        }
        Ok(exit(is_same))
    }
}

fn exit(is_success: bool) -> ExitCode {
    ExitCode::from(if is_success { 0 } else { FAILED })
}

async fn list_runs(
    context: &Context,
    runs: &Runs,
    Listing { status, range }: &Listing,
) -> anyhow::Result<ExitCode> {
    let status = status.and_then(|status| status.to_possible_value());
    let query = status.as_ref().map(|status| ("status", status.get_name()));
    let list = Target {
        path: &["api", "v1", "runs"],
        query: query.as_slice(),
    };
    let columns = [
        "/runId",
        "/status",
        "/createdAt",
        "/completedAt",
        "/lastEventSeq",
        "/repoUrl",
    ];
    let names = ["run", "status", "created", "ended", "events", "repository"];
    let row = |run: &Value| columns.map(|column| text(run, column));
    let rows = |page: &Value| {
        page["runs"]
            .as_array()
            .into_iter()
            .flatten()
            .map(row)
            .collect()
    };
    range
        .print(context, &runs.client, list, names, rows, "runs")
        .await?;
    Ok(ExitCode::SUCCESS)
}
