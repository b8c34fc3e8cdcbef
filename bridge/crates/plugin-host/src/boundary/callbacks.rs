//! Receiver of everything that an adapter sends through the function table. Implemented by the floor above.

use crate::boundary::answer::Answer;
use crate::boundary::call_id::CallId;

/// Limit of one log record; the rest is cut off.
pub(crate) const RECORD_BYTES: usize = 8 * 1024;

/// Functions of the bridge that an adapter calls. They run on the adapter's threads: they must neither wait nor panic,
/// and can be called during `start`, `cancel` and `destroy`.
pub(crate) trait Callbacks: Send + Sync {
    /// Queues an event of a call, or of the instance itself if the call id is 0.
    fn emit(&self, call_id: CallId, event: &[u8]) -> Emitted;

    /// Queues a log record.
    fn log(&self, level: i32, record: &[u8]);

    /// Completes a call; false if the completion is refused. `answer` is called at most once, and only for the first
    /// completion of an open call. `what` names the completion in the log.
    fn complete(&self, call_id: CallId, what: &str, answer: &mut dyn FnMut() -> Answer) -> bool;
}

/// Result of emitting an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emitted {
    Taken,
    /// Not queued; the emitter can retry.
    Full,
    /// The call has ended.
    Closed,
    /// The event would exceed the call's total: the call must end.
    TooMuch,
}
