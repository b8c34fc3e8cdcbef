//! Refineries: the results of tasks become one commit of the target branch, and that is proved before it is told. Merges
//! are mechanical; an agent is asked for what git and the checks do not settle.

mod merged;

use std::slice;

use forge_base::failpoint;

use crate::Work;
use crate::attempt::{failed, input, troubled};
use crate::check::{self, Checked};
use crate::context::Context;
use crate::event::TaskStatus;
use crate::git::{self, CommitId, Input, Merge, Proof};
use crate::settlement::{self, Unsettled};
use merged::merged;

/// Merges that are tried because the target moved.
const MERGES: usize = 5;

/// Inputs of a refinery with the tasks that they are from.
pub(crate) struct Inputs {
    tasks: Vec<String>,
    pub(crate) inputs: Vec<Input>,
}

impl Inputs {
    pub(crate) fn of(context: &Context, refinery: &str) -> Self {
        let graph = context.state.graph.as_ref();
        let nodes = graph.map_or(Vec::new(), |graph| graph.inputs(refinery));
        let found = nodes.into_iter().filter_map(|node| {
            let input = input(context, &node.id, context.state.tasks.get(&node.id)?)?;
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
        proof: Proof,
        tests: Option<Checked>,
    },
    /// An agent continues at a commit.
    Agent { at: CommitId, task: Unsettled },
}

/// Merges the inputs of a refinery, or what its agent has made of them.
pub(crate) async fn merge(context: &Context, refinery: &str, attempt: u32) -> Work {
    let known = context.state.tasks.get(refinery);
    let is_settled = known.is_some_and(|task| task.status == TaskStatus::Done);
    let inputs = Inputs::of(context, refinery);
    let done = match is_settled {
        true => publish_settled(context, refinery, attempt).await,
        false => publish(context, refinery, &inputs.inputs, None).await,
    };
    let work = match done {
        Ok(Ok(Ending::Merged { proof, tests })) => {
            let from = match is_settled {
                true => TaskStatus::Done,
                false => TaskStatus::Running,
            };
            merged(context, (refinery, attempt, from), &inputs, &proof, tests)
        }
        Ok(Ok(Ending::Agent { at, task })) => {
            settlement::start(context, refinery, attempt, &at, task).await
        }
        Ok(Err(text)) => return failed(context, refinery, attempt, &text),
        Err(error) => Err(error),
    };
    work.unwrap_or_else(|error| troubled(context, refinery, attempt, &error))
}

type Ended<T> = Result<Result<T, String>, git::Error>;

/// Pushes what the agent of a refinery has left, merged with what the target has got since.
async fn publish_settled(context: &Context, refinery: &str, attempt: u32) -> Ended<Ending> {
    let repository = context.repository().await?;
    let branch = context.branch(refinery, attempt)?;
    let tip = repository.tip(&branch).await?;
    let commit = tip.ok_or_else(|| git::Error::NoRef(branch.to_string()))?;
    let input = Input { branch, commit };
    publish(
        context,
        refinery,
        slice::from_ref(&input),
        Some(&input.commit),
    )
    .await
}

/// Merges with the target and pushes the result if the checks pass, again while the target moves. What does not merge
/// or pass goes to an agent, also if the document asks for more; if an agent has `settled` it, that is a failure.
async fn publish(
    context: &Context,
    refinery: &str,
    inputs: &[Input],
    settled: Option<&CommitId>,
) -> Ended<Ending> {
    let repository = context.repository().await?;
    let target = context.target()?;
    let document = context.state.documents.get(refinery);
    let has_instructions = document.is_some_and(|document| document.has_instructions);
    let all = Inputs::of(context, refinery);
    let known = context.state.tasks.get(refinery);
    let decisions = known.map_or(&[][..], |known| &known.decisions);
    let decided = decisions.iter().map(|one| one.path.clone()).collect();
    let agent = |at, task| Ok(Ok(Ending::Agent { at, task }));
    for _ in 0..MERGES {
        let published = repository.fetch(&target).await?;
        let onto = published.as_ref().unwrap_or(repository.base());
        failpoint::point("run.merge");
        let commit = match repository.merge(onto, inputs).await? {
            Merge::Done(commit) => commit,
            Merge::Conflict(conflict) if settled.is_some() => {
                let paths = conflict.names().join(", ");
                let text = format!("{target} has got changes that conflict in {paths}");
                return Ok(Err(text));
            }
            Merge::Conflict(conflict) => {
                let at = conflict.onto.clone();
                let conflict = Some(conflict);
                let failed = None;
                return agent(at, Unsettled { conflict, failed });
            }
        };
        if settled.is_none() && has_instructions {
            return agent(commit, Unsettled::default());
        }
        let tests = match settled {
            // It has passed them.
            Some(known) if *known == commit => None,
            Some(_) | None => check::run(context, &commit).await?,
        };
        match tests {
            Some(tests) if tests.report.is_some() && settled.is_none() => {
                let conflict = None;
                let failed = Some(tests);
                return agent(commit, Unsettled { conflict, failed });
            }
            Some(Checked {
                report: Some(report),
                ..
            }) => return Ok(Err(report)),
            tests => {
                repository.keep_onto(&commit, onto).await?;
                // Before it is pushed, since others can build on it then.
                let proof = repository.prove(&commit, &all.inputs, &decided).await?;
                let pushed = repository.publish(&target, published.as_ref(), &commit);
                match pushed.await {
                    Err(git::Error::Moved { .. }) => {}
                    pushed => {
                        // Those of an agent's work were told when it ended.
                        let tests = tests.filter(|_| settled.is_none());
                        return pushed.map(|()| Ok(Ending::Merged { proof, tests }));
                    }
                }
            }
        }
    }
    Ok(Err(format!(
        "{target} moved during each of {MERGES} merges"
    )))
}
