//! Steering: a further user message for the running execution of a dispatch. Not durable: a message is delivered now or
//! not at all.

use std::time::Duration;

use forge_adapter_api::{AdapterError, SteerRequest};
use tokio::time::{Instant, sleep};

use forge_base::id::DispatchId;
use forge_plugin_host::{Steered, Steering};

use super::Dispatcher;
use super::assemble::execution_id;

/// Time that an execution has to take messages: it is starting, or between two rounds of tools.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

/// Way to a running execution.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) steering: Steering,
    pub(crate) attempt: u32,
    pub(crate) task_id: String,
}

impl Dispatcher {
    /// Passes a further user message to the running execution of a dispatch; `NotRunning` also for an unknown id. An
    /// execution that takes no messages yet is asked for up to 5 s. After an error it is unknown whether the message
    /// was delivered.
    pub async fn steer(&self, id: DispatchId, message: &str) -> Result<Steered, AdapterError> {
        let until = Instant::now() + PATIENCE;
        while let Some(target) = self.inner.running.target(id) {
            let request = SteerRequest {
                execution_id: execution_id(id, target.attempt),
                task_id: target.task_id,
                message: message.to_owned(),
            };
            match target.steering.steer(&request).await? {
                Steered::NotRunning if Instant::now() < until => sleep(POLL).await,
                outcome => return Ok(outcome),
            }
        }
        Ok(Steered::NotRunning)
    }
}
