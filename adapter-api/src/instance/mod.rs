//! An adapter instance: its runtime, its calls in flight, and the implementation of each op. Safe code;
//! pointers are handled by `export`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use cancels::Cancels;

use crate::export::{HostLink, Reply};
use crate::guard::{Guarded, caught};
use crate::host::Create;
use crate::json::{answer, arguments, done};
use crate::manage::{self, Interface};
use crate::{AdapterError, Config, ExecutionAdapter, ExecutionRequest, Host, Result, log, trace};

/// Time limit of `destroy` for tasks that do not yield; their threads are left behind afterwards.
const DESTROY_WAIT: Duration = Duration::from_millis(500);
const WORKERS: usize = 2;
/// Upper bound of an execution: one year. Longer durations overflow timers.
const LONGEST_EXECUTION: Duration = Duration::from_secs(365 * 24 * 60 * 60);

pub(crate) struct Instance<A> {
    /// `None` only during drop.
    runtime: Option<Runtime>,
    shared: Arc<Shared<A>>,
}

struct Shared<A> {
    host: Host,
    adapter: OnceCell<A>,
    calls: Mutex<HashMap<u64, AbortHandle>>,
    cancels: Cancels,
    closing: AtomicBool,
    /// Cancelled after the adapter's own shutdown has returned.
    stop: CancellationToken,
}

/// The arguments of the op `cancel`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CancelRequest {
    /// The execution id. Not passed to the adapter's `cancel`; reserved for adapters with several
    /// executions under one task id.
    #[serde(default)]
    pub execution_id: String,
    /// The handle passed to the adapter's `cancel`.
    pub task_id: String,
}

/// The answer of the op `cancel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelAnswer {
    /// True if cancellation was started.
    pub cancelled: bool,
}

/// The arguments of the op `steer`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SteerRequest {
    /// Id of the execution that receives the message.
    pub execution_id: String,
    /// The request's `taskId`.
    pub task_id: String,
    /// The message.
    pub message: String,
}

/// The answer of the op `steer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteerAnswer {
    /// True if the runtime has the message.
    pub steered: bool,
}

impl<A: ExecutionAdapter> Instance<A> {
    pub(crate) fn create(link: HostLink, create: Create) -> Result<Self> {
        let dispatch = log::dispatch(link, create.log_level.as_deref());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(WORKERS)
            .thread_name(A::NAME)
            .on_thread_start(move || log::adopt_thread(link, &dispatch))
            .enable_all()
            .build()
            .map_err(|error| AdapterError::new("internal", format!("tokio runtime: {error}")))?;
        Ok(Self {
            runtime: Some(runtime),
            shared: Arc::new(Shared {
                host: Host::attached(link, create),
                adapter: OnceCell::new(),
                calls: Mutex::default(),
                cancels: Cancels::default(),
                closing: AtomicBool::new(false),
                stop: CancellationToken::new(),
            }),
        })
    }

    /// Starts a call and returns at once; a task of the runtime sends the reply.
    pub(crate) fn start(&self, call: u64, op: String, payload: Vec<u8>, reply: Reply) {
        let Some(runtime) = &self.runtime else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        // Locked until the entry is inserted, so that a call that ends at once finds and removes it.
        let mut calls = self.shared.calls();
        let task = runtime.spawn(async move {
            let span = tracing::info_span!("op", forge.call = call, op);
            let answer = Guarded::new(shared.run(call, &op, payload).instrument(span)).await;
            shared.calls().remove(&call);
            // Releases the reference to the adapter before the bridge learns that the call has ended.
            drop(shared);
            reply.send(answer.and_then(|answer| answer));
        });
        calls.insert(call, task.abort_handle());
    }

    /// Drops a call and abandons its reply. Returns false if the call does not exist.
    pub(crate) fn cancel(&self, call: u64) -> bool {
        let task = self.shared.calls().remove(&call);
        task.inspect(AbortHandle::abort).is_some()
    }
}

impl<A> Drop for Instance<A> {
    fn drop(&mut self) {
        let tasks: Vec<AbortHandle> = self.shared.calls().drain().map(|(_, task)| task).collect();
        for task in tasks {
            task.abort();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(DESTROY_WAIT);
        }
    }
}

impl<A> Shared<A> {
    fn calls(&self) -> MutexGuard<'_, HashMap<u64, AbortHandle>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: ExecutionAdapter> Shared<A> {
    async fn run(&self, call: u64, op: &str, payload: Vec<u8>) -> Result<Vec<u8>> {
        match op {
            "initialize" => self.initialize(op, &payload).await,
            "shutdown" => self.shutdown().await,
            "health" => answer(op, &self.adapter()?.check_health().await),
            "capabilities" => answer(op, &self.adapter()?.capabilities()),
            "execute" => self.execute(call, op, payload).await,
            "cancel" => {
                let request: CancelRequest = arguments(op, &payload)?;
                // Before the adapter: its execution can end before its answer.
                let asked = self.cancels.ask(Some(&request.task_id));
                let cancelled = self.adapter()?.cancel(&request.task_id).await;
                if !matches!(cancelled, Ok(true)) {
                    self.cancels.take_back(&asked);
                }
                let cancelled = cancelled?;
                answer(op, &CancelAnswer { cancelled })
            }
            "steer" => {
                let request: SteerRequest = arguments(op, &payload)?;
                let steered = self.adapter()?.steer(request).await?;
                answer(op, &SteerAnswer { steered })
            }
            "events.start" => {
                let events = self.host.events();
                self.adapter()?.start_event_relay(events).await?;
                Ok(done())
            }
            "events.stop" => {
                self.adapter()?.stop_event_relay().await?;
                Ok(done())
            }
            _ => manage::call(self.adapter()?, op, &payload).await,
        }
    }

    fn adapter(&self) -> Result<&A> {
        self.adapter
            .get()
            .ok_or_else(|| AdapterError::new("invalid_request", "the adapter is not initialized"))
    }

    async fn initialize(&self, op: &str, payload: &[u8]) -> Result<Vec<u8>> {
        let config = Config::try_from(arguments::<serde_json::Value>(op, payload)?)?;
        self.adapter
            .get_or_try_init(|| async {
                let adapter = A::initialize(self.host.clone(), config).await?;
                agree_on_interfaces(&adapter)?;
                tracing::info!(
                    adapter.id = A::NAME,
                    adapter.version = A::VERSION,
                    "{} {} initialized",
                    A::NAME,
                    A::VERSION
                );
                Ok(adapter)
            })
            .await?;
        Ok(done())
    }

    async fn shutdown(&self) -> Result<Vec<u8>> {
        self.closing.store(true, Ordering::SeqCst);
        self.cancels.ask(None);
        let result = match self.adapter.get() {
            Some(adapter) => Guarded::new(adapter.shutdown()).await.and_then(|r| r),
            None => Ok(()),
        };
        // Stops all executions even if the adapter's shutdown failed.
        self.stop.cancel();
        result.map(|()| done())
    }

    async fn execute(&self, call: u64, op: &str, payload: Vec<u8>) -> Result<Vec<u8>> {
        let adapter = self.adapter()?;
        let request: ExecutionRequest = arguments(op, &payload)?;
        // Frees the payload before a long execution; `request` holds everything.
        drop(payload);
        if self.closing.load(Ordering::SeqCst) {
            let error = AdapterError::new("adapter_unavailable", "the adapter is shutting down");
            return Err(error.retryable());
        }
        let seconds = request.timeout_seconds;
        let limit = if seconds.is_finite() && seconds > 0.0 {
            Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST_EXECUTION)
        } else {
            let text = format!("execute: timeoutSeconds must be positive, not {seconds}");
            return Err(AdapterError::new("invalid_request", text));
        };
        let span = tracing::info_span!(
            "execution",
            execution.id = request.execution_id,
            task.id = request.task_id,
            traceparent = request.meta.traceparent,
        );
        let started = Instant::now();
        let meta = request.meta.clone();
        let begun = self.cancels.begin(call, &request.task_id);
        let execution = adapter.execute(request, self.host.events_of(call));
        let run = Guarded::new(trace::within(meta, execution).instrument(span));
        let mut result = tokio::select! {
            result = run => begun.ended(result.and_then(|result| result))?,
            () = tokio::time::sleep(limit.min(LONGEST_EXECUTION)) => {
                let text = format!("no result within {seconds} s");
                return Err(AdapterError::new("timeout", text));
            }
            () = self.stop.cancelled() => return Err(AdapterError::cancelled()),
        };
        if result.duration_ms.is_none() {
            result.duration_ms = u64::try_from(started.elapsed().as_millis()).ok();
        }
        answer(op, &result)
    }
}

impl<A> Drop for Shared<A> {
    fn drop(&mut self) {
        let adapter = self.adapter.take();
        // The panic hook has logged the panic, and a drop cannot report it.
        let _ = caught(|| drop(adapter));
    }
}

/// Checks that `INTERFACES` and the methods agree. The manifest is made before an instance exists, so the
/// declaration and the methods are separate and can differ.
fn agree_on_interfaces<A: ExecutionAdapter>(adapter: &A) -> Result<()> {
    for interface in Interface::ALL {
        let declared = A::INTERFACES.contains(&interface);
        let text = match (declared, interface.given_by(adapter)) {
            (true, true) | (false, false) => continue,
            (true, false) => "is in INTERFACES, but its method returns None",
            (false, true) => "is returned by its method, but not in INTERFACES",
        };
        let name = interface.name();
        return Err(AdapterError::new(
            "internal",
            format!("interface {name:?} {text}"),
        ));
    }
    Ok(())
}

mod cancels;
#[cfg(test)]
mod tests;
