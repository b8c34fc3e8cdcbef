//! Executions of an adapter in the test's process, with their results and events.

use forge_adapter_api::request::ToolResult;
use forge_adapter_api::{
    AdapterEvent, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Result, Status,
};
use serde_json::Value;
use tokio::sync::oneshot;

/// Capacity of the event queue, beyond the events of any test.
const MAX_EVENTS: usize = 10_000;

/// An execution that has ended.
pub struct Execution {
    pub result: ExecutionResult,
    /// All events, in their order.
    pub events: Vec<AdapterEvent>,
}

/// Runs a request. An adapter's error becomes a result with its code, text and retry hints.
pub async fn run(adapter: &impl ExecutionAdapter, request: ExecutionRequest) -> Execution {
    run_until(adapter, request, "", async || {}).await
}

/// Like [`run`], with `act` beside the execution from its first event of this kind on. Without such an event, `act` is
/// not called.
pub async fn run_until(
    adapter: &impl ExecutionAdapter,
    request: ExecutionRequest,
    kind: &str,
    act: impl AsyncFnOnce(),
) -> Execution {
    let (result, events) = record(adapter, request, kind, act).await;
    let result = result.unwrap_or_else(ExecutionResult::from);
    Execution { result, events }
}

/// Like [`run_until`], but returns the adapter's result or error unchanged.
pub async fn record(
    adapter: &impl ExecutionAdapter,
    request: ExecutionRequest,
    kind: &str,
    act: impl AsyncFnOnce(),
) -> (Result<ExecutionResult>, Vec<AdapterEvent>) {
    let (events, mut received) = Events::channel(MAX_EVENTS);
    let (begin, begun) = oneshot::channel::<()>();
    let acting = async {
        if begun.await.is_ok() {
            act().await;
        }
    };
    let collecting = async {
        let mut begin = Some(begin);
        let mut seen = Vec::new();
        while let Some(event) = received.recv().await {
            if event.kind == kind
                && let Some(begin) = begin.take()
            {
                begin.send(()).unwrap();
            }
            seen.push(event);
        }
        seen
    };
    let (result, events, ()) = tokio::join!(adapter.execute(request, events), collecting, acting);
    (result, events)
}

impl Execution {
    /// Asserts success; returns the output, empty if there is none.
    #[track_caller]
    pub fn succeeded(&self) -> &str {
        assert_eq!(self.result.status, Status::Ok, "{:?}", self.result);
        assert_eq!(self.result.error_code, None);
        self.output()
    }

    /// Asserts a failure with this code and a text; returns the text.
    #[track_caller]
    pub fn failed(&self, code: &str) -> &str {
        let result = &self.result;
        assert_eq!(result.error_code.as_deref(), Some(code), "{result:?}");
        assert_eq!(result.status, Status::Error);
        let text = result.error.as_deref().unwrap_or_default();
        assert!(!text.is_empty(), "{result:?}");
        text
    }

    /// Asserts a failure with this code, and a text that contains `part`.
    #[track_caller]
    pub fn failed_with(&self, code: &str, part: &str) {
        let text = self.failed(code);
        assert!(text.contains(part), "{text}");
    }

    /// Asserts usage of exactly this number of model calls, each with these input and output tokens.
    #[track_caller]
    pub fn used(&self, calls: u64, (input, output): (u64, u64)) {
        let usage = &self.result.usage;
        let (input, output) = (calls * input, calls * output);
        assert_eq!(
            (usage.input_tokens, usage.output_tokens, usage.total_tokens),
            (Some(input), Some(output), Some(input + output))
        );
    }

    /// Output of the result, empty if there is none.
    pub fn output(&self) -> &str {
        self.result.output.as_deref().unwrap_or_default()
    }

    /// Data of the events of this kind.
    pub fn all(&self, kind: &str) -> Vec<&Value> {
        let events = self.events.iter().filter(|event| event.kind == kind);
        events.map(|event| event.data.as_ref().unwrap()).collect()
    }

    /// Data of the `exec.progress` events with this `kind`.
    pub fn progress(&self, kind: &str) -> Vec<&Value> {
        let mut all = self.all("exec.progress");
        all.retain(|data| data["kind"] == kind);
        all
    }

    /// Deltas of the answer's text, joined.
    pub fn text(&self) -> String {
        self.deltas("assistant.text")
    }

    /// Deltas of the events of this kind, joined.
    pub fn deltas(&self, kind: &str) -> String {
        let all = self.all(kind).into_iter();
        all.map(|data| data["delta"].as_str().unwrap()).collect()
    }

    /// Results for all tool calls of this execution, each with this output.
    pub fn tool_results(&self, output: &Value) -> Vec<ToolResult> {
        let calls = self.result.tool_calls.iter();
        let results = calls.map(|call| ToolResult {
            tool_call_id: call.tool_call_id.clone(),
            name: call.name.clone(),
            output: output.clone(),
            is_error: false,
        });
        results.collect()
    }
}
