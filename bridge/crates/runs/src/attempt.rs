//! Attempts of tasks: a checkout with the results of the dependencies, a dispatch in it, a commit of what it leaves,
//! and the push of its branch.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use forge_base::failpoint;

use crate::agent::{self, Place};
use crate::context::Context;
use crate::decide::changed;
use crate::event::{Event, TaskStatus};
use crate::git::{self, Branch, CommitId, Input, Merge, Message, Repository};
use crate::plan::AgentType;
use crate::state::Task;
use crate::step::{self, NotSubmitted, Outcome};
use crate::{Artifact, Work};

/// Error codes after which the agent may not have ended by itself.
const STALE: [&str; 4] = [
    "stalled",
    "interrupted",
    "adapter_crashed",
    "adapter_unavailable",
];
/// Tries of a push, with growing waits.
const PUSHES: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Makes the checkout of an attempt and submits its dispatch. Both are there already after a crash.
pub(crate) async fn start(context: &Context, task: &str, attempt: u32) -> Work {
    let place = Place::first(task, attempt);
    let branch = match context.branch(task, attempt) {
        Ok(branch) => branch,
        Err(error) => return failed(context, task, attempt, &error.to_string()),
    };
    let checkout = match check_out(context, task, &branch).await {
        Ok(Ok(checkout)) => checkout,
        Ok(Err(conflict)) => return failed(context, task, attempt, &conflict),
        Err(error) if error.is_transient() => return context.again(&error).await,
        Err(error) => return failed(context, task, attempt, &error.to_string()),
    };
    let document = match context.document(task).await {
        Ok(document) => document,
        Err(error) => return context.again(&error).await,
    };
    let known = context.state.tasks.get(task);
    let agent_type = known.map_or(AgentType::Worker, |task| task.agent_type);
    let body = agent::body(context, &place, agent_type, &document, &checkout).await;
    let (body, headers) = match body {
        Ok(body) => body,
        Err(error) => return context.again(&error).await,
    };
    let id = place.id(context);
    let dispatch = match step::submit(&context.inner, &id, body, headers, &context.stop).await {
        Ok(dispatch) => dispatch,
        Err(NotSubmitted::Refused(text)) => return failed(context, task, attempt, &text),
        Err(NotSubmitted::Stopped) => return Work::default(),
    };
    let started = Event::TaskStarted {
        task_id: task.to_owned(),
        agent_id: dispatch.to_string(),
        sandbox_id: id.to_string(),
        branch: branch.to_string(),
    };
    Work {
        entries: vec![
            (attempt, started),
            (
                attempt,
                changed(task, TaskStatus::Pending, TaskStatus::Running, attempt),
            ),
        ],
        ..Work::default()
    }
}

/// Checkout of an attempt; the text says which branches conflict.
async fn check_out(
    context: &Context,
    task: &str,
    branch: &Branch,
) -> Result<Result<git::Checkout, String>, git::Error> {
    let repository = context.repository().await?;
    if repository.tip(branch).await?.is_none() {
        let mut onto = repository.base().clone();
        let mut inputs = Vec::new();
        for id in context.state.dependencies(task) {
            match context.state.tasks.get(id) {
                Some(before) if before.is_refinery() => {
                    let target = context.target()?;
                    onto = repository.tip(&target).await?.unwrap_or(onto);
                }
                Some(before) => inputs.extend(input(context, id, before)),
                None => {}
            }
        }
        match repository.merge(&onto, &inputs).await? {
            Merge::Done(commit) => repository.start(branch, &commit).await?,
            Merge::Conflict(conflict) => {
                let (of, paths) = (&conflict.input.branch, conflict.paths.join(", "));
                return Ok(Err(format!(
                    "the results of the dependencies do not merge: {of} conflicts in {paths}"
                )));
            }
        };
    }
    repository.checkout(branch).await.map(Ok)
}

/// Result of a task, for a merge.
pub(crate) fn input(context: &Context, id: &str, task: &Task) -> Option<Input> {
    let branch = context.branch(id, task.attempt).ok()?;
    let commit = CommitId::parse(task.commit.as_deref()?)?;
    Some(Input { branch, commit })
}

/// Keeps what the own agent of an attempt has left.
pub(crate) async fn finish(
    context: &Context,
    task: &str,
    attempt: u32,
    outcome: &Outcome,
) -> Result<Work, git::Error> {
    if let Some((code, text)) = &outcome.error {
        let text = format!("{code}: {text}");
        return Ok(match STALE.contains(&&**code) {
            true => stale(task, attempt, text),
            false => failed(context, task, attempt, &text),
        });
    }
    let repository = context.repository().await?;
    let branch = context.branch(task, attempt)?;
    let checkout = repository.checkout(&branch).await?;
    let title = context.state.tasks.get(task).map(|known| &*known.title);
    let message = message(context, task, attempt, title.unwrap_or(task));
    failpoint::point("run.commit");
    let committed = checkout.commit(&message, &[]).await?;
    failpoint::point("run.committed");
    let path = format!("{task}/{attempt}/walkthrough.md");
    let files = committed
        .changed
        .iter()
        .map(|path| format!("  - path: {}\n", Value::from(&**path)));
    let is_generated = outcome.output.trim().is_empty();
    let body = match is_generated {
        true => format!(
            "## Summary\n\nThe agent left no report. It changed {} files.\n",
            committed.changed.len()
        ),
        false => outcome.output.clone(),
    };
    let walkthrough = format!(
        "---\ntask_id: {task}\nbranch: {branch}\nbase_ref: {}\nstatus: completed\ngenerated: {is_generated}\nfiles_changed:\n{}---\n\n{body}\n",
        context
            .state
            .repository
            .as_ref()
            .map_or("", |attached| &attached.commit),
        files.collect::<String>(),
    );
    let completed = Event::TaskCompleted {
        task_id: task.to_owned(),
        walkthrough_path: path.clone(),
    };
    Ok(Work {
        entries: vec![
            (attempt, completed),
            (
                attempt,
                changed(task, TaskStatus::Running, TaskStatus::Done, attempt),
            ),
        ],
        artifacts: vec![Artifact::walkthrough(path, walkthrough)],
        ..Work::default()
    })
}

/// Message of a commit of an attempt.
pub(crate) fn message(context: &Context, task: &str, attempt: u32, title: &str) -> Message {
    Message {
        text: format!(
            "{title}\n\nForge-Run: {}\nForge-Task: {task}\nForge-Attempt: {attempt}\n",
            context.run
        ),
        seconds: context.inner.clock.now().as_second(),
    }
}

/// At most the size of an artifact, cut between two characters.
pub(crate) fn clip(mut text: String) -> String {
    let mut end = text.len().min(crate::tools::MAX_DOCUMENT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

fn stale(task: &str, attempt: u32, error: String) -> Work {
    let stale = Event::TaskStale {
        task_id: task.to_owned(),
        error,
    };
    Work {
        entries: vec![
            (attempt, stale),
            (
                attempt,
                changed(task, TaskStatus::Running, TaskStatus::Stale, attempt),
            ),
        ],
        ..Work::default()
    }
}

/// An attempt that failed, in whatever state it is.
pub(crate) fn failed(context: &Context, task: &str, attempt: u32, error: &str) -> Work {
    let status = context
        .state
        .tasks
        .get(task)
        .map_or(TaskStatus::Pending, |known| known.status);
    let failed = Event::TaskFailed {
        task_id: task.to_owned(),
        error: error.to_owned(),
        can_retry: attempt < crate::decide::MAX_ATTEMPTS,
    };
    let mut entries = vec![(attempt, failed)];
    let mut from = status;
    // No attempt fails before it runs, also if it has no dispatch.
    if status == TaskStatus::Pending {
        from = TaskStatus::Running;
        entries.push((attempt, changed(task, status, from, attempt)));
    }
    entries.push((attempt, changed(task, from, TaskStatus::Failed, attempt)));
    Work {
        entries,
        ..Work::default()
    }
}

/// Pushes the branch of an attempt and reads it back.
pub(crate) async fn push(context: &Context, task: &str, attempt: u32) -> Work {
    let mut wait = FIRST_WAIT;
    for number in 1.. {
        match push_once(context, task, attempt).await {
            Ok((branch, commit)) => {
                let pushed = Event::BranchPushed {
                    task_id: task.to_owned(),
                    branch: branch.to_string(),
                    commit: commit.as_str().to_owned(),
                };
                return Work {
                    entries: vec![
                        (attempt, pushed),
                        (
                            attempt,
                            changed(task, TaskStatus::Done, TaskStatus::MergeReady, attempt),
                        ),
                    ],
                    ..Work::default()
                };
            }
            Err(error) if number < PUSHES && error.is_transient() => {
                tracing::warn!(run = %context.run, "{task} is pushed again: {error}");
                sleep(wait).await;
                wait *= 2;
            }
            Err(error) => return failed(context, task, attempt, &error.to_string()),
        }
    }
    Work::default()
}

async fn push_once(
    context: &Context,
    task: &str,
    attempt: u32,
) -> Result<(Branch, CommitId), git::Error> {
    let repository: Repository = context.repository().await?;
    let branch = context.branch(task, attempt)?;
    let commit = repository.tip(&branch).await?;
    let commit = commit.ok_or_else(|| git::Error::NoRef(branch.to_string()))?;
    failpoint::point("run.push");
    // The name has the id of the run: a branch that is there already with another commit is a foreign one.
    repository.publish(&branch, None, &commit).await?;
    failpoint::point("run.pushed");
    Ok((branch, commit))
}
