//! The two threads of an instance: the call thread, which makes every call into it from a bounded queue, and the cancel
//! thread, which only cancels.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::sync::{mpsc, oneshot};

use crate::boundary::call_id::CallId;
use crate::boundary::load_error::LoadError;
use crate::instance::backend::{self, Backend, Facts};
use crate::instance::boot::{Boot, Limits};
use crate::instance::host::{Cancel, Host};
use crate::instance::process::remote::Remote;
use crate::instance::queue::Queue;
use crate::instance::watchdog::Watchdog;

/// State of an instance that its handles and its threads share.
pub(super) struct Shared {
    pub(super) host: &'static Host,
    pub(super) bounds: Limits,
    /// Bytes of requests that wait for the call thread.
    pub(super) waiting: AtomicUsize,
    pub(super) ended: AtomicBool,
    /// Of the call thread.
    pub(super) first: Watchdog,
    /// Of the cancel thread.
    pub(super) second: Watchdog,
    /// Set if the instance is in another process.
    pub(super) remote: OnceLock<Arc<Remote>>,
}

/// Command for the call thread.
pub(super) enum Work {
    Start {
        call_id: CallId,
        queue: Arc<Queue>,
        op: String,
        payload: Vec<u8>,
    },
    Destroy(oneshot::Sender<()>),
}

/// The call thread: loads the library, creates the instance, makes every call into it, and destroys it.
pub(super) struct CallThread {
    pub(super) shared: Arc<Shared>,
    pub(super) inbox: mpsc::Receiver<Work>,
    pub(super) canceller: mpsc::UnboundedReceiver<Cancel>,
}

impl CallThread {
    pub(super) fn run(mut self, boot: &Boot, ready: oneshot::Sender<Result<Facts, LoadError>>) {
        let host = self.shared.host;
        let (backend, facts) = match backend::make(boot, host) {
            Ok(made) => made,
            Err(error) => {
                // The receiver is gone if the deadline has passed, which was reported instead.
                let _ = ready.send(Err(error));
                return;
            }
        };
        if let Backend::Child(remote) = &backend {
            self.shared.remote.get_or_init(|| Arc::clone(remote));
        }
        let second = Arc::clone(&self.shared);
        let mut canceller = self.canceller;
        let cancelled = backend.clone();
        let thread = std::thread::Builder::new()
            .name(format!("cancel {}", host.provider))
            .spawn(move || cancel_calls(&cancelled, &mut canceller, &second.second));
        let thread = match thread {
            Ok(thread) => thread,
            Err(error) => {
                backend.destroy();
                let _ = ready.send(Err(LoadError::Thread(error)));
                return;
            }
        };
        if ready.send(Ok(facts)).is_ok() {
            while let Some(work) = self.inbox.blocking_recv() {
                match work {
                    Work::Start {
                        call_id,
                        queue,
                        op,
                        payload,
                    } => self.shared.start(&backend, call_id, &queue, &op, payload),
                    Work::Destroy(done) => {
                        backend.destroy();
                        let _ = done.send(());
                        return;
                    }
                }
            }
        }
        // The handle is gone, so no caller is left: the start took too long, or the handle was dropped.
        let (stop, _) = oneshot::channel();
        if host.cancels.send(Cancel::Stop(stop)).is_ok() && thread.join().is_ok() {
            backend.destroy();
        }
    }
}

impl Shared {
    fn start(&self, backend: &Backend, call_id: CallId, queue: &Queue, op: &str, payload: Vec<u8>) {
        self.waiting.fetch_sub(payload.len(), Ordering::AcqRel);
        if !queue.is_open() {
            return;
        }
        self.first.enter("start");
        backend.start(call_id, op, payload);
        self.first.leave();
        queue.begin();
        // Abandoned before the adapter had received the call: cancel it now.
        if self.host.call_ids.is_given_up(call_id) {
            self.host.cancel(call_id);
        }
    }
}

fn cancel_calls(
    backend: &Backend,
    inbox: &mut mpsc::UnboundedReceiver<Cancel>,
    watchdog: &Watchdog,
) {
    while let Some(cancel) = inbox.blocking_recv() {
        match cancel {
            Cancel::Call(call_id) => {
                watchdog.enter("cancel");
                backend.cancel(call_id);
                watchdog.leave();
            }
            Cancel::Stop(stopped) => {
                // The requester might have stopped waiting.
                let _ = stopped.send(());
                return;
            }
        }
    }
}
