//! Settlements: an agent decides what git and the checks do not, in the checkout of its attempt. That of a refinery merges
//! the results of a plan, that of a task those of its dependencies before its work begins.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::json;

use crate::agent::{self, Place};
use crate::attempt::{self, failed};
use crate::check::{self, Checked};
use crate::context::Context;
use crate::decide::changed;
use crate::event::{ConflictedFile, Event, PathDecision, TaskStatus};
use crate::files::FileChanges;
use crate::git::{self, CommitId, Input, Merge, Settled, shown_path};
use crate::plan::AgentType;
use crate::refinery::Inputs;
use crate::state::{Conflict, Task};
use crate::step::{self, NotSubmitted, Outcome};
use crate::{Artifact, Work};

/// Dispatches of one attempt that settle, besides one for each input: each conflict that is settled brings one.
const MAX_ROUNDS: usize = 5;

/// Reasons to ask an agent.
#[derive(Default)]
pub(crate) struct Unsettled {
    pub(crate) conflict: Option<git::Conflict>,
    pub(crate) failed: Option<Checked>,
}

/// Commits that an attempt has to contain.
fn inputs(context: &Context, task: &str) -> Result<Vec<Input>, git::Error> {
    let known = context.state.tasks.get(task);
    match known.is_some_and(Task::is_refinery) {
        true => Ok(Inputs::of(context, task).inputs),
        false => attempt::inputs(context, task),
    }
}

/// Starts the agent of an attempt in a checkout of a commit.
pub(crate) async fn start(
    context: &Context,
    task: &str,
    attempt: u32,
    at: &CommitId,
    unsettled: Unsettled,
) -> Result<Work, git::Error> {
    let repository = context.repository().await?;
    let place = Place::first(task, attempt);
    let branch = place.branch(context.run)?;
    if repository.start(&branch, at).await? != *at {
        let text = "the target has moved while the merge was interrupted";
        return Ok(failed(context, task, attempt, text));
    }
    let known = context.state.tasks.get(task);
    let agent_type = known.map_or(AgentType::Worker, |known| known.agent_type);
    let status = known.map_or(TaskStatus::Pending, |known| known.status);
    let given = unsettled.conflict.as_ref().map(|conflict| &conflict.given);
    let inputs = inputs(context, task)?;
    let checkout = repository.make_with(&branch, &inputs, given).await?;
    checkout.begin(0, at).await?;
    let mut entries = Vec::new();
    let mut asked = Task::new(String::new(), agent_type, attempt);
    if let Some(conflict) = unsettled.conflict {
        let conflict = found(&conflict);
        entries.push((attempt, event(task, &conflict)));
        asked.conflict = Some(conflict);
    }
    if let Some(checked) = unsettled.failed {
        entries.push((attempt, checked.event(task)));
        asked.failed_check = checked.report;
    }
    let message = match message(context, task, &asked).await {
        Ok(message) => message,
        Err(error) => return Ok(context.again(&error).await),
    };
    let body = agent::body(context, &place, agent_type, &message, &checkout).await;
    let (body, headers) = match body {
        Ok(body) => body,
        Err(error) => return Ok(context.again(&error).await),
    };
    let id = place.id(context);
    let dispatch = match step::submit(&context.inner, &id, body, headers, &context.stop).await {
        Ok(dispatch) => dispatch,
        Err(NotSubmitted::Refused(text)) => return Ok(failed(context, task, attempt, &text)),
        Err(NotSubmitted::Later(trouble)) => {
            return Ok(attempt::later(context, task, attempt, &trouble));
        }
        Err(NotSubmitted::Stopped) => return Ok(Work::default()),
    };
    let started = Event::TaskStarted {
        task_id: task.to_owned(),
        agent_id: dispatch.to_string(),
        sandbox_id: id.to_string(),
        branch: branch.to_string(),
    };
    entries.push((attempt, started));
    if status == TaskStatus::Pending {
        let running = changed(task, status, TaskStatus::Running, attempt);
        entries.push((attempt, running));
    }
    Ok(Work {
        entries,
        ..Work::default()
    })
}

fn found(conflict: &git::Conflict) -> Conflict {
    let files = conflict.paths.iter().map(|path| {
        let side = |file: &Option<Vec<u8>>| file.as_ref().map(|file| shown_path(file));
        let (ours, theirs) = match &path.form {
            git::Form::Marked(_) => (None, None),
            git::Form::Sides { ours, theirs } => (side(ours), side(theirs)),
        };
        ConflictedFile {
            path: shown_path(&path.path),
            kind: path.kind,
            ours,
            theirs,
        }
    });
    Conflict {
        branch: conflict.input.branch.to_string(),
        onto: conflict.onto.to_string(),
        commit: conflict.input.commit.to_string(),
        files: files.collect(),
    }
}

fn event(task: &str, conflict: &Conflict) -> Event {
    let paths = conflict.files.iter().map(|file| file.path.clone());
    Event::RefineryConflict {
        task_id: task.to_owned(),
        branch: conflict.branch.clone(),
        paths: paths.collect(),
        onto: conflict.onto.clone(),
        commit: conflict.commit.clone(),
        files: conflict.files.clone(),
    }
}

/// Message to the agent: its document, and what it has to settle. A task that is not a refinery begins when all is
/// settled.
pub(crate) async fn message(
    context: &Context,
    id: &str,
    task: &Task,
) -> forge_store::Result<String> {
    let trouble = trouble(task);
    if !task.is_refinery() && !trouble.is_empty() {
        let first = "The results that your task builds on do not merge by themselves. Settle that, and nothing else: your \
                     task follows as the next message.\n";
        return Ok(first.to_owned() + &trouble);
    }
    let document = context.document(id).await?;
    Ok(document + &trouble)
}

fn trouble(task: &Task) -> String {
    let conflict = task.conflict.as_ref().map(described);
    let check = task
        .failed_check
        .as_ref()
        .map(|report| format!("\n## Failing check\n\n{report}\n"));
    conflict.into_iter().chain(check).collect()
}

fn described(conflict: &Conflict) -> String {
    let Conflict {
        branch,
        onto,
        commit,
        files,
    } = conflict;
    let mut text = format!(
        "\n## Conflict\n\n`{branch}` (commit {commit}, \"theirs\") does not merge by itself into what is in your folder \
         (commit {onto}, \"ours\"). Both commits are in your repository. Decide each of these paths:\n\n"
    );
    for file in files {
        let ConflictedFile {
            path,
            kind,
            ours,
            theirs,
        } = file;
        let sides = match (ours, theirs) {
            (None, None) => "between markers in the file".to_owned(),
            (Some(ours), Some(theirs)) => format!("`{ours}` and `{theirs}`"),
            (Some(ours), None) => format!("`{ours}`; theirs has no file there"),
            (None, Some(theirs)) => format!("`{theirs}`; ours has no file there"),
        };
        let _ = writeln!(text, "- `{path}` ({}): {sides}", kind.name());
    }
    text += "\nEdit a file with markers until none is left. Elsewhere the path is absent: put the file there as it should \
             be and remove the files of the sides, or remove them all if there should be none. A path that stays as it is \
             now is undecided, and the attempt fails.\n";
    text
}

/// Keeps what the agent has left: merged with the inputs that are still missing. In a refinery it is checked then.
pub(crate) async fn settle(
    context: &Context,
    place: &Place,
    outcome: &Outcome,
) -> Result<Work, git::Error> {
    let (task, attempt) = (&*place.task, place.attempt);
    let repository = context.repository().await?;
    let branch = place.branch(context.run)?;
    let checkout = repository.open(&branch)?;
    let known = context.state.tasks.get(task);
    let inputs = inputs(context, task)?;
    let asked = known.and_then(|known| known.conflict.as_ref());
    let conflict = match asked {
        None => None,
        Some(asked) => {
            let commits = CommitId::parse(&asked.onto).zip(CommitId::parse(&asked.commit));
            let input = inputs
                .iter()
                .find(|input| input.branch.as_str() == asked.branch);
            let Some((commits, input)) = commits.zip(input) else {
                let text = format!("{} is no longer merged here", asked.branch);
                return Ok(failed(context, task, attempt, &text));
            };
            let (onto, commit) = commits;
            let branch = input.branch.clone();
            let input = Input { branch, commit };
            Some(repository.conflict(onto, &input).await?)
        }
    };
    let message = attempt::message(context, task, attempt, "Settle the merge");
    let settled = checkout
        .settle(&message, place.round, conflict.as_ref())
        .await?;
    if !settled.undecided.is_empty() {
        let text = format!(
            "the agent left conflicts in {}",
            settled.undecided.join(", ")
        );
        return Ok(failed(context, task, attempt, &text));
    }
    let decisions = decisions(asked, &settled);
    let mut work = Work {
        entries: vec![(
            attempt,
            Event::RefinerySettled {
                task_id: task.to_owned(),
                branch: asked.map(|asked| asked.branch.clone()),
                commit: settled.commit.to_string(),
                decisions: decisions.clone(),
            },
        )],
        ..Work::default()
    };
    let tip = repository.tip(&branch).await?;
    let merged = match repository.merge(&settled.commit, &inputs).await? {
        Merge::Done(merged) => merged,
        Merge::Conflict(conflict) => {
            checkout.write(&settled.given, &conflict.given).await?;
            repository
                .advance(&branch, tip.as_ref(), &conflict.onto)
                .await?;
            work.entries.push((attempt, event(task, &found(&conflict))));
            return Ok(work);
        }
    };
    checkout.write(&settled.given, &merged).await?;
    checkout.begin(place.round + 1, &merged).await?;
    repository.advance(&branch, tip.as_ref(), &merged).await?;
    if known.is_none_or(|known| !known.is_refinery()) {
        // The next dispatch of the agent brings its document. What was merged is no change of the attempt.
        checkout.count_from(&merged)?;
        return Ok(work);
    }
    let tests = check::run(context, &merged).await?;
    if let Some(checked) = tests.as_ref().filter(|tests| tests.report.is_some()) {
        work.entries.push((attempt, checked.event(task)));
        if place.round as usize + 1 >= MAX_ROUNDS + inputs.len() {
            let text = checked.report.clone().unwrap_or_default();
            let failed = failed(context, task, attempt, &text);
            work.entries.extend(failed.entries);
        }
        return Ok(work);
    }
    let tests = tests.map(|tests| (attempt, tests.event(task)));
    work.entries.extend(tests);
    let all = known.map_or(&[][..], |known| &known.decisions);
    let all: Vec<_> = all.iter().chain(&decisions).collect();
    let paths: BTreeSet<_> = all.iter().map(|decision| &*decision.path).collect();
    let files = FileChanges::new(paths.len(), &settled.left_out);
    let path = format!("{task}/{attempt}/walkthrough.md");
    let content = format!(
        "---\ntask_id: {task}\nbranch: {branch}\nconflicts: {}\ndecisions: {}\n---\n\n{}{}\n",
        json!(known.map(|task| &task.conflicts)),
        json!(all),
        files.section(),
        outcome.output
    );
    let completed = Event::TaskCompleted {
        task_id: task.to_owned(),
        walkthrough_path: path.clone(),
        files,
    };
    work.entries.push((attempt, completed));
    let done = changed(task, TaskStatus::Running, TaskStatus::Done, attempt);
    work.entries.push((attempt, done));
    work.artifacts.push(Artifact::walkthrough(path, content));
    Ok(work)
}

fn decisions(asked: Option<&Conflict>, settled: &Settled) -> Vec<PathDecision> {
    let decided = settled.decisions.iter();
    let decisions = decided.map(|decided| PathDecision {
        path: decided.path.clone(),
        kind: decided.kind,
        decision: decided.decision,
        branch: asked.map(|asked| asked.branch.clone()),
        onto: asked.map(|asked| asked.onto.clone()),
        commit: settled.commit.to_string(),
    });
    decisions.collect()
}
