//! Accumulates the output of a run and builds its result.

use std::collections::BTreeMap;

use forge_adapter_api::{AdapterEvent, ExecutionResult, Usage};
use serde_json::{Value, json};

#[derive(Default)]
pub(crate) struct Transcript {
    /// Joined pieces of the answer.
    pub(crate) text: String,
    /// The whole answer, if the program returns it.
    pub(crate) output: Option<String>,
    pub(crate) structured_output: Option<Value>,
    pub(crate) input_request: Option<Value>,
    pub(crate) failure: Option<Failure>,
    pub(crate) session_id: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) usage: Usage,
    pub(crate) cost_usd: Option<f64>,
    /// Names of tool calls without a result, by id.
    pub(crate) tools: BTreeMap<String, String>,
    /// Result of a program that uses the bridge's JSON.
    pub(crate) result: Option<Box<ExecutionResult>>,
}

/// Failure reported by the program.
pub(crate) struct Failure {
    pub(crate) code: Option<String>,
    pub(crate) message: Option<String>,
}

impl Transcript {
    /// Records the session id and returns an event if it changed.
    pub(crate) fn session(&mut self, id: String) -> Option<AdapterEvent> {
        if self.session_id.as_deref() == Some(&id) {
            return None;
        }
        let event = AdapterEvent::new("session.updated").with(json!({"sessionId": id}));
        self.session_id = Some(id);
        Some(event)
    }

    /// Adds the accumulated data to `end`, the result of the program's end.
    pub(crate) fn into_result(self, end: ExecutionResult) -> ExecutionResult {
        let output = self.output.unwrap_or(self.text);
        ExecutionResult {
            output: Some(output).filter(|text| !text.is_empty()),
            structured_output: self.structured_output,
            session_id: self.session_id,
            model: self.model,
            usage: self.usage,
            cost_usd: self.cost_usd,
            ..end
        }
    }
}
