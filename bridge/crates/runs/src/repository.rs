//! Beginning of the repository of a run.

use forge_base::failpoint;

use crate::Work;
use crate::context::Context;
use crate::event::{End, Event};
use crate::git::{self, Outlook};
use crate::wait::Trouble;

/// Fetches the repository.
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
        Err(error) => unattached(context, &error),
    };
    Work::of(0, [attached])
}

/// A wait where it can help, otherwise the end of the run.
fn unattached(context: &Context, error: &git::Error) -> Event {
    let reason = format!("the repository cannot be used: {error}");
    let cause = match error.outlook() {
        Outlook::Passing(cause) => Some(cause),
        Outlook::Refused | Outlook::Failed => None,
    };
    let until = cause.and_then(|cause| {
        let trouble = Trouble::new(cause, &*reason);
        let until = context.next_try(context.state.wait.as_ref(), &trouble)?;
        Some((cause, until))
    });
    match until {
        Some((cause, until)) => Event::RunWaiting {
            cause,
            reason,
            until,
        },
        None => Event::RunCompleted {
            total_completed: 0,
            total_failed: 0,
            refineries_completed: 0,
            refineries_failed: 0,
            duration: context.state.elapsed_ms(context.inner.clock.now()),
            status: End::Failed,
            error: Some(reason),
        },
    }
}
