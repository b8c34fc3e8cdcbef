//! What a crash left running is settled once, at boot, before anything new starts: it ends, or it
//! goes back to the queue, as its recovery policy says.

use serde_json::json;

use crate::event::{NewEvent, kind};
use crate::store::record::{Claim, Interrupted, Requeue};
use crate::store::{self};

use super::Dispatcher;
use super::finish::Ending;
use super::request::{Dispatch, Recovery};

/// How many are read at once.
const STEP: usize = 64;

/// What the boot found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Back in the queue for another attempt.
    pub requeued: u64,
    /// Ended, with a result that says so.
    pub ended: u64,
}

/// What happens to an interrupted attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Cancelled,
    Interrupted,
    Again,
}

/// The policy, as a rule: `attempts` have begun, at most `max_attempts` may.
pub(crate) fn fate(policy: Recovery, cancel: bool, attempts: u32, max_attempts: u32) -> Fate {
    match policy {
        _ if cancel => Fate::Cancelled,
        Recovery::Retry | Recovery::Resume if attempts < max_attempts => Fate::Again,
        Recovery::Fail | Recovery::Retry | Recovery::Resume => Fate::Interrupted,
    }
}

impl Dispatcher {
    /// Settles all that an older process left running.
    pub async fn recover(&self) -> Result<Recovered, store::Error> {
        let mut recovered = Recovered::default();
        loop {
            let left = self.store.interrupted(STEP).await?;
            if left.is_empty() {
                return Ok(recovered);
            }
            for interrupted in left {
                match self.settle(interrupted).await? {
                    Fate::Again => recovered.requeued += 1,
                    Fate::Cancelled | Fate::Interrupted => recovered.ended += 1,
                }
            }
        }
    }

    async fn settle(&self, left: Interrupted) -> Result<Fate, store::Error> {
        let request = Dispatch::from_record(&left.request);
        let attempts = left.dispatch.attempts;
        let fate =
            fate(request.recovery, left.cancel_requested, attempts, self.config.max_attempts);
        let claim = Claim::Interrupted { id: left.dispatch.id, attempt: left.attempt };
        let ending = match fate {
            Fate::Again => {
                let data = json!({
                    "reason": "the bridge stopped while it ran",
                    "attempt": left.attempt,
                    "recovery": request.recovery,
                });
                let event = NewEvent::new(kind::RETRYING, self.clock.now(), Some(data));
                self.store.requeue(claim, Requeue { event }).await?;
                return Ok(fate);
            }
            Fate::Cancelled => Ending::cancelled(),
            Fate::Interrupted => Ending::interrupted(attempts),
        };
        let ending = ending.with_session(left.recorded_session).with_spent(left.spent.as_deref());
        self.finish(claim, &left.dispatch, &request, ending).await?;
        Ok(fate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_decides_what_a_crash_does() {
        for (policy, cancel, attempts, expected) in [
            (Recovery::Fail, false, 1, Fate::Interrupted),
            (Recovery::Retry, false, 1, Fate::Again),
            (Recovery::Retry, false, 2, Fate::Again),
            (Recovery::Retry, false, 3, Fate::Interrupted),
            (Recovery::Resume, false, 1, Fate::Again),
            (Recovery::Resume, false, 3, Fate::Interrupted),
            (Recovery::Retry, true, 1, Fate::Cancelled),
            (Recovery::Fail, true, 1, Fate::Cancelled),
        ] {
            assert_eq!(fate(policy, cancel, attempts, 3), expected, "{policy:?} {attempts}");
        }
    }
}
