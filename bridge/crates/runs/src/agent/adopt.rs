//! Merges of what an agent has done into the work of the one that has started it.

use super::{Parent, Place};
use crate::attempt;
use crate::context::Context;
use crate::files::FileChanges;
use crate::git::{self, Input, Merge};
use crate::step::Outcome;

/// Merges the work of an agent into the branch and the folder of the one that has started it. Its report, or the reason
/// why its work is left on its own branch.
pub(super) async fn adopt(
    context: &Context,
    place: &Place,
    parent: &Parent,
    outcome: Outcome,
) -> Result<Result<String, String>, git::Error> {
    let repository = context.repository().await?;
    let branch = place.branch(context.run)?;
    let checkout = repository.open(&branch)?;
    let title = place.find(&context.state).map(|(_, agent)| &*agent.title);
    let message = attempt::message(
        context,
        &place.task,
        place.attempt,
        title.unwrap_or_default(),
    );
    let committed = checkout.commit(&message, &[]).await?;
    let files = FileChanges::new(committed.changed.len(), &committed.left_out);
    let report = |output: &str| match files.section() {
        section if section.is_empty() => output.to_owned(),
        section => format!("{output}\n\n{section}"),
    };
    if let Some(error) = outcome.error {
        return Ok(Err(error.to_string()));
    }
    let of = Place {
        agent: parent.agent,
        ..place.clone()
    };
    let of = of.branch(context.run)?;
    // Agents of one attempt can end at the same time.
    let _merging = context.merging.lock().await;
    let onto = repository.tip(&of).await?;
    let onto = onto.ok_or_else(|| git::Error::NoRef(of.to_string()))?;
    let input = Input {
        branch: branch.clone(),
        commit: committed.commit,
    };
    match repository.merge(&onto, &[input]).await? {
        Merge::Done(merged) => {
            // The folder before the branch: it is written again after a crash, and never behind its branch.
            let folder = repository.open(&of)?;
            folder.write(&onto, &merged).await?;
            repository.advance(&of, Some(&onto), &merged).await?;
            Ok(Ok(report(&outcome.output)))
        }
        Merge::Conflict(conflict) => Ok(Err(format!(
            "its changes conflict with yours in {}; they are on the branch {branch}\n\n{}",
            conflict.names().join(", "),
            report(&outcome.output)
        ))),
    }
}
