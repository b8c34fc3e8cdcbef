//! Leftovers of an earlier bridge of this node: processes, files and dispatches in progress.

use forge_base::failpoint;
use forge_dispatch::attachments;
use forge_dispatch::finish::Finisher;
use forge_dispatch::recover::recover;
use forge_process::Children;

/// Kills processes that an earlier bridge of this node left running, and removes files of killed bridges.
pub(super) async fn reap(children: &Children) -> anyhow::Result<()> {
    let children = children.clone();
    failpoint::point("reap.before");
    let reap = move || {
        let swept = children.reap_leftovers();
        attachments::remove_leftovers();
        swept
    };
    let swept = tokio::task::spawn_blocking(reap).await?;
    failpoint::point("reap.after");
    if swept.killed > 0 {
        tracing::warn!(
            "{} processes of an earlier bridge were killed",
            swept.killed
        );
    }
    Ok(())
}

/// Ends or queues again what an earlier bridge left running.
pub(super) async fn settle_interrupted(finisher: &Finisher) -> anyhow::Result<()> {
    let recovered = recover(finisher).await?;
    if recovered.requeued + recovered.ended > 0 {
        tracing::warn!(
            "the previous bridge stopped with work in progress: {} dispatches queued again, {} ended",
            recovered.requeued,
            recovered.ended,
        );
    }
    Ok(())
}
