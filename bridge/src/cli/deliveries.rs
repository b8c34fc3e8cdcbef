//! `forge-bridge deliveries`: lists callback deliveries, retries them, and shows the receivers that fail.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use super::client::{Client, Target};
use super::paging::{self, Range};
use super::screen::{Screen, Tone, text};
use super::{Context, FAILED, block_on};

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
    /// List deliveries, newest first (the default)
    List(Listing),
    /// Show one delivery with its attempts
    Show { id: String },
    /// List receivers whose circuit breaker is open or half-open, and when they are tried next
    Destinations {
        #[command(subcommand)]
        command: Option<DestinationCommand>,
    },
    /// Retry one delivery now, or all that match (dead ones unless --status is given)
    Retry {
        /// Delivery id; all that match when absent
        #[arg(required_unless_present_any = ["host", "since", "status"])]
        #[arg(conflicts_with_all = ["host", "since", "status", "dry_run"])]
        id: Option<String>,
        #[command(flatten)]
        filter: Filter,
        /// Only show the number of deliveries that match
        #[arg(long)]
        dry_run: bool,
        /// Do not ask before all that match are retried
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Debug, Subcommand)]
enum DestinationCommand {
    /// Close the circuit breaker of a receiver: everything due there is sent now
    Retry {
        /// Origin as `deliveries destinations` shows it, or any URL of the receiver
        origin: String,
    },
}

#[derive(Debug, Default, PartialEq, Args)]
struct Filter {
    /// Only deliveries in this state
    #[arg(long)]
    status: Option<State>,
    /// Only deliveries to this host or host:port
    #[arg(long)]
    host: Option<String>,
    /// Only results finished since this time: RFC 3339, or an age such as 30m, 1h or 7d
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum State {
    Pending,
    Delivered,
    Dead,
    Superseded,
}

type Pairs<'a> = Vec<(&'a str, &'a str)>;

impl Filter {
    fn query(&self) -> Pairs<'_> {
        let status = self.status.map(|status| match status {
            State::Pending => "pending",
            State::Delivered => "delivered",
            State::Dead => "dead",
            State::Superseded => "superseded",
        });
        let given = [
            ("status", status),
            ("host", self.host.as_deref()),
            ("since", self.since.as_deref()),
        ];
        let given = given.into_iter();
        given
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

const ROOT: [&str; 3] = ["api", "v2", "deliveries"];
const DESTINATIONS: [&str; 4] = ["api", "v2", "deliveries", "destinations"];

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Some(command) = &arguments.command else {
        return list(context, &arguments.listing);
    };
    paging::is_behind_list(&arguments.listing)?;
    match command {
        Command::List(listing) => list(context, listing),
        Command::Show { id } => show(context, id),
        Command::Destinations { command: None } => destinations(context),
        Command::Destinations {
            command: Some(DestinationCommand::Retry { origin }),
        } => close(context, origin),
        Command::Retry { id: Some(id), .. } => retry(context, id),
        Command::Retry {
            id: None,
            filter,
            dry_run,
            yes,
        } => retry_many(context, filter, *dry_run, *yes),
    }
}

fn list(context: &Context, Listing { filter, range }: &Listing) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    block_on(async {
        let list = Target {
            path: &ROOT,
            query: &filter.query(),
        };
        let names = ["delivery", "status", "attempts", "due", "task", "to"];
        range
            .print(context, &client, list, names, rows, "deliveries")
            .await?;
        if context.global.json {
            return Ok(ExitCode::SUCCESS);
        }
        let screen = context.screen();
        let down = client.get(Target::path(&DESTINATIONS)).await?;
        match down["destinations"].as_array().map_or(0, Vec::len) {
            0 => {}
            1 => screen.aside("one receiver is failing; `deliveries destinations` shows it")?,
            count => screen.aside(format_args!(
                "{count} receivers are failing; `deliveries destinations` shows them"
            ))?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Rows of a page of the list.
fn rows(page: &Value) -> Vec<[String; 6]> {
    let row = |delivery: &Value| {
        let [id, status, attempts, task, to] =
            ["/id", "/status", "/attemptCount", "/taskId", "/url"]
                .map(|column| text(delivery, column));
        [id, status, attempts, due(delivery), task, to]
    };
    let deliveries = page["deliveries"].as_array().into_iter().flatten();
    deliveries.map(row).collect()
}

/// Time of the next attempt, or the state of the circuit breaker that it waits for.
fn due(delivery: &Value) -> String {
    match &delivery["destination"] {
        Value::Null => text(delivery, "/dueAt"),
        destination => circuit(destination),
    }
}

fn circuit(destination: &Value) -> String {
    let next = text(destination, "/probeAt");
    match destination["state"].as_str() {
        Some("open") => format!(
            "circuit open, next try {}",
            next.get(11..19).unwrap_or(&next)
        ),
        Some(_) | None => "circuit half-open, tried now".to_owned(),
    }
}

fn destinations(context: &Context) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let down = block_on(async { Ok(client.get(Target::path(&DESTINATIONS)).await?) })?;
    let screen = context.screen();
    if context.global.json {
        screen.value(&down)?;
        return Ok(ExitCode::SUCCESS);
    }
    let heading = ["to", "state", "since", "next try", "openings", "reason"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for destination in down["destinations"].as_array().into_iter().flatten() {
        let columns = [
            "/origin",
            "/state",
            "/openedAt",
            "/probeAt",
            "/openings",
            "/reason",
        ];
        rows.push(columns.map(|column| text(destination, column)).to_vec());
    }
    screen.table(&rows)?;
    if rows.len() == 1 {
        screen.aside("no receiver fails")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(context: &Context, id: &str) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let path = [ROOT.as_slice(), &[id]].concat();
    let delivery = block_on(async { Ok(client.get(Target::path(&path)).await?) })?;
    let screen = context.screen();
    match context.global.json {
        true => screen.value(&delivery)?,
        false => describe(&screen, &delivery)?,
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn describe(screen: &Screen, delivery: &Value) -> std::io::Result<()> {
    let lines = [
        ("delivery", "/id"),
        ("dispatch", "/dispatchId"),
        ("task", "/taskId"),
        ("to", "/url"),
        ("status", "/status"),
        ("due", "/dueAt"),
        ("settled", "/settledAt"),
        ("attempts", "/attemptCount"),
    ];
    for (name, pointer) in lines {
        let name = screen.paint(Tone::Quiet, format_args!("{name:<10}"));
        let value = match pointer {
            "/dueAt" => due(delivery),
            pointer => text(delivery, pointer),
        };
        screen.line(format_args!("{name}{value}"))?;
    }
    for attempt in delivery["attempts"].as_array().into_iter().flatten() {
        let outcome = match attempt.get("error") {
            Some(error) => screen.paint(Tone::Bad, text(error, "")),
            None => text(attempt, "/status"),
        };
        screen.line(format_args!(
            "  {:>3}  {}  {:>6} ms  {outcome}",
            text(attempt, "/number"),
            text(attempt, "/at"),
            text(attempt, "/durationMs"),
        ))?;
        if let Some(answer) = attempt.get("answer").and_then(Value::as_str) {
            for line in answer.lines().take(20) {
                screen.line(format_args!("         {}", screen.paint(Tone::Quiet, line)))?;
            }
        }
    }
    Ok(())
}

fn retry(context: &Context, id: &str) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let path = [ROOT.as_slice(), &[id, "retry"]].concat();
    let answer = block_on(async { Ok(client.post(Target::path(&path), &Value::Null).await?) })?;
    scheduled(context, &answer)
}

fn retry_many(
    context: &Context,
    filter: &Filter,
    dry_run: bool,
    yes: bool,
) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let screen = context.screen();
    block_on(async {
        if dry_run || !yes {
            let counted = post_retry(&client, filter, &[("dryRun", "true")]).await?;
            let count = text(&counted, "/retried");
            match (dry_run, context.global.json) {
                (true, true) => screen.value(&counted)?,
                (true, false) => screen.line(format_args!("{count} would be sent again"))?,
                (false, _) if count == "0" => screen.aside("no delivery matches")?,
                (false, _) if screen.ask(format_args!("Send {count} deliveries again?"))? => {
                    let answer = post_retry(&client, filter, &[]).await?;
                    return scheduled(context, &answer);
                }
                (false, _) => screen.aside("nothing was sent; --yes sends without a question")?,
            }
            return Ok(match dry_run {
                true => ExitCode::SUCCESS,
                false => ExitCode::from(FAILED),
            });
        }
        scheduled(context, &post_retry(&client, filter, &[]).await?)
    })
}

async fn post_retry(
    client: &Client,
    filter: &Filter,
    more: &[(&str, &str)],
) -> anyhow::Result<Value> {
    let target = Target {
        path: &[ROOT.as_slice(), &["retry"]].concat(),
        query: &[filter.query().as_slice(), more].concat(),
    };
    Ok(client.post(target, &Value::Null).await?)
}

/// Prints the answer to a retry.
fn scheduled(context: &Context, answer: &Value) -> anyhow::Result<ExitCode> {
    let screen = context.screen();
    if context.global.json {
        screen.value(answer)?;
    } else {
        screen.line(format_args!(
            "{} scheduled for a retry",
            text(answer, "/retried")
        ))?;
        for destination in answer["destinations"].as_array().into_iter().flatten() {
            let origin = text(destination, "/origin");
            screen.line(format_args!("{origin}: {}", circuit(destination)))?;
        }
    }
    Ok(match answer["retried"].as_u64() {
        Some(0) => ExitCode::from(FAILED),
        Some(_) | None => ExitCode::SUCCESS,
    })
}

fn close(context: &Context, origin: &str) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let path = [DESTINATIONS.as_slice(), &[origin, "close"]].concat();
    let answer = block_on(async { Ok(client.post(Target::path(&path), &Value::Null).await?) })?;
    let screen = context.screen();
    match context.global.json {
        true => screen.value(&answer)?,
        false => screen.line(format_args!(
            "{origin}: circuit closed, everything due is sent now"
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}
