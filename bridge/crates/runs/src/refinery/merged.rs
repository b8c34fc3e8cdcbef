//! Events of a merge that was pushed and read back.

use forge_base::failpoint;

use super::Inputs;
use crate::Work;
use crate::check::Checked;
use crate::context::Context;
use crate::decide::changed;
use crate::event::{Event, Evidence, Proved, TaskStatus};
use crate::git::{self, Claim, Presence, Proof};
use crate::state::Task;

/// Events of a merge that was pushed, with its proof.
pub(super) fn merged(
    context: &Context,
    (refinery, attempt, from): (&str, u32, TaskStatus),
    Inputs { tasks, inputs }: &Inputs,
    proof: &Proof,
    tests: Option<Checked>,
) -> Result<Work, git::Error> {
    failpoint::point("run.merged");
    let target = context.target()?;
    let of = |task: &str| context.state.tasks.get(task);
    let mut entries = Vec::new();
    entries.extend(tests.map(|tests| (attempt, tests.event(refinery))));
    entries.push((
        attempt,
        Event::BranchPushed {
            task_id: refinery.to_owned(),
            branch: target.to_string(),
            commit: proof.result.to_string(),
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
        result_ref: proof.result.to_string(),
        proof: proof.claims.iter().map(proved).collect(),
        onto_ref: proof.onto.to_string(),
        decisions: of(refinery).map_or(Vec::new(), |task| task.decisions.clone()),
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

fn proved(claim: &Claim) -> Proved {
    Proved {
        branch: claim.input.branch.to_string(),
        commit: claim.input.commit.to_string(),
        changed: claim.changed,
        by: match claim.presence {
            Presence::Ancestor => Evidence::Ancestor,
            Presence::Patch => Evidence::Patch,
        },
    }
}
