//! Attempts of tasks: a checkout with the results of the dependencies, a dispatch in it, a commit of what it leaves,
//! and the push of its branch.

use serde_json::Value;

use forge_base::failpoint;

use crate::agent::{self, Place};
use crate::context::Context;
use crate::decide::{MAX_FAILURES, changed};
use crate::event::{Event, TaskStatus};
use crate::files::FileChanges;
use crate::git::{self, Branch, CommitId, Input, Merge, Message, Outlook, Repository};
use crate::plan::AgentType;
use crate::settlement::{self, Unsettled};
use crate::space::DISK_FULL;
use crate::state::Task;
use crate::step::{self, NotSubmitted, Outcome, StepError};
use crate::wait::Trouble;
use crate::{Artifact, Work};

/// Error codes after which the agent may not have ended by itself.
const STALE: [&str; 5] = [
    DISK_FULL,
    "stalled",
    "interrupted",
    "adapter_crashed",
    "adapter_unavailable",
];
/// Changed files that a walkthrough lists.
const LISTED: usize = 1_000;

/// Makes the checkout of an attempt and submits its dispatch. Both are there already after a crash.
pub(crate) async fn start(context: &Context, task: &str, attempt: u32) -> Work {
    let place = Place::first(task, attempt);
    let branch = match context.branch(task, attempt) {
        Ok(branch) => branch,
        Err(error) => return failed(context, task, attempt, &error.to_string()),
    };
    let checkout = match check_out(context, task, &branch).await {
        Ok(Begun::Checkout(checkout)) => checkout,
        Ok(Begun::Conflict(conflict)) => {
            let at = conflict.onto.clone();
            let unsettled = Unsettled {
                conflict: Some(conflict),
                failed: None,
            };
            let started = settlement::start(context, task, attempt, &at, unsettled).await;
            return started.unwrap_or_else(|error| troubled(context, task, attempt, &error));
        }
        Err(error) => return troubled(context, task, attempt, &error),
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
        Err(NotSubmitted::Later(trouble)) => return later(context, task, attempt, &trouble),
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

/// Beginning of an attempt.
enum Begun {
    Checkout(git::Checkout),
    /// The results of the dependencies do not merge by themselves.
    Conflict(git::Conflict),
}

/// Checkout of an attempt with the results of its dependencies.
async fn check_out(context: &Context, task: &str, branch: &Branch) -> Result<Begun, git::Error> {
    let repository = context.repository().await?;
    let tip = repository.tip(branch).await?;
    let onto = tip.as_ref().unwrap_or(repository.base());
    match repository.merge(onto, &inputs(context, task)?).await? {
        Merge::Done(commit) => {
            repository.start(branch, &commit).await?;
            repository.make(branch).await.map(Begun::Checkout)
        }
        Merge::Conflict(conflict) => Ok(Begun::Conflict(conflict)),
    }
}

/// Results of the dependencies of a task: branches of attempts, and merges of refineries.
pub(crate) fn inputs(context: &Context, task: &str) -> Result<Vec<Input>, git::Error> {
    let target = context.target()?;
    let before = context.state.dependencies(task).iter();
    let found = before.filter_map(|id| {
        let before = context.state.tasks.get(id)?;
        let mut input = input(context, id, before)?;
        if before.is_refinery() {
            input.branch = target.clone();
        }
        Some(input)
    });
    Ok(found.collect())
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
    if let Some(error) = &outcome.error {
        return Ok(unsuccessful(context, task, attempt, error));
    }
    let repository = context.repository().await?;
    let branch = context.branch(task, attempt)?;
    let checkout = repository.open(&branch)?;
    let title = context.state.tasks.get(task).map(|known| &*known.title);
    let message = message(context, task, attempt, title.unwrap_or(task));
    failpoint::point("run.commit");
    let committed = checkout.commit(&message, &[]).await?;
    failpoint::point("run.committed");
    let path = format!("{task}/{attempt}/walkthrough.md");
    let changed_paths = checkout.changed_since_made(&committed).await?;
    let files = FileChanges::new(changed_paths.len(), &committed.left_out);
    let listed = changed_paths.iter().take(LISTED);
    let listed = listed.map(|path| format!("  - path: {}\n", Value::from(&**path)));
    let is_generated = outcome.output.trim().is_empty();
    let body = match is_generated {
        true => match files.changed_files {
            0 => "## Summary\n\nThe agent left no report, and changed nothing.\n".to_owned(),
            number => {
                format!("## Summary\n\nThe agent left no report. It changed {number} files.\n")
            }
        },
        false => outcome.output.clone(),
    };
    let walkthrough = format!(
        "---\ntask_id: {task}\nbranch: {branch}\nbase_ref: {}\nstatus: completed\ngenerated: {is_generated}\nchanged_files: {}\nfiles_changed:\n{}---\n\n{}{body}\n",
        context
            .state
            .repository
            .as_ref()
            .map_or("", |attached| &attached.commit),
        files.changed_files,
        listed.collect::<String>(),
        files.section(),
    );
    let completed = Event::TaskCompleted {
        task_id: task.to_owned(),
        walkthrough_path: path.clone(),
        files,
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

/// An attempt whose agent ended with an error. An error that the agent did not cause is not counted, and the attempt is
/// repeated after a wait.
fn unsuccessful(context: &Context, task: &str, attempt: u32, error: &StepError) -> Work {
    let text = error.to_string();
    let trouble = error.trouble();
    // A pause cancels what runs; the resume is the end of the wait.
    let is_aborted = error.code == "cancelled" && !context.stop.is_cancelled();
    let counted = trouble.is_none() && !is_aborted;
    let mut work = match STALE.contains(&&*error.code) {
        true => stale(task, attempt, text, counted),
        false if counted => failed(context, task, attempt, &text),
        false => {
            let failed = Event::TaskFailed {
                task_id: task.to_owned(),
                error: text,
                can_retry: true,
                counted,
                result_kept: false,
            };
            ended(context, task, attempt, failed)
        }
    };
    if let Some(trouble) = trouble {
        let wait = later(context, task, attempt, &trouble);
        work.entries.extend(wait.entries);
    }
    work
}

/// End of an attempt that the watch of the disk, or the start of the bridge, has ended; `None` if neither has. Its
/// checkout is removed at once, since the end may wait for a store on the same disk.
pub(crate) fn ended_for_space(context: &Context, task: &str, attempt: u32) -> Option<Work> {
    let git = context.inner.git.as_ref().ok()?;
    let branch = context.branch(task, attempt).ok()?;
    let run = context.run.to_string();
    let mark = git.mark_of(&run, &branch)?;
    if let Err(error) = git.clear(&run, &branch) {
        tracing::warn!(run, "the checkout of an attempt was not removed: {error}");
    }
    let (code, text) = mark.split_once(": ").unwrap_or((DISK_FULL, &mark));
    let error = StepError::new(code, text);
    Some(unsuccessful(context, task, attempt, &error))
}

fn stale(task: &str, attempt: u32, error: String, counted: bool) -> Work {
    let stale = Event::TaskStale {
        task_id: task.to_owned(),
        error,
        counted,
    };
    let changed = changed(task, TaskStatus::Running, TaskStatus::Stale, attempt);
    Work::of(attempt, [stale, changed])
}

/// Wait of a task; once patience is over, its end.
pub(crate) fn later(context: &Context, task: &str, attempt: u32, trouble: &Trouble) -> Work {
    let known = context.state.tasks.get(task);
    let before = known.and_then(|known| known.wait.as_ref());
    match context.next_try(before, trouble) {
        Some(until) => Work::of(
            attempt,
            [Event::TaskWaiting {
                task_id: task.to_owned(),
                cause: trouble.cause,
                reason: trouble.reason.clone(),
                until,
            }],
        ),
        None => given_up(context, task, attempt, &trouble.reason),
    }
}

/// An attempt whose repository did not do as asked: what can pass is waited for. A failed push keeps its result.
pub(crate) fn troubled(context: &Context, task: &str, attempt: u32, error: &git::Error) -> Work {
    match error.outlook() {
        Outlook::Passing(cause) => {
            let trouble = Trouble::new(cause, error.to_string());
            later(context, task, attempt, &trouble)
        }
        Outlook::Refused => given_up(context, task, attempt, &error.to_string()),
        Outlook::Failed => failed(context, task, attempt, &error.to_string()),
    }
}

/// An attempt that failed, in whatever state it is.
pub(crate) fn failed(context: &Context, task: &str, attempt: u32, error: &str) -> Work {
    let known = context.state.tasks.get(task);
    let failed = Event::TaskFailed {
        task_id: task.to_owned(),
        error: error.to_owned(),
        can_retry: known.is_some_and(|known| known.failures + 1 < MAX_FAILURES),
        counted: true,
        result_kept: false,
    };
    ended(context, task, attempt, failed)
}

/// A task that is not tried again by itself, without a fault of its agent.
fn given_up(context: &Context, task: &str, attempt: u32, error: &str) -> Work {
    let known = context.state.tasks.get(task);
    let failed = Event::TaskFailed {
        task_id: task.to_owned(),
        error: error.to_owned(),
        can_retry: false,
        counted: false,
        result_kept: known.is_some_and(|known| known.status == TaskStatus::Done),
    };
    let mut work = ended(context, task, attempt, failed);
    let exhausted = Event::TaskExhausted {
        task_id: task.to_owned(),
    };
    work.entries.push((attempt, exhausted));
    work
}

fn ended(context: &Context, task: &str, attempt: u32, failed: Event) -> Work {
    let known = context.state.tasks.get(task);
    let status = known.map_or(TaskStatus::Pending, |known| known.status);
    let mut events = vec![failed];
    let mut from = status;
    // No attempt fails before it runs, also if it has no dispatch.
    if status == TaskStatus::Pending {
        from = TaskStatus::Running;
        events.push(changed(task, status, from, attempt));
    }
    events.push(changed(task, from, TaskStatus::Failed, attempt));
    Work::of(attempt, events)
}

/// Pushes the branch of an attempt and reads it back. The commit is there, so whatever happens it is pushed again, and
/// not made again.
pub(crate) async fn push(context: &Context, task: &str, attempt: u32) -> Work {
    match push_once(context, task, attempt).await {
        Ok((branch, commit)) => {
            let pushed = Event::BranchPushed {
                task_id: task.to_owned(),
                branch: branch.to_string(),
                commit: commit.as_str().to_owned(),
            };
            let ready = changed(task, TaskStatus::Done, TaskStatus::MergeReady, attempt);
            Work::of(attempt, [pushed, ready])
        }
        Err(error) => {
            tracing::warn!(run = %context.run, "{task} is not pushed: {error}");
            troubled(context, task, attempt, &error)
        }
    }
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
