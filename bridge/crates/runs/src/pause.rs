//! Effect of a pause on what runs: each agent is asked to end with what it has, or is cancelled, and the log says which.

use std::sync::Arc;

use tokio::sync::mpsc;

use forge_base::id::DispatchId;
use forge_dispatch::Steered;

use crate::agent::Place;
use crate::command::PauseMode;
use crate::event::{Entry, Event, PauseEffect};
use crate::{Inner, Report};

const MESSAGE: &str = "The run is paused. Come to an end now: leave your files in a state that can be committed, start \
                       nothing new, and end with your report, which says what is missing.";

/// Reports the effect for each dispatch, in the background: an adapter can take seconds for it.
pub(crate) fn acknowledge(
    inner: &Arc<Inner>,
    mode: PauseMode,
    running: Vec<(DispatchId, Place)>,
    reports: &mpsc::Sender<Report>,
) {
    for (dispatch, place) in running {
        let (inner, reports) = (Arc::clone(inner), reports.clone());
        let shutdown = inner.shutdown.clone();
        let tracker = inner.tracker.clone();
        let asking = async move {
            let effect = match mode {
                PauseMode::WrapUp => wrap_up(&inner, dispatch).await,
                PauseMode::Abort => abort(&inner, dispatch).await,
            };
            let Some(effect) = effect else { return };
            let entry = Entry {
                at: inner.clock.now(),
                attempt: place.attempt,
                event: Event::PauseAck {
                    agent: place.number(),
                    task_id: place.task,
                    effect,
                },
            };
            let _ = reports.send(Report::Acknowledged(vec![entry])).await;
        };
        tracker.spawn(async move { shutdown.run_until_cancelled_owned(asking).await });
    }
}

/// `None` if it ended by itself.
async fn wrap_up(inner: &Inner, dispatch: DispatchId) -> Option<PauseEffect> {
    match inner.dispatcher.steer(dispatch, MESSAGE).await {
        Ok(Steered::Delivered) => Some(PauseEffect::WrappingUp),
        Ok(Steered::NotRunning) => None,
        Ok(Steered::Unsupported) => Some(PauseEffect::Unsupported),
        Err(error) => {
            tracing::warn!(%dispatch, "a message about a pause was not delivered: {error}");
            Some(PauseEffect::Unsupported)
        }
    }
}

async fn abort(inner: &Inner, dispatch: DispatchId) -> Option<PauseEffect> {
    match inner.dispatcher.cancel(dispatch).await {
        Ok(_) => Some(PauseEffect::Cancelled),
        Err(error) => {
            tracing::warn!(%dispatch, "a step of a paused run could not be cancelled: {error}");
            None
        }
    }
}
