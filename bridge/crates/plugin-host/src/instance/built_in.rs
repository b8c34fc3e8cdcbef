//! Adapter that is part of the bridge: its calls are tasks of the bridge's own runtime.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use forge_adapter_api::{AdapterError, Manifest};
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::boundary::call_id::CallId;
use crate::instance::host::Host;

/// Adapter that is part of the bridge. It answers the ops of `adapter-api` as a library does.
pub trait BuiltIn: Send + Sync + 'static {
    fn manifest(&self) -> Manifest;
    /// False while there is nothing that it could run; it is not listed then.
    fn is_listed(&self) -> bool;
    /// Answers one call. Dropping the future cancels it.
    fn call(&self, op: &str, payload: Vec<u8>)
    -> BoxFuture<'static, Result<Vec<u8>, AdapterError>>;
}

/// Instance of an adapter that is part of the bridge, with the tasks of its calls.
pub(crate) struct Tasks {
    adapter: Arc<dyn BuiltIn>,
    host: &'static Host,
    runtime: Handle,
    running: Mutex<HashMap<u64, AbortHandle>>,
}

impl Tasks {
    pub(crate) fn new(adapter: Arc<dyn BuiltIn>, runtime: Handle, host: &'static Host) -> Self {
        Self {
            adapter,
            host,
            runtime,
            running: Mutex::default(),
        }
    }

    pub(crate) fn start(self: &Arc<Self>, call_id: CallId, op: &str, payload: Vec<u8>) {
        let call = self.adapter.call(op, payload);
        let tasks = Arc::clone(self);
        // Held until the task is listed, so that its end finds it there.
        let mut running = self.running();
        let task = self.runtime.spawn(async move {
            let answer = call.await;
            tasks.running().remove(&call_id.0);
            tasks.host.complete(call_id, "completion", || answer);
        });
        running.insert(call_id.0, task.abort_handle());
    }

    pub(crate) fn cancel(&self, call_id: CallId) {
        if let Some(task) = self.running().remove(&call_id.0) {
            task.abort();
        }
    }

    pub(crate) fn destroy(&self) {
        for (_, task) in self.running().drain() {
            task.abort();
        }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, HashMap<u64, AbortHandle>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
