//! Steering: a further user message for the running execution of a dispatch. Not durable: a message is delivered now or
//! not at all.

use forge_adapter_api::{AdapterError, SteerRequest};

use forge_base::id::DispatchId;
use forge_plugin_host::{Steered, Steering};

use super::Dispatcher;
use super::assemble::execution_id;

/// Way to a running execution.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) steering: Steering,
    pub(crate) attempt: u32,
    pub(crate) task_id: String,
}

impl Dispatcher {
    /// Passes a further user message to the running execution of a dispatch; `NotRunning` also for an unknown id. After
    /// an error it is unknown whether the message was delivered.
    pub async fn steer(&self, id: DispatchId, message: &str) -> Result<Steered, AdapterError> {
        let Some(target) = self.inner.running.target(id) else {
            return Ok(Steered::NotRunning);
        };
        let request = SteerRequest {
            execution_id: execution_id(id, target.attempt),
            task_id: target.task_id,
            message: message.to_owned(),
        };
        target.steering.steer(&request).await
    }
}
