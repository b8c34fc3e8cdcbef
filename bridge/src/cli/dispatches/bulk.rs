//! `forge-bridge dispatches cancel`: of dispatches by their ids, or of all that match.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::super::client::{Client, Error, Target};
use super::super::{Context, FAILED, Unusable, block_on};
use super::{Filter, LIST, State, path};

/// Requests at a time.
const AT_ONCE: usize = 8;
/// Entries of a page; the most that the bridge answers.
const PAGE: &str = "200";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Ids of dispatches or tasks; all that match when absent
    #[arg(value_name = "ID", required_unless_present_any = ["status", "provider", "agent", "run", "since"])]
    #[arg(conflicts_with_all = ["status", "provider", "agent", "run", "since", "dry_run"])]
    ids: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// Only show the number of dispatches that match
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before all that match are cancelled
    #[arg(long)]
    yes: bool,
}

pub(super) fn cancel(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let screen = context.screen();
    block_on(async {
        if !arguments.ids.is_empty() {
            return cancel_all(context, &client, &arguments.ids).await;
        }
        let states: &[State] = match arguments.filter.status {
            None => &[State::Queued, State::Running],
            Some(State::Queued) => &[State::Queued],
            Some(State::Running) => &[State::Running],
            Some(State::Finished | State::Ok | State::Error) => {
                let message =
                    "a finished dispatch cannot be cancelled: --status is queued or running";
                anyhow::bail!(Unusable(message.to_owned()));
            }
        };
        let ids = matching(&client, &arguments.filter, states).await?;
        let count = ids.len();
        if arguments.dry_run {
            match context.global.json {
                true => screen.value(&json!({ "matching": count }))?,
                false => screen.line(format_args!("{count} would be cancelled"))?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        if count == 0 {
            screen.aside("no unfinished dispatch matches")?;
        } else if arguments.yes || screen.ask(format_args!("Cancel {count} dispatches?"))? {
            return cancel_all(context, &client, &ids).await;
        } else {
            screen.aside("nothing was cancelled; --yes cancels without a question")?;
        }
        Ok(ExitCode::from(FAILED))
    })
}

/// Ids of all dispatches that match, in one of these states.
async fn matching(
    client: &Client,
    filter: &Filter,
    states: &[State],
) -> Result<Vec<String>, Error> {
    // One that starts between two lists is in both.
    let mut ids = BTreeSet::new();
    for state in states {
        let mut cursor: Option<String> = None;
        loop {
            let mut query = filter.query(Some(*state));
            query.push(("limit", PAGE));
            query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
            let list = Target {
                path: &LIST,
                query: &query,
            };
            let page = client.get(list).await?;
            let dispatches = page["dispatches"].as_array().into_iter().flatten();
            let found = dispatches.filter_map(|dispatch| dispatch["dispatchId"].as_str());
            ids.extend(found.map(str::to_owned));
            match page["nextCursor"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => break,
            }
        }
    }
    Ok(ids.into_iter().collect())
}

/// Cancels these and prints how many were; exit code 1 unless all were. An error does not keep it from the rest.
async fn cancel_all(
    context: &Context,
    client: &Client,
    ids: &[String],
) -> anyhow::Result<ExitCode> {
    let screen = context.screen();
    let answers = stream::iter(ids).map(async |id| {
        let path = path(id, &["cancel"]);
        client.post(Target::path(&path), &Value::Null).await
    });
    let mut answers = answers.buffer_unordered(AT_ONCE);
    let (mut cancelled, mut finished, mut refused) = (0_usize, 0_usize, None);
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(answer) if answer["cancelled"] == true => cancelled += 1,
            Ok(_) => finished += 1,
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    if context.global.json {
        screen.value(&json!({ "cancelled": cancelled, "finished": finished }))?;
    } else if refused.is_none() || cancelled + finished > 0 {
        screen.line(format_args!("{cancelled} cancelled"))?;
        if finished > 0 {
            screen.aside(format_args!("{finished} had finished before"))?;
        }
    }
    match refused {
        Some(error) => Err(error.into()),
        None if cancelled == ids.len() => Ok(ExitCode::SUCCESS),
        None => Ok(ExitCode::from(FAILED)),
    }
}
