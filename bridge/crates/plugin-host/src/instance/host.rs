//! State of the bridge that an instance reaches through its callbacks: open calls, events outside calls, log, counters.

use std::time::Instant;

use forge_adapter_api::AdapterError;
use tokio::sync::mpsc::UnboundedSender;

use crate::boundary::answer::Answer;
use crate::boundary::call_id::CallId;
use crate::boundary::callbacks::{Callbacks, Emitted};
use crate::instance::call_ids::{CallIds, Used};
use crate::instance::log::Logs;
use crate::instance::meters::Meters;
use crate::instance::queue::Queue;
use crate::instance::redaction::Secrets;

/// State of the bridge that an instance can reach. Leaked on purpose: a callback after `destroy` must find it.
pub(crate) struct Host {
    pub provider: String,
    pub call_ids: CallIds,
    /// Events outside any call.
    pub news: Queue,
    pub logs: Logs,
    /// At most one entry for each abandoned call, so bounded by the number of calls.
    pub cancels: UnboundedSender<Cancel>,
    /// The largest answer that is copied.
    pub payload_bytes: usize,
    pub meters: Meters,
}

/// Command for the cancel thread of an instance.
pub(crate) enum Cancel {
    Call(CallId),
    Stop(tokio::sync::oneshot::Sender<()>),
}

impl Host {
    /// Secrets of the adapter's settings.
    pub(crate) fn secrets(&self) -> Secrets {
        Secrets {
            instance: self.logs.secrets.get().cloned(),
            request: None,
        }
    }

    /// Abandons a call; cancels it in the adapter if that has received it.
    pub(crate) fn give_up(&self, call_id: CallId, queue: &Queue) {
        self.call_ids.give_up(call_id);
        if queue.has_begun() {
            self.cancel(call_id);
        }
    }

    /// Asks the cancel thread to cancel a call in the adapter.
    pub(crate) fn cancel(&self, call_id: CallId) {
        // The receiver is gone only after the instance was destroyed: nothing is left to cancel.
        let _ = self.cancels.send(Cancel::Call(call_id));
    }

    /// Queues an event of a call, or of the instance itself if the call id is 0.
    pub(crate) fn emit(&self, call_id: CallId, event: &[u8]) -> Emitted {
        if call_id.0 == 0 {
            return self.news.emit(event, Instant::now());
        }
        let Some(queue) = self.call_ids.find(call_id) else {
            return Emitted::Closed;
        };
        let emitted = queue.emit(event, Instant::now());
        if emitted == Emitted::TooMuch {
            queue.answer(Err(AdapterError::new(
                "output_too_large",
                "the execution emitted more than plugin.execution_bytes of events",
            )));
            self.give_up(call_id, &queue);
        }
        emitted
    }

    /// Completes a call; false if the completion is refused. `answer` is evaluated only for the first completion of an
    /// open call.
    pub(crate) fn complete(
        &self,
        call_id: CallId,
        what: &str,
        answer: impl FnOnce() -> Answer,
    ) -> bool {
        match self.call_ids.spend(call_id) {
            Used::Now(queue) => {
                let answer = answer();
                if let Err(error) = &answer
                    && error.code == "protocol_violation"
                {
                    self.logs.breach(&error.message);
                }
                queue.answer(answer)
            }
            Used::GivenUp => false,
            Used::Never => {
                self.logs.breach(&format!(
                    "{what} of call {:#x}, which was already answered or never issued",
                    call_id.0
                ));
                false
            }
        }
    }

    /// Ends a call that the adapter will never answer.
    pub(crate) fn fail(&self, call_id: CallId, error: AdapterError) {
        if let Some(queue) = self.call_ids.find(call_id) {
            queue.answer(Err(error));
            self.call_ids.give_up(call_id);
        }
    }
}

impl Callbacks for Host {
    fn emit(&self, call_id: CallId, event: &[u8]) -> Emitted {
        Self::emit(self, call_id, event)
    }

    fn log(&self, level: i32, record: &[u8]) {
        self.logs.push(level, record);
    }

    fn complete(&self, call_id: CallId, what: &str, answer: &mut dyn FnMut() -> Answer) -> bool {
        Self::complete(self, call_id, what, answer)
    }
}

#[cfg(test)]
impl Host {
    /// A host with small limits, and the inbox of its cancel thread.
    pub(crate) fn for_test() -> (Self, tokio::sync::mpsc::UnboundedReceiver<Cancel>) {
        let bounds = crate::instance::queue::Bounds {
            queued: 10_000,
            event: 100,
            total: Some(150),
        };
        let (cancels, inbox) = tokio::sync::mpsc::unbounded_channel();
        let host = Self {
            provider: "test".into(),
            call_ids: CallIds::default(),
            news: Queue::new(bounds),
            logs: Logs::default(),
            cancels,
            payload_bytes: 100,
            meters: Meters::default(),
        };
        (host, inbox)
    }
}

/// Tests that act as the adapter's own threads.
#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::instance::queue::{Bounds, CallMessage};

    const BOUNDS: Bounds = Bounds {
        queued: 10_000,
        event: 100,
        total: Some(150),
    };

    #[tokio::test]
    async fn too_many_events_end_the_call_and_cancel_it() {
        let (host, mut inbox) = Host::for_test();
        let queue = Arc::new(Queue::new(BOUNDS));
        let call_id = host.call_ids.open(Arc::clone(&queue));
        queue.begin();
        assert_eq!(host.emit(call_id, &[b'x'; 100]), Emitted::Taken);
        assert_eq!(host.emit(call_id, &[b'x'; 100]), Emitted::TooMuch);
        assert_eq!(host.emit(call_id, b"x"), Emitted::Closed);
        assert!(matches!(inbox.try_recv(), Ok(Cancel::Call(call)) if call == call_id));
        assert!(matches!(queue.next().await, CallMessage::Event(_)));
        assert!(
            matches!(queue.next().await, CallMessage::Answer(Err(error)) if error.code == "output_too_large")
        );
    }

    #[test]
    fn of_many_threads_that_complete_one_is_taken() {
        let (host, _inbox) = Host::for_test();
        let call_id = host.call_ids.open(Arc::new(Queue::new(BOUNDS)));
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| host.complete(call_id, "completion", || Ok(Vec::new()))))
                .collect();
            threads
                .into_iter()
                .map(|thread| usize::from(thread.join().unwrap()))
                .sum()
        });
        assert_eq!(taken, 1);
    }
}
