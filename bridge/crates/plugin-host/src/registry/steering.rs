//! Steering: further user messages for a running execution.

use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::{AdapterError, SteerRequest};

use crate::registry::generation::{Generation, Permit};

/// Limit for the op `steer`. An execution that is not ready for a message yet lets it wait.
const STEER_TIMEOUT: Duration = Duration::from_secs(5);

/// Outcome of steering an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steered {
    /// The runtime has the message and gives it to the model before the execution ends.
    Delivered,
    /// The adapter takes no messages for running executions.
    Unsupported,
    /// No such execution runs, or it takes no messages any more.
    NotRunning,
}

/// Way to the executions of one generation. Holds the generation, but no slot of it.
#[derive(Clone)]
pub struct Steering(Arc<Generation>);

impl Steering {
    /// Passes a message to an execution. After an error it is unknown whether the message was delivered.
    pub async fn steer(&self, request: &SteerRequest) -> Result<Steered, AdapterError> {
        let steered = self
            .0
            .flag("steer", request, "steered", STEER_TIMEOUT)
            .await;
        match steered {
            Ok(true) => Ok(Steered::Delivered),
            Ok(false) => Ok(Steered::NotRunning),
            Err(error) if error.code == "unsupported_op" => Ok(Steered::Unsupported),
            Err(error) => Err(error),
        }
    }
}

impl Permit {
    /// Way to steer the execution of this permit.
    pub fn steering(&self) -> Steering {
        Steering(Arc::clone(&self.generation))
    }
}
