//! `forge-bridge deliveries`: lists callback deliveries and retries them.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use super::client::Target;
use super::screen::{Screen, Tone, text};
use super::{Context, FAILED, block_on};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List deliveries, newest first (the default)
    List(Filter),
    /// Show one delivery with its attempts
    Show { id: String },
    /// List receivers whose circuit breaker is open or half-open, and when they are tried next
    Destinations,
    /// Retry one delivery now, or all that match (dead ones unless --status is given)
    Retry {
        /// Delivery id; all that match when absent
        #[arg(required_unless_present_any = ["host", "since", "status"])]
        id: Option<String>,
        #[command(flatten)]
        filter: Filter,
        /// Only results finished since this time, RFC 3339
        #[arg(long, conflicts_with = "id")]
        since: Option<String>,
    },
}

#[derive(Debug, Default, Args)]
struct Filter {
    /// Only deliveries in this state
    #[arg(long)]
    status: Option<State>,
    /// Only deliveries to this host or host:port
    #[arg(long)]
    host: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum State {
    Pending,
    Delivered,
    Dead,
    Superseded,
}

impl Filter {
    fn query(&self) -> Vec<(&str, &str)> {
        let status = self.status.map(|status| match status {
            State::Pending => "pending",
            State::Delivered => "delivered",
            State::Dead => "dead",
            State::Superseded => "superseded",
        });
        let status = status.map(|status| ("status", status));
        let host = self.host.as_deref().map(|host| ("host", host));
        status.into_iter().chain(host).collect()
    }
}

const ROOT: [&str; 3] = ["api", "v2", "deliveries"];
const DESTINATIONS: [&str; 4] = ["api", "v2", "deliveries", "destinations"];

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let everything = Command::List(Filter::default());
    match arguments.command.as_ref().unwrap_or(&everything) {
        Command::List(filter) => list(context, filter),
        Command::Show { id } => show(context, id),
        Command::Destinations => destinations(context),
        Command::Retry {
            id: Some(id),
            filter: _,
            since: _,
        } => retry(context, &[ROOT.as_slice(), &[id, "retry"]].concat(), &[]),
        Command::Retry {
            id: None,
            filter,
            since,
        } => {
            let mut query = filter.query();
            query.extend(since.as_deref().map(|since| ("since", since)));
            retry(context, &[ROOT.as_slice(), &["retry"]].concat(), &query)
        }
    }
}

fn list(context: &Context, filter: &Filter) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let target = Target {
        path: &ROOT,
        query: &filter.query(),
    };
    let (page, down) = block_on(async {
        let page = client.get(target).await?;
        Ok((page, client.get(Target::path(&DESTINATIONS)).await?))
    })?;
    let screen = context.screen();
    if context.global.json {
        screen.value(&page)?;
        return Ok(ExitCode::SUCCESS);
    }
    let heading = ["delivery", "status", "attempts", "due", "task", "to"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for delivery in page["deliveries"].as_array().into_iter().flatten() {
        let columns = [
            "/id",
            "/status",
            "/attemptCount",
            "/dueAt",
            "/taskId",
            "/url",
        ];
        rows.push(columns.map(|column| text(delivery, column)).to_vec());
    }
    screen.table(&rows)?;
    if !page["nextCursor"].is_null() {
        screen.aside("older deliveries exist; --json shows the cursor")?;
    }
    match down["destinations"].as_array().map_or(0, Vec::len) {
        0 => {}
        1 => screen.aside("one receiver is failing; `deliveries destinations` shows it")?,
        count => screen.aside(format_args!(
            "{count} receivers are failing; `deliveries destinations` shows them"
        ))?,
    }
    Ok(ExitCode::SUCCESS)
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

fn describe(screen: &Screen, delivery: &Value) -> std::io::Result<()> {
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
        screen.line(format_args!("{name}{}", text(delivery, pointer)))?;
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

fn retry(context: &Context, path: &[&str], query: &[(&str, &str)]) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let target = Target { path, query };
    let answer = block_on(async { Ok(client.post(target, &Value::Null).await?) })?;
    let screen = context.screen();
    match context.global.json {
        true => screen.value(&answer)?,
        false => screen.line(format_args!(
            "{} scheduled for a retry",
            text(&answer, "/retried")
        ))?,
    }
    Ok(match answer["retried"].as_u64() {
        Some(0) => ExitCode::from(FAILED),
        Some(_) | None => ExitCode::SUCCESS,
    })
}
