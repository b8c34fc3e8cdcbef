//! `forge-bridge dispatches cancel` and `retry`: of dispatches by their ids, or of all that match.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use super::super::client::{Client, Error, Target};
use super::super::{Context, FAILED, Unusable, block_on};
use super::{Filter, LIST, State, again, path};

/// Requests at a time.
const AT_ONCE: usize = 8;
/// Entries of a page; the most that the bridge answers.
const PAGE: &str = "200";

#[derive(Debug, Args)]
pub(super) struct Selection {
    /// Ids of dispatches or tasks; all that match when absent
    #[arg(value_name = "ID", required_unless_present_any = ["status", "provider", "agent", "run", "since"])]
    #[arg(conflicts_with_all = ["status", "provider", "agent", "run", "since", "dry_run"])]
    pub(super) ids: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// Only show the number of dispatches that match
    #[arg(long)]
    dry_run: bool,
    /// Do not ask before it is done to all that match
    #[arg(long)]
    yes: bool,
}

/// Change of a dispatch.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Cancel,
    /// Dispatches its request again, as another task.
    Retry,
}

impl Action {
    /// States of the dispatches that match without ids.
    fn states(self, given: Option<State>) -> Result<Vec<State>, Unusable> {
        let (fitting, others, message) = match self {
            Self::Cancel => (
                &[State::Queued, State::Running][..],
                &[][..],
                "a finished dispatch cannot be cancelled: --status is queued or running",
            ),
            Self::Retry => (
                &[State::Error][..],
                &[State::Ok, State::Finished][..],
                "only finished dispatches match: --status is error, ok or finished",
            ),
        };
        match given {
            None => Ok(fitting.to_vec()),
            Some(state) if fitting.contains(&state) || others.contains(&state) => Ok(vec![state]),
            Some(_) => Err(Unusable(message.to_owned())),
        }
    }

    fn verb(self) -> &'static str {
        match self {
            Self::Cancel => "Cancel",
            Self::Retry => "Dispatch again",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Cancel => "cancelled",
            Self::Retry => "dispatched again",
        }
    }

    /// Answer of the bridge; `None` if it was too late.
    async fn perform(self, client: &Client, id: &str) -> anyhow::Result<Option<Value>> {
        match self {
            Self::Cancel => {
                let path = path(id, &["cancel"]);
                let answer = client.post(Target::path(&path), &Value::Null).await?;
                Ok((answer["cancelled"] == true).then_some(answer))
            }
            Self::Retry => {
                let request = again::request(client, id).await?;
                Ok(Some(again::post(client, &request).await?))
            }
        }
    }
}

pub(super) fn run(
    context: &Context,
    action: Action,
    arguments: &Selection,
) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let screen = context.screen();
    block_on(async {
        if !arguments.ids.is_empty() {
            return perform_all(context, &client, action, &arguments.ids).await;
        }
        let states = action.states(arguments.filter.status)?;
        let ids = matching(&client, &arguments.filter, &states).await?;
        let (count, done) = (ids.len(), action.done());
        if arguments.dry_run {
            match context.global.json {
                true => screen.value(&json!({ "matching": count }))?,
                false => screen.line(format_args!("{count} would be {done}"))?,
            }
            return Ok(ExitCode::SUCCESS);
        }
        if count == 0 {
            screen.aside("no such dispatch matches")?;
        } else if arguments.yes
            || screen.ask(format_args!("{} {count} dispatches?", action.verb()))?
        {
            return perform_all(context, &client, action, &ids).await;
        } else {
            screen.aside(format_args!(
                "none was {done}; --yes does it without a question"
            ))?;
        }
        Ok(ExitCode::from(FAILED))
    })
}

/// Ids of all dispatches that match, in one of these states, oldest first.
async fn matching(
    client: &Client,
    filter: &Filter,
    states: &[State],
) -> Result<Vec<String>, Error> {
    // One that starts between two lists is in both. The ids of later ones are greater.
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

/// Does it to these and prints how many it was done to; exit code 1 unless to all. An error does not keep it from the rest.
async fn perform_all(
    context: &Context,
    client: &Client,
    action: Action,
    ids: &[String],
) -> anyhow::Result<ExitCode> {
    let screen = context.screen();
    let answers = stream::iter(ids).map(|id| action.perform(client, id));
    let mut answers = answers.buffered(AT_ONCE);
    let (mut done, mut late, mut refused) = (Vec::new(), 0_usize, None);
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(Some(answer)) => done.push(answer),
            Ok(None) => late += 1,
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let count = done.len();
    if context.global.json {
        screen.value(&match action {
            Action::Cancel => json!({ "cancelled": count, "finished": late }),
            Action::Retry => json!({ "dispatched": done }),
        })?;
    } else if refused.is_none() || count + late > 0 {
        for accepted in done.iter().filter(|_| action == Action::Retry) {
            again::announce(&screen, accepted)?;
        }
        screen.line(format_args!("{count} {}", action.done()))?;
        if late > 0 {
            screen.aside(format_args!("{late} had finished before"))?;
        }
    }
    match refused {
        Some(error) => Err(error),
        None if late == 0 => Ok(ExitCode::SUCCESS),
        None => Ok(ExitCode::from(FAILED)),
    }
}
