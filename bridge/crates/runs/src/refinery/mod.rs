//! Refineries: the results of tasks become one commit of the target branch, and that is proved before it is told. Merges
//! are mechanical; an agent is asked for what git and the checks do not settle.

mod merged;
mod settle;

use forge_base::failpoint;

use crate::Work;
use crate::attempt::{failed, input};
use crate::check::{self, Checked};
use crate::context::Context;
use crate::event::TaskStatus;
use crate::git::{self, Branch, CommitId, Input, Merge, Repository};
use merged::merged;
pub(crate) use settle::{message, settle};

/// Merges that are tried because the target moved.
const MERGES: usize = 5;

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
        false => merge_inputs(context, refinery, &inputs).await,
    };
    let work = match done {
        Ok(Ok(Ending::Merged { commit, tests })) => {
            let from = match is_settled {
                true => TaskStatus::Done,
                false => TaskStatus::Running,
            };
            merged(context, (refinery, attempt, from), &inputs, &commit, tests).await
        }
        Ok(Ok(Ending::Agent { at, task })) => {
            settle::start(context, refinery, attempt, &at, task).await
        }
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
    Inputs { inputs, .. }: &Inputs,
) -> Ended<Ending> {
    let repository = context.repository().await?;
    let target = Branch::of_run(&context.run.to_string())?;
    let document = context.state.documents.get(refinery);
    let has_instructions = document.is_some_and(|document| document.has_instructions);
    for _ in 0..MERGES {
        let published = repository.fetch(&target).await?;
        let onto = published.as_ref().unwrap_or(repository.base());
        let commit = match merge_onto(&repository, onto, inputs).await? {
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
        if has_instructions {
            let task = Trouble::default();
            return Ok(Ok(Ending::Agent { at: commit, task }));
        }
        let tests = check::run(context, &commit).await?;
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

async fn merge_onto(
    repository: &Repository,
    onto: &CommitId,
    inputs: &[Input],
) -> Result<Merge, git::Error> {
    failpoint::point("run.merge");
    repository.merge(onto, inputs).await
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
        let input = Input {
            branch: branch.clone(),
            commit: settled.clone(),
        };
        let commit = match merge_onto(&repository, onto, &[input]).await? {
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
