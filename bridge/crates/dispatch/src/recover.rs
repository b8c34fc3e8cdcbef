//! Recovery: each attempt that a crash interrupted, here or on another node, ends or goes back to the queue, according to
//! its recovery policy. Runs at boot, before anything new starts, and while there are other nodes.

use forge_base::failpoint;
use forge_store as store;
use forge_store::record::{Claim, Interrupted};

use super::finish::{Completion, Finisher};
use super::normalise::Ending;
use super::request::{DispatchRequest, Recovery};

/// Number of interrupted attempts read at once.
const STEP: usize = 64;

/// Numbers of interrupted dispatches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Dispatches returned to the queue for another attempt.
    pub requeued: u64,
    /// Dispatches ended as `interrupted`, `cancelled` or unreadable.
    pub ended: u64,
}

/// Action for an interrupted attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecoveryAction {
    Cancelled,
    Interrupted,
    Again,
}

/// Chooses the action: `attempts` have begun, at most `max_attempts` are allowed. A recorded cancellation wins.
pub(crate) fn recovery_action(
    policy: Recovery,
    cancel: bool,
    attempts: u32,
    max_attempts: u32,
) -> RecoveryAction {
    match policy {
        _ if cancel => RecoveryAction::Cancelled,
        Recovery::Retry | Recovery::Resume if attempts < max_attempts => RecoveryAction::Again,
        Recovery::Fail | Recovery::Retry | Recovery::Resume => RecoveryAction::Interrupted,
    }
}

/// Recovers all attempts that ran under an epoch which has ended.
pub async fn recover(finisher: &Finisher) -> Result<Recovered, store::Error> {
    let mut recovered = Recovered::default();
    loop {
        let left = finisher.store.executions.interrupted(STEP).await?;
        if left.is_empty() {
            return Ok(recovered);
        }
        for interrupted in left {
            failpoint::point("recover.settle.before");
            let fate = settle(finisher, interrupted).await;
            failpoint::point("recover.settle.after");
            match fate {
                Ok(RecoveryAction::Again) => recovered.requeued += 1,
                Ok(RecoveryAction::Cancelled | RecoveryAction::Interrupted) => recovered.ended += 1,
                // Another node was faster, or a cancellation came between: the next step reads it again.
                Err(
                    store::Error::Stale(_) | store::Error::InvalidState(_) | store::Error::NotFound,
                ) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

async fn settle(finisher: &Finisher, left: Interrupted) -> Result<RecoveryAction, store::Error> {
    let claim = Claim::Interrupted {
        id: left.dispatch.id,
        attempt: left.attempt,
    };
    let request = match DispatchRequest::from_record(&left.request) {
        Ok(request) => request,
        Err(error) => {
            finisher
                .end_unreadable(claim, &left.dispatch, &error)
                .await?;
            return Ok(RecoveryAction::Interrupted);
        }
    };
    let attempts = left.dispatch.attempts;
    let max_attempts = finisher.config.max_attempts;
    let fate = recovery_action(
        request.recovery_in(left.recorded_session.as_deref()),
        left.cancel_requested,
        attempts,
        max_attempts,
    );
    let ending = match fate {
        RecoveryAction::Again => {
            finisher
                .requeue(claim, "the bridge stopped during the attempt")
                .await?;
            finisher.record_requeued(&left.dispatch, &request);
            return Ok(fate);
        }
        RecoveryAction::Cancelled => Ending::Cancelled { answer: None },
        RecoveryAction::Interrupted => {
            Ending::Interrupted(format!("the bridge stopped during attempt {attempts}"))
        }
    };
    let completion = Completion {
        session: left.recorded_session,
        ..Completion::silent(ending, left.spent.as_deref())
    };
    finisher
        .finish(claim, &left.dispatch, &request, completion)
        .await?;
    Ok(fate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_decides_what_a_crash_does() {
        for (policy, cancel, attempts, expected) in [
            (Recovery::Fail, false, 1, RecoveryAction::Interrupted),
            (Recovery::Retry, false, 1, RecoveryAction::Again),
            (Recovery::Retry, false, 2, RecoveryAction::Again),
            (Recovery::Retry, false, 3, RecoveryAction::Interrupted),
            (Recovery::Resume, false, 1, RecoveryAction::Again),
            (Recovery::Resume, false, 3, RecoveryAction::Interrupted),
            (Recovery::Retry, true, 1, RecoveryAction::Cancelled),
            (Recovery::Fail, true, 1, RecoveryAction::Cancelled),
        ] {
            assert_eq!(
                recovery_action(policy, cancel, attempts, 3),
                expected,
                "{policy:?} {attempts}"
            );
        }
    }
}
