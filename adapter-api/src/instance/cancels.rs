//! The end of executions that were asked to cancel: who ends with an error after the request was cancelled.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::result::Status;
use crate::{AdapterError, ExecutionResult, Result};

const CANCELLED: &str = "cancelled";

/// Executions under way, by call.
#[derive(Default)]
pub(super) struct Cancels(Mutex<HashMap<u64, Entry>>);

struct Entry {
    task_id: String,
    is_asked: bool,
}

/// An execution under way; forgotten when dropped.
pub(super) struct Execution<'a> {
    cancels: &'a Cancels,
    call: u64,
}

impl Cancels {
    pub(super) fn begin(&self, call: u64, task_id: &str) -> Execution<'_> {
        let entry = Entry {
            task_id: task_id.to_owned(),
            is_asked: false,
        };
        self.entries().insert(call, entry);
        Execution {
            cancels: self,
            call,
        }
    }

    /// Notes that the executions of this task, or all, are asked to cancel; returns those that were not before.
    pub(super) fn ask(&self, task_id: Option<&str>) -> Vec<u64> {
        let mut entries = self.entries();
        let asked = entries
            .iter_mut()
            .filter(|(_, entry)| !entry.is_asked && task_id.is_none_or(|id| entry.task_id == id));
        asked
            .map(|(call, entry)| {
                entry.is_asked = true;
                *call
            })
            .collect()
    }

    /// Takes back what [`ask`](Self::ask) noted, because the adapter cancels nothing.
    pub(super) fn take_back(&self, asked: &[u64]) {
        let mut entries = self.entries();
        for call in asked {
            if let Some(entry) = entries.get_mut(call) {
                entry.is_asked = false;
            }
        }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Execution<'_> {
    /// The end of the execution: an error after a request to cancel is `cancelled`, with output, usage and cost so far
    /// and with its reason; a panic stays one.
    pub(super) fn ended(&self, ended: Result<ExecutionResult>) -> Result<ExecutionResult> {
        let is_asked = self
            .cancels
            .entries()
            .get(&self.call)
            .is_some_and(|entry| entry.is_asked);
        match ended {
            Ok(result) if is_asked && result.status == Status::Error => {
                let code = result.error_code.as_deref().unwrap_or_default();
                if code == CANCELLED {
                    return Ok(result);
                }
                let text = then(code, result.error.as_deref().unwrap_or_default());
                Ok(ExecutionResult {
                    error: Some(text),
                    error_code: Some(CANCELLED.to_owned()),
                    retryable: None,
                    retry_after_ms: None,
                    ..result
                })
            }
            Err(error) if is_asked && error.code != CANCELLED && error.code != "adapter_panic" => {
                let text = then(&error.code, &error.message);
                Err(AdapterError {
                    details: error.details,
                    ..AdapterError::new(CANCELLED, text)
                })
            }
            ended => ended,
        }
    }
}

impl Drop for Execution<'_> {
    fn drop(&mut self) {
        self.cancels.entries().remove(&self.call);
    }
}

fn then(code: &str, message: &str) -> String {
    format!("cancelled; the runtime ended with {code}: {message}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failed(code: &str) -> ExecutionResult {
        ExecutionResult {
            output: Some("so far".to_owned()),
            cost_usd: Some(0.5),
            retryable: Some(true),
            ..ExecutionResult::error(code, "broken")
        }
    }

    #[test]
    fn an_error_after_a_request_to_cancel_is_cancelled() {
        let cancels = Cancels::default();
        let (asked, other) = (cancels.begin(1, "a"), cancels.begin(2, "b"));
        cancels.ask(Some("a"));
        for code in ["upstream_error", "timeout", "protocol_violation", ""] {
            let result = asked.ended(Ok(failed(code))).unwrap();
            assert_eq!(result.error_code.as_deref(), Some("cancelled"), "{code}");
            assert_eq!(result.output.as_deref(), Some("so far"));
            assert_eq!((result.cost_usd, result.retryable), (Some(0.5), None));
            assert!(result.error.unwrap().contains(&format!("{code}: broken")));
            let error = AdapterError::new(code, "broken").retryable();
            let error = asked.ended(Err(error)).unwrap_err();
            assert_eq!(
                (error.code.as_str(), error.retryable),
                ("cancelled", false),
                "{code}"
            );
        }
        let untouched = [
            asked.ended(Ok(ExecutionResult::ok("done"))),
            asked.ended(Ok(failed("cancelled"))),
            asked.ended(Err(AdapterError::new("adapter_panic", "broken"))),
            other.ended(Ok(failed("upstream_error"))),
        ];
        let codes = untouched.map(|ended| match ended {
            Ok(result) => json!(result.error_code),
            Err(error) => json!(error.code),
        });
        assert_eq!(
            json!(codes),
            json!([null, "cancelled", "adapter_panic", "upstream_error"])
        );
    }

    #[test]
    fn a_request_without_effect_and_an_earlier_call_do_not_count() {
        let cancels = Cancels::default();
        drop(cancels.begin(1, "a"));
        cancels.ask(None);
        let execution = cancels.begin(1, "a");
        let asked = cancels.ask(Some("a"));
        cancels.take_back(&asked);
        let result = execution.ended(Ok(failed("timeout"))).unwrap();
        assert_eq!(result.error_code.as_deref(), Some("timeout"));
        cancels.ask(None);
        // A further request finds nothing left to cancel.
        let asked = cancels.ask(Some("a"));
        cancels.take_back(&asked);
        let result = execution.ended(Ok(failed("timeout"))).unwrap();
        assert_eq!(result.error_code.as_deref(), Some("cancelled"));
    }
}
