//! The agent of a refinery: it settles what git and the checks do not.

use serde_json::json;

use super::{Inputs, Trouble};
use crate::agent::{self, Place};
use crate::attempt::{self, failed};
use crate::check;
use crate::context::Context;
use crate::decide::changed;
use crate::event::{Event, TaskStatus};
use crate::git::{self, CommitId, Merge};
use crate::plan::AgentType;
use crate::state::{Conflict, Task};
use crate::step::{self, NotSubmitted, Outcome};
use crate::{Artifact, Work};

/// Dispatches of the agent of one attempt.
const MAX_ROUNDS: u32 = 5;

/// Starts the agent of a refinery in a checkout of a commit.
pub(super) async fn start(
    context: &Context,
    refinery: &str,
    attempt: u32,
    at: &CommitId,
    trouble: Trouble,
) -> Result<Work, git::Error> {
    let repository = context.repository().await?;
    let place = Place::first(refinery, attempt);
    let branch = place.branch(context.run)?;
    if repository.start(&branch, at).await? != *at {
        let text = "the target has moved while the merge was interrupted";
        return Ok(failed(context, refinery, attempt, text));
    }
    let checkout = repository.checkout(&branch).await?;
    let mut entries = Vec::new();
    let mut task = Task::new(String::new(), AgentType::Refinery, attempt);
    if let Some(conflict) = trouble.conflict {
        checkout.write(&conflict.onto, &conflict.tree).await?;
        let conflict = found(&conflict);
        entries.push((attempt, event(refinery, &conflict)));
        task.conflict = Some(conflict);
    }
    if let Some(checked) = trouble.failed {
        entries.push((attempt, checked.event(refinery)));
        task.failed_check = checked.report;
    }
    let message = match message(context, refinery, &task).await {
        Ok(message) => message,
        Err(error) => return Ok(context.again(&error).await),
    };
    let body = agent::body(context, &place, AgentType::Refinery, &message, &checkout).await;
    let (body, headers) = match body {
        Ok(body) => body,
        Err(error) => return Ok(context.again(&error).await),
    };
    let id = place.id(context);
    let dispatch = match step::submit(&context.inner, &id, body, headers, &context.stop).await {
        Ok(dispatch) => dispatch,
        Err(NotSubmitted::Refused(text)) => return Ok(failed(context, refinery, attempt, &text)),
        Err(NotSubmitted::Later(trouble)) => {
            return Ok(attempt::later(context, refinery, attempt, &trouble));
        }
        Err(NotSubmitted::Stopped) => return Ok(Work::default()),
    };
    let started = Event::TaskStarted {
        task_id: refinery.to_owned(),
        agent_id: dispatch.to_string(),
        sandbox_id: id.to_string(),
        branch: branch.to_string(),
    };
    entries.push((attempt, started));
    Ok(Work {
        entries,
        ..Work::default()
    })
}

fn found(conflict: &git::Conflict) -> Conflict {
    Conflict {
        branch: conflict.input.branch.to_string(),
        paths: conflict.paths.clone(),
    }
}

fn event(refinery: &str, conflict: &Conflict) -> Event {
    Event::RefineryConflict {
        task_id: refinery.to_owned(),
        branch: conflict.branch.clone(),
        paths: conflict.paths.clone(),
    }
}

/// Message to the agent: the document of the refinery, and what it has to settle.
pub(crate) async fn message(
    context: &Context,
    refinery: &str,
    task: &Task,
) -> forge_store::Result<String> {
    let document = context.document(refinery).await?;
    Ok(document + &trouble(task))
}

fn trouble(task: &Task) -> String {
    let conflict = task.conflict.as_ref().map(|conflict| {
        format!(
            "\n## Conflict\n\n{} does not merge by itself. The conflicts are marked in:\n\n- {}\n",
            conflict.branch,
            conflict.paths.join("\n- ")
        )
    });
    let check = task
        .failed_check
        .as_ref()
        .map(|report| format!("\n## Failing check\n\n{report}\n"));
    conflict.into_iter().chain(check).collect()
}

/// Keeps what the agent has left: merged with the inputs that are still missing, and checked.
pub(crate) async fn settle(
    context: &Context,
    refinery: &str,
    attempt: u32,
    outcome: &Outcome,
) -> Result<Work, git::Error> {
    let repository = context.repository().await?;
    let place = Place::first(refinery, attempt);
    let branch = place.branch(context.run)?;
    let checkout = repository.checkout(&branch).await?;
    let Inputs { inputs, .. } = Inputs::of(context, refinery);
    let known = context.state.tasks.get(refinery);
    let conflict = known.and_then(|task| task.conflict.as_ref());
    let input = conflict.and_then(|conflict| {
        let mut inputs = inputs.iter();
        inputs.find(|input| input.branch.as_str() == conflict.branch)
    });
    let parents: Vec<_> = input
        .map(|input| input.commit.clone())
        .into_iter()
        .collect();
    let message = attempt::message(context, refinery, attempt, "Settle the merge");
    let committed = checkout.commit(&message, &parents).await?;
    let commit = committed.commit;
    if let Some(conflict) = conflict {
        let left = repository.unresolved(&commit, &conflict.paths).await?;
        if !left.is_empty() {
            let text = format!("the agent left conflicts in {}", left.join(", "));
            return Ok(failed(context, refinery, attempt, &text));
        }
    }
    let rounds = known.and_then(|task| task.agents.first());
    let is_last = rounds.is_some_and(|agent| agent.rounds + 1 >= MAX_ROUNDS);
    let again = |trouble: Event, text: String| match is_last {
        true => failed(context, refinery, attempt, &text),
        false => Work {
            entries: vec![(attempt, trouble)],
            ..Work::default()
        },
    };
    let merged = match repository.merge(&commit, &inputs).await? {
        Merge::Done(merged) => merged,
        Merge::Conflict(conflict) => {
            checkout.write(&commit, &conflict.tree).await?;
            repository
                .advance(&branch, Some(&commit), &conflict.onto)
                .await?;
            let conflict = found(&conflict);
            let text = format!("{} conflicts still", conflict.branch);
            return Ok(again(event(refinery, &conflict), text));
        }
    };
    checkout.write(&commit, &merged).await?;
    repository.advance(&branch, Some(&commit), &merged).await?;
    let tests = check::run(context, &merged).await?;
    if let Some(failed) = tests.as_ref().filter(|tests| tests.report.is_some()) {
        let text = failed.report.clone().unwrap_or_default();
        return Ok(again(failed.event(refinery), text));
    }
    let mut entries: Vec<_> = tests
        .map(|tests| (attempt, tests.event(refinery)))
        .into_iter()
        .collect();
    let path = format!("{refinery}/{attempt}/walkthrough.md");
    let content = format!(
        "---\ntask_id: {refinery}\nbranch: {branch}\nconflicts: {}\n---\n\n{}\n",
        json!(known.map(|task| &task.conflicts)),
        outcome.output
    );
    let completed = Event::TaskCompleted {
        task_id: refinery.to_owned(),
        walkthrough_path: path.clone(),
    };
    entries.push((attempt, completed));
    let done = changed(refinery, TaskStatus::Running, TaskStatus::Done, attempt);
    entries.push((attempt, done));
    Ok(Work {
        entries,
        artifacts: vec![Artifact::walkthrough(path, content)],
        ..Work::default()
    })
}
