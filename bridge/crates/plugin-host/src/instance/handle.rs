//! Handle of one instance of an adapter: accepts calls for its call thread, and fails them if the instance is gone or
//! blocked. An adapter that blocks its threads blocks no other thread. The location of the instance, in this process or
//! another, is known to `backend` alone.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forge_adapter_api::AdapterError;
use serde_json::Value;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

use crate::boundary::load_error::LoadError;
use crate::instance::backend::Facts;
use crate::instance::boot::Boot;
use crate::instance::call_ids::CallIds;
use crate::instance::call_stream::{Call, Item};
use crate::instance::call_thread::{CallThread, Shared, Work};
use crate::instance::held_text::HeldText;
use crate::instance::host::{Cancel, Host};
use crate::instance::log::{Line, Logs};
use crate::instance::meters::Meters;
use crate::instance::process::remote::{ConnectionState, Remote};
use crate::instance::queue::{Bounds, CallMessage, Queue};
use crate::instance::redaction::{Redaction, Secrets};
use crate::instance::watchdog::Watchdog;

/// Limit of the calls that wait for the call thread.
const WAITING: usize = 256;
const FULL: &str = "the adapter's call queue is full";
const ENDED: &str = "the bridge has shut the adapter down";
/// Ops that are permitted on a new process before it serves.
const BEFORE_SERVING: [&str; 3] = ["initialize", "events.start", "health"];

/// A running instance.
#[derive(Clone)]
pub(crate) struct Handle {
    shared: Arc<Shared>,
    /// Channel of tokio, since the standard library's wakes its receiver while it holds the lock that the receiver
    /// needs next.
    work: mpsc::Sender<Work>,
}

impl Handle {
    /// Loads the library and creates the instance, both on the call thread.
    pub(crate) async fn boot(boot: Boot) -> Result<(Self, Facts), LoadError> {
        let (cancels, canceller) = mpsc::unbounded_channel();
        let (work, inbox) = mpsc::channel(WAITING);
        let (ready, booted) = oneshot::channel();
        // Leaked, since late callbacks must find it.
        let host: &'static Host = Box::leak(Box::new(Host {
            provider: boot.id.clone(),
            call_ids: CallIds::default(),
            news: Queue::new(Bounds {
                total: None,
                ..boot.bounds.execution
            }),
            logs: Logs::default(),
            cancels,
            payload_bytes: boot.bounds.payload,
            meters: Meters::default(),
        }));
        let shared = Arc::new(Shared {
            host,
            bounds: boot.bounds,
            waiting: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            first: Watchdog::default(),
            second: Watchdog::default(),
            remote: OnceLock::new(),
        });
        let deadline = boot.deadline;
        let first = CallThread {
            shared: Arc::clone(&shared),
            inbox,
            canceller,
        };
        std::thread::Builder::new()
            .name(format!("adapter {}", boot.id))
            .spawn(move || first.run(&boot, ready))
            .map_err(LoadError::Thread)?;
        match tokio::time::timeout(deadline, booted).await {
            Ok(Ok(Ok(facts))) => Ok((Self { shared, work }, facts)),
            Ok(Ok(Err(error))) => {
                // The log records of the failed start can explain the error.
                host.logs.write_rest(&host.provider);
                Err(error)
            }
            Ok(Err(_)) => Err(LoadError::Create(AdapterError::new(
                "adapter_crashed",
                "its thread ended while it was loaded",
            ))),
            Err(_) => Err(LoadError::Timeout(deadline)),
        }
    }

    /// Hides the secrets of these settings from now on in everything that the instance sends.
    pub(crate) fn hide(&self, settings: &Value) {
        if let Some(secrets) = Redaction::of(settings) {
            // Settings are given once.
            let _ = self.shared.host.logs.secrets.set(secrets);
        }
    }

    /// Queues a call for the call thread. Fails if the instance is unavailable or the queue is full.
    pub(crate) fn call(&self, op: &str, payload: Vec<u8>) -> Result<Call, AdapterError> {
        let shared = &self.shared;
        let meter = shared.host.meters.calls.row(op);
        if let Some(error) = self.away(op) {
            meter.refused.inc();
            return Err(error);
        }
        let size = payload.len();
        let before = shared.waiting.fetch_add(size, Ordering::AcqRel);
        let refused = |why| {
            shared.waiting.fetch_sub(size, Ordering::AcqRel);
            meter.refused.inc();
            unavailable(why)
        };
        if before > 0 && before + size > shared.bounds.waiting {
            return Err(refused(FULL));
        }
        let place = self.work.try_reserve().map_err(|error| match error {
            TrySendError::Full(()) => refused(FULL),
            TrySendError::Closed(()) => refused(ENDED),
        })?;
        // Only an accepted call is repeated after a restart. Done before the call thread can make it.
        if let Some(remote) = shared.remote.get() {
            remote.remember(op, &payload);
        }
        let queue = Arc::new(Queue::new(shared.bounds.execution));
        let call_id = shared.host.call_ids.open(Arc::clone(&queue));
        let call = Call {
            queue: Arc::clone(&queue),
            call_id,
            host: shared.host,
            meter,
            secrets: Secrets {
                request: Redaction::of_request(&payload),
                ..shared.host.secrets()
            },
            held: HeldText::default(),
            ready: None,
        };
        place.send(Work::Start {
            call_id,
            queue,
            op: op.to_owned(),
            payload,
        });
        // The instance might have become unavailable in between, after the calls waiting then were failed.
        if let Some(error) = self.away(op) {
            self.fail_waiting(&error);
        }
        Ok(call)
    }

    /// Error for a call that cannot be accepted now; `None` if it can.
    fn away(&self, op: &str) -> Option<AdapterError> {
        if self.shared.ended.load(Ordering::SeqCst) {
            return Some(unavailable(ENDED));
        }
        match self.remote().map(|remote| remote.connection_state()) {
            Some(ConnectionState::Down(why)) => return Some(unavailable(&why)),
            Some(ConnectionState::Starting(why)) if !BEFORE_SERVING.contains(&op) => {
                return Some(unavailable(&why));
            }
            Some(ConnectionState::Ending) => {
                return Some(unavailable("the adapter's process is exiting"));
            }
            Some(ConnectionState::Starting(_) | ConnectionState::Up) | None => {}
        }
        self.blocked().map(blocked_in)
    }

    /// Call counters.
    pub(crate) fn meters(&self) -> &'static Meters {
        &self.shared.host.meters
    }

    /// Bytes of output that is not read yet.
    pub(crate) fn said_bytes(&self) -> usize {
        let host = self.shared.host;
        let calls = host.call_ids.all();
        let said: usize = calls.iter().map(|(_, queue)| queue.bytes()).sum();
        said + host.news.bytes()
    }

    /// Bytes of requests that wait for the call thread.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.shared.waiting.load(Ordering::Acquire)
    }

    /// Marks the instance as serving: from now on its process is restarted when it ends.
    pub(crate) fn settle(&self) {
        if let Some(remote) = self.remote() {
            remote.settle();
        }
    }

    /// True if a call would reach the instance, as far as is known.
    pub(crate) fn is_there(&self) -> bool {
        let remote = self.remote();
        remote.is_none_or(|remote| remote.connection_state() == ConnectionState::Up)
    }

    /// The instance in another process, if it is in one.
    pub(crate) fn remote(&self) -> Option<&Arc<Remote>> {
        self.shared.remote.get()
    }

    /// The adapter's function that a thread is blocked in.
    pub(crate) fn blocked(&self) -> Option<&'static str> {
        self.shared.first.blocked().or(self.shared.second.blocked())
    }

    /// Waits until the adapter holds a thread longer than `call_timeout`, then fails the calls that wait. Returns the
    /// adapter's function.
    pub(crate) async fn overdue(&self, call_timeout: Duration) -> &'static str {
        let what = tokio::select! {
            what = self.shared.first.overdue(call_timeout) => what,
            what = self.shared.second.overdue(call_timeout) => what,
        };
        self.fail_waiting(&blocked_in(what));
        what
    }

    /// Waits until no thread is blocked any more.
    pub(crate) async fn back(&self) {
        while self.blocked().is_some() {
            tokio::select! {
                () = self.shared.first.back() => {}
                () = self.shared.second.back() => {}
            }
        }
    }

    /// The next event outside any call. For one reader.
    pub(crate) async fn news(&self) -> Item {
        let host = self.shared.host;
        host.hear(&host.news, &host.secrets()).await
    }

    /// The next message outside any call, unparsed. For one reader.
    pub(crate) async fn next_news(&self) -> CallMessage {
        self.shared.host.news.next().await
    }

    /// The next record of the adapter's log, for a reader that passes it on. For one reader.
    pub(crate) async fn next_log(&self) -> Line {
        self.shared.host.logs.next().await
    }

    /// Writes the adapter's log until dropped. For one task.
    pub(crate) async fn write_logs(&self) {
        let host = self.shared.host;
        host.logs.write(&host.provider).await;
    }

    /// Writes the rest of the adapter's log.
    pub(crate) fn write_rest_of_logs(&self) {
        self.shared.host.logs.write_rest(&self.shared.host.provider);
    }

    fn fail_waiting(&self, error: &AdapterError) {
        let host = self.shared.host;
        for (call_id, queue) in host.call_ids.all() {
            if !queue.has_begun() {
                queue.answer(Err(error.clone()));
                host.give_up(call_id, &queue);
            }
        }
    }

    /// Ends every call in flight with this reason and cancels it in the adapter.
    pub(crate) fn cut_off(&self, why: &str) {
        let host = self.shared.host;
        for (call_id, queue) in host.call_ids.all() {
            queue.answer(Err(unavailable(why)));
            host.give_up(call_id, &queue);
        }
    }

    /// Ends every call, then the instance; false if it did not return in time and was abandoned.
    pub(crate) async fn end(&self, grace: Duration) -> bool {
        let host = self.shared.host;
        self.shared.ended.store(true, Ordering::SeqCst);
        self.cut_off(ENDED);
        host.news.close();
        let ended = async {
            let (stop, stopped) = oneshot::channel();
            host.cancels.send(Cancel::Stop(stop)).ok()?;
            stopped.await.ok()?;
            let (destroy, destroyed) = oneshot::channel();
            self.work.try_send(Work::Destroy(destroy)).ok()?;
            destroyed.await.ok()
        };
        matches!(tokio::time::timeout(grace, ended).await, Ok(Some(())))
    }
}

fn unavailable(message: &str) -> AdapterError {
    AdapterError::new("adapter_unavailable", message).retryable()
}

fn blocked_in(what: &str) -> AdapterError {
    unavailable(&format!("the adapter is blocked in {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::boot::Limits;

    /// A handle whose call thread never takes a call, of which `waiting` fit into the queue.
    fn stuck(waiting: usize) -> (Handle, mpsc::Receiver<Work>) {
        let (host, _inbox) = Host::for_test();
        let host: &'static Host = Box::leak(Box::new(host));
        let (work, inbox) = mpsc::channel(waiting);
        let shared = Shared {
            host,
            bounds: Limits {
                payload: 100,
                execution: Bounds {
                    queued: 100,
                    event: 100,
                    total: None,
                },
                waiting: 10,
            },
            waiting: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            first: Watchdog::default(),
            second: Watchdog::default(),
            remote: OnceLock::from(Remote::unconnected(host)),
        };
        let shared = Arc::new(shared);
        (Handle { shared, work }, inbox)
    }

    fn outcome(handle: &Handle, op: &str, name: &str) -> u64 {
        let outcomes = handle.meters().calls.row(op).outcomes();
        let found = outcomes.into_iter().find(|(outcome, _)| *outcome == name);
        found.unwrap().1
    }

    #[test]
    fn a_refused_call_is_not_repeated_after_a_restart() {
        let (handle, inbox) = stuck(2);
        let remembered = || handle.remote().unwrap().remembered();
        let first = handle.call("initialize", b"{}".to_vec()).unwrap();
        assert_eq!(remembered(), (Some(b"{}".to_vec()), false));
        let too_many_bytes = vec![b' '; 10];
        handle.call("initialize", too_many_bytes).unwrap_err();
        assert_eq!(remembered(), (Some(b"{}".to_vec()), false));
        let second = handle.call("execute", Vec::new()).unwrap();
        handle.call("events.start", Vec::new()).unwrap_err();
        assert_eq!(remembered(), (Some(b"{}".to_vec()), false));
        drop((first, second, inbox));
    }

    #[test]
    fn a_call_that_does_not_fit_the_queue_counts_as_refused() {
        let (handle, inbox) = stuck(1);
        let accepted = handle.call("execute", b"{}".to_vec()).unwrap();
        let error = handle.call("health", b"{}".to_vec()).unwrap_err();
        assert_eq!(error.code, "adapter_unavailable");
        assert_eq!(outcome(&handle, "health", "refused"), 1);
        assert_eq!(outcome(&handle, "health", "dropped"), 0);
        assert_eq!(handle.waiting_bytes(), 2);
        drop(inbox);
        handle.call("health", b"{}".to_vec()).unwrap_err();
        assert_eq!(outcome(&handle, "health", "refused"), 2);
        drop(accepted);
        assert_eq!(outcome(&handle, "execute", "dropped"), 1);
    }
}
