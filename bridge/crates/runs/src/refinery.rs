//! Refineries: the results of tasks become one commit of the target branch, and that is proved before it is told.

use forge_base::failpoint;
use forge_base::id::RunId;

use crate::attempt::{failed, input};
use crate::context::Context;
use crate::decide::changed;
use crate::event::{End, Event, Evidence, Proved, TaskStatus};
use crate::git::{self, Branch, Input, Merge, Presence};
use crate::state::Task;
use crate::{Inner, Push, Work};

/// Merges that are tried because the target moved.
const MERGES: usize = 5;

/// Fetches the repository. A failure ends the run.
pub(crate) async fn attach(context: &Context) -> Work {
    let attached = match context.repository().await {
        Ok(repository) => Event::RunAttached {
            reference: (context.request.reference.as_deref())
                .or(repository.default_branch())
                .unwrap_or("HEAD")
                .to_owned(),
            commit: repository.base().as_str().to_owned(),
        },
        Err(error) => Event::RunCompleted {
            total_completed: 0,
            total_failed: 0,
            duration: context.state.elapsed_ms(context.inner.clock.now()),
            status: End::Failed,
            error: Some(format!("the repository cannot be used: {error}")),
        },
    };
    Work {
        entries: vec![(0, attached)],
        ..Work::default()
    }
}

/// Result of a merge that was pushed and proved.
struct Merged {
    target: Branch,
    inputs: Vec<(String, Input, Presence)>,
    commit: String,
}

enum Ending {
    Merged(Merged),
    Conflict { branch: String, paths: Vec<String> },
}

/// Merges the inputs of a refinery.
pub(crate) async fn merge(context: &Context, refinery: &str, attempt: u32) -> Work {
    let ending = match merge_inputs(context, refinery).await {
        Ok(ending) => ending,
        Err(error) if error.is_transient() => return context.again(&error).await,
        Err(error) => return failed(context, refinery, attempt, &error.to_string()),
    };
    let merged = match ending {
        Ending::Merged(merged) => merged,
        Ending::Conflict { branch, paths } => {
            let text = format!("{branch} conflicts in {}", paths.join(", "));
            let task_id = refinery.to_owned();
            let mut work = failed(context, refinery, attempt, &text);
            let conflict = Event::RefineryConflict {
                task_id,
                branch,
                paths,
            };
            work.entries.insert(0, (attempt, conflict));
            return work;
        }
    };
    let Merged {
        target,
        inputs,
        commit,
    } = merged;
    let of = |task: &str| context.state.tasks.get(task);
    let mut entries = vec![(
        attempt,
        Event::BranchPushed {
            task_id: refinery.to_owned(),
            branch: target.to_string(),
            commit: commit.clone(),
        },
    )];
    let is_ready = |task: &&Task| task.status == TaskStatus::MergeReady;
    for (task, _, _) in &inputs {
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
    let event = Event::RefineryMerged {
        task_id: refinery.to_owned(),
        merged_branches: inputs
            .iter()
            .map(|(_, input, _)| input.branch.to_string())
            .collect(),
        conflicts: Vec::new(),
        result_ref: commit,
        proof: inputs.iter().map(proved).collect(),
    };
    entries.push((attempt, event));
    for (from, to) in [
        (TaskStatus::Running, TaskStatus::Done),
        (TaskStatus::Done, TaskStatus::MergeReady),
        (TaskStatus::MergeReady, TaskStatus::Merged),
    ] {
        entries.push((attempt, changed(refinery, from, to, attempt)));
    }
    Work {
        entries,
        ..Work::default()
    }
}

fn proved((_, input, presence): &(String, Input, Presence)) -> Proved {
    Proved {
        branch: input.branch.to_string(),
        commit: input.commit.as_str().to_owned(),
        by: match presence {
            Presence::Ancestor => Evidence::Ancestor,
            Presence::Patch => Evidence::Patch,
        },
    }
}

async fn merge_inputs(context: &Context, refinery: &str) -> Result<Ending, git::Error> {
    let repository = context.repository().await?;
    let target = Branch::of_run(&context.run.to_string())?;
    let graph = context.state.graph.as_ref();
    let nodes = graph
        .map(|graph| graph.inputs(refinery))
        .unwrap_or_default();
    let tasks = nodes.into_iter().filter_map(|node| {
        let input = input(&node.id, context.state.tasks.get(&node.id)?)?;
        Some((node.id.clone(), input))
    });
    let (tasks, inputs): (Vec<_>, Vec<_>) = tasks.unzip();
    let mut tries = 1;
    let commit = loop {
        let published = repository.fetch(&target).await?;
        let onto = published.as_ref().unwrap_or(repository.base());
        failpoint::point("run.merge");
        let commit = match repository.merge(onto, &inputs).await? {
            Merge::Done(commit) => commit,
            Merge::Conflict(conflict) => {
                return Ok(Ending::Conflict {
                    branch: conflict.input.branch.to_string(),
                    paths: conflict.paths,
                });
            }
        };
        match repository
            .publish(&target, published.as_ref(), &commit)
            .await
        {
            Err(git::Error::Moved { .. }) if tries < MERGES => tries += 1,
            published => {
                published?;
                break commit;
            }
        }
    };
    failpoint::point("run.merged");
    let proof = repository.prove(&commit, &inputs).await?;
    let inputs = tasks.into_iter().zip(proof.inputs);
    let inputs = inputs.map(|(task, (input, presence))| (task, input, presence));
    Ok(Ending::Merged(Merged {
        target,
        inputs: inputs.collect(),
        commit: commit.as_str().to_owned(),
    }))
}

/// Removes the repository of an ended run, unless results are kept in it.
pub(crate) async fn clean(inner: &Inner, run: RunId) {
    let Ok(git) = inner.git.clone() else { return };
    if inner.config.push == Push::Never {
        return;
    }
    let removed = tokio::task::spawn_blocking(move || git.remove(&run.to_string())).await;
    if let Ok(Err(error)) = removed {
        tracing::warn!(%run, "the folder of the run was not removed: {error}");
    }
}
