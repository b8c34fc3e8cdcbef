//! Beginning and end of the repository of a run.

use forge_base::failpoint;
use forge_base::id::RunId;

use crate::context::Context;
use crate::event::{End, Event};
use crate::{Inner, Push, Work};

/// Fetches the repository. A failure ends the run.
pub(crate) async fn attach(context: &Context) -> Work {
    failpoint::point("run.fetch");
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
