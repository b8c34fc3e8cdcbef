//! Refineries: the results of tasks become one commit of the target branch, and that is proved before it is told. Merges
//! are mechanical; an agent is asked for what git and the checks do not settle.

use serde_json::json;

use forge_base::failpoint;

use crate::agent::{self, Place};
use crate::attempt::{self, failed, input};
use crate::check::{self, Checked};
use crate::context::Context;
use crate::decide::changed;
use crate::event::{Event, Evidence, Proved, TaskStatus};
use crate::git::{self, Branch, CommitId, Input, Merge, Presence};
use crate::plan::AgentType;
use crate::state::{Conflict, Task};
use crate::step::{self, NotSubmitted, Outcome};
use crate::{Artifact, Work};

/// Merges that are tried because the target moved.
const MERGES: usize = 5;
/// Dispatches of the agent of one attempt.
const MAX_ROUNDS: u32 = 5;

/// Inputs of a refinery with the tasks that they are from.
struct Inputs {
    tasks: Vec<String>,
    inputs: Vec<Input>,
}

impl Inputs {
    fn of(context: &Context, refinery: &str) -> Self {
        let graph = context.state.graph.as_ref();
        let nodes = graph.map_or(Vec::new(), |graph| graph.inputs(refinery));
        let found = nodes.into_iter().filter_map(|node| {
            let input = input(&node.id, context.state.tasks.get(&node.id)?)?;
            Some((node.id.clone(), input))
        });
        let (tasks, inputs) = found.unzip();
        Self { tasks, inputs }
    }
}

/// End of a merge without an agent.
enum Ending {
    /// Pushed, and read back.
    Merged {
        commit: CommitId,
        tests: Option<Checked>,
    },
    /// An agent continues at a commit.
    Agent { at: CommitId, task: Trouble },
}

/// Reasons to ask an agent.
#[derive(Default)]
struct Trouble {
    conflict: Option<git::Conflict>,
    failed: Option<Checked>,
}

/// Merges the inputs of a refinery, or what its agent has made of them.
pub(crate) async fn merge(context: &Context, refinery: &str, attempt: u32) -> Work {
    let known = context.state.tasks.get(refinery);
    let is_settled = known.is_some_and(|task| task.status == TaskStatus::Done);
    let inputs = Inputs::of(context, refinery);
    let done = match is_settled {
        true => publish_settled(context, refinery, attempt).await,
        false => merge_inputs(context, refinery, attempt, &inputs).await,
    };
    let work = match done {
        Ok(Ok(Ending::Merged { commit, tests })) => {
            let from = match is_settled {
                true => TaskStatus::Done,
                false => TaskStatus::Running,
            };
            merged(context, (refinery, attempt, from), &inputs, &commit, tests).await
        }
        Ok(Ok(Ending::Agent { at, task })) => start(context, refinery, attempt, &at, task).await,
        Ok(Err(text)) => return failed(context, refinery, attempt, &text),
        Err(error) => Err(error),
    };
    match work {
        Ok(work) => work,
        Err(error) if error.is_transient() => context.again(&error).await,
        Err(error) => failed(context, refinery, attempt, &error.to_string()),
    }
}

type Ended<T> = Result<Result<T, String>, git::Error>;

/// Merges what git can merge, and pushes it if the checks pass and its document asks for nothing more.
async fn merge_inputs(
    context: &Context,
    refinery: &str,
    attempt: u32,
    Inputs { inputs, .. }: &Inputs,
) -> Ended<Ending> {
    let repository = context.repository().await?;
    let target = Branch::of_run(&context.run.to_string())?;
    // One that is there was made before a crash.
    let begun = repository
        .tip(&Branch::of_attempt(refinery, attempt)?)
        .await?;
    let document = context.state.documents.get(refinery);
    let has_instructions = document.is_some_and(|document| document.has_instructions);
    for _ in 0..MERGES {
        let published = repository.fetch(&target).await?;
        let onto = begun.as_ref().or(published.as_ref());
        let onto = onto.unwrap_or(repository.base());
        failpoint::point("run.merge");
        let commit = match repository.merge(onto, inputs).await? {
            Merge::Done(commit) => commit,
            Merge::Conflict(conflict) => {
                return Ok(Ok(Ending::Agent {
                    at: conflict.onto.clone(),
                    task: Trouble {
                        conflict: Some(conflict),
                        failed: None,
                    },
                }));
            }
        };
        let checked = match has_instructions {
            true => Some(Trouble::default()),
            false => None,
        };
        let tests = match checked {
            Some(task) => return Ok(Ok(Ending::Agent { at: commit, task })),
            None => check::run(context, &commit).await?,
        };
        if let Some(failed) = tests.as_ref().filter(|tests| tests.report.is_some()) {
            let task = Trouble {
                conflict: None,
                failed: Some(failed.clone()),
            };
            return Ok(Ok(Ending::Agent { at: commit, task }));
        }
        let pushed = repository.publish(&target, published.as_ref(), &commit);
        match pushed.await {
            Err(git::Error::Moved { .. }) => {}
            pushed => return pushed.map(|_| Ok(Ending::Merged { commit, tests })),
        }
    }
    Ok(Err(format!(
        "{target} moved during each of {MERGES} merges"
    )))
}

/// Pushes what the agent of a refinery has left, merged with what the target has got since.
async fn publish_settled(context: &Context, refinery: &str, attempt: u32) -> Ended<Ending> {
    let repository = context.repository().await?;
    let target = Branch::of_run(&context.run.to_string())?;
    let branch = Branch::of_attempt(refinery, attempt)?;
    let tip = repository.tip(&branch).await?;
    let settled = tip.ok_or_else(|| git::Error::NoRef(branch.to_string()))?;
    for _ in 0..MERGES {
        let published = repository.fetch(&target).await?;
        let onto = published.as_ref().unwrap_or(repository.base());
        failpoint::point("run.merge");
        let input = Input {
            branch: branch.clone(),
            commit: settled.clone(),
        };
        let commit = match repository.merge(onto, &[input]).await? {
            Merge::Done(commit) => commit,
            Merge::Conflict(conflict) => {
                let paths = conflict.paths.join(", ");
                return Ok(Err(format!(
                    "{target} has got changes that conflict in {paths}"
                )));
            }
        };
        if commit != settled
            && let Some(tests) = check::run(context, &commit).await?
            && let Some(report) = tests.report
        {
            return Ok(Err(report));
        }
        let pushed = repository.publish(&target, published.as_ref(), &commit);
        match pushed.await {
            Err(git::Error::Moved { .. }) => {}
            pushed => {
                return pushed.map(|_| {
                    Ok(Ending::Merged {
                        commit,
                        tests: None,
                    })
                });
            }
        }
    }
    Ok(Err(format!(
        "{target} moved during each of {MERGES} merges"
    )))
}

/// Events of a merge that was pushed, with its proof.
async fn merged(
    context: &Context,
    (refinery, attempt, from): (&str, u32, TaskStatus),
    Inputs { tasks, inputs }: &Inputs,
    commit: &CommitId,
    tests: Option<Checked>,
) -> Result<Work, git::Error> {
    failpoint::point("run.merged");
    let repository = context.repository().await?;
    let proof = repository.prove(commit, inputs).await?;
    let target = Branch::of_run(&context.run.to_string())?;
    let of = |task: &str| context.state.tasks.get(task);
    let mut entries = Vec::new();
    entries.extend(tests.map(|tests| (attempt, tests.event(refinery))));
    entries.push((
        attempt,
        Event::BranchPushed {
            task_id: refinery.to_owned(),
            branch: target.to_string(),
            commit: commit.to_string(),
        },
    ));
    let is_ready = |task: &&Task| task.status == TaskStatus::MergeReady;
    for task in tasks {
        if let Some(known) = of(task).filter(is_ready) {
            let now = changed(
                task,
                TaskStatus::MergeReady,
                TaskStatus::Merged,
                known.attempt,
            );
            entries.push((known.attempt, now));
        }
    }
    let branches = inputs.iter().map(|input| input.branch.to_string());
    let event = Event::RefineryMerged {
        task_id: refinery.to_owned(),
        merged_branches: branches.collect(),
        conflicts: of(refinery).map_or(Vec::new(), |task| task.conflicts.clone()),
        result_ref: commit.to_string(),
        proof: proof.inputs.iter().map(proved).collect(),
    };
    entries.push((attempt, event));
    let way = [
        TaskStatus::Running,
        TaskStatus::Done,
        TaskStatus::MergeReady,
        TaskStatus::Merged,
    ];
    let steps = way.windows(2).skip_while(|step| step[0] != from);
    entries.extend(steps.map(|step| (attempt, changed(refinery, step[0], step[1], attempt))));
    Ok(Work {
        entries,
        ..Work::default()
    })
}

fn proved((input, presence): &(Input, Presence)) -> Proved {
    Proved {
        branch: input.branch.to_string(),
        commit: input.commit.as_str().to_owned(),
        by: match presence {
            Presence::Ancestor => Evidence::Ancestor,
            Presence::Patch => Evidence::Patch,
        },
    }
}

/// Starts the agent of a refinery in a checkout of a commit.
async fn start(
    context: &Context,
    refinery: &str,
    attempt: u32,
    at: &CommitId,
    trouble: Trouble,
) -> Result<Work, git::Error> {
    let repository = context.repository().await?;
    let place = Place::first(refinery, attempt);
    let branch = place.branch()?;
    repository.start(&branch, at).await?;
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
    let branch = place.branch()?;
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
