//! Provider `external`: the adapter, part of the bridge, on which dispatches to external services run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forge_adapter_api::profile::SchemaRange;
use forge_adapter_api::{
    AdapterError, CostTier, ExecutionResult, Health, LatencyProfile, Manifest, OutputStrategy,
    Profile,
};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use forge_external::{Answered, DurableCall, External, Outcome};
use forge_plugin_host::BuiltIn;

/// Id of the provider.
const ID: &str = "external";
/// Calls at the same time; each service has a limit of its own, too.
const MAX_CONCURRENT: u32 = 64;

type Answer = Result<Vec<u8>, AdapterError>;

pub(super) struct Provider {
    external: External,
    running: Arc<Running>,
}

/// Calls that can be cancelled, by their execution.
#[derive(Default)]
struct Running(Mutex<HashMap<String, CancellationToken>>);

impl Provider {
    pub(super) fn new(external: External) -> Self {
        Self {
            external,
            running: Arc::default(),
        }
    }

    fn execute(&self, payload: &[u8]) -> BoxFuture<'static, Answer> {
        let call: DurableCall = match serde_json::from_slice(payload) {
            Ok(call) => call,
            Err(error) => {
                let message = format!("the recorded call cannot be read: {error}");
                let error = AdapterError::new("protocol_violation", message);
                return ready(Err(error)).boxed();
            }
        };
        let (external, running) = (self.external.clone(), Arc::clone(&self.running));
        async move {
            let cancelled = running.begin(&call.execution_id);
            let _listed = Listed {
                running,
                execution: call.execution_id.clone(),
            };
            match cancelled
                .run_until_cancelled(external.call_durably(call))
                .await
            {
                None => Err(AdapterError::new("cancelled", "the call was cancelled")),
                Some(Err(unknown)) => Err(AdapterError::new("adapter_error", unknown)),
                Some(Ok(answered)) => Ok(json(&result(answered))),
            }
        }
        .boxed()
    }
}

impl BuiltIn for Provider {
    fn manifest(&self) -> Manifest {
        Manifest {
            name: ID.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            provider: ID.to_owned(),
            schema: SchemaRange { min: 1, max: 1 },
            interfaces: vec!["execution@1".to_owned()],
            env: Vec::new(),
            panic: "unwind".to_owned(),
        }
    }

    fn is_listed(&self) -> bool {
        !self.external.is_empty()
    }

    fn call(&self, op: &str, payload: Vec<u8>) -> BoxFuture<'static, Answer> {
        let answer = match op {
            "execute" => return self.execute(&payload),
            "initialize" | "shutdown" => Ok(json(&json!({}))),
            "capabilities" => Ok(json(&profile())),
            "health" => Ok(json(&Health::healthy())),
            "cancel" => Ok(json(&json!({ "cancelled": self.running.cancel(&payload) }))),
            _ => Err(AdapterError::new(
                "unsupported_op",
                format!("provider {ID} has no {op}"),
            )),
        };
        ready(answer).boxed()
    }
}

impl Running {
    fn begin(&self, execution: &str) -> CancellationToken {
        let cancelled = CancellationToken::new();
        self.lock().insert(execution.to_owned(), cancelled.clone());
        cancelled
    }

    /// True if the execution that the payload names was running.
    fn cancel(&self, payload: &[u8]) -> bool {
        let payload: Value = serde_json::from_slice(payload).unwrap_or_default();
        let execution = payload["executionId"].as_str().unwrap_or_default();
        let running = self.lock().remove(execution);
        running.inspect(CancellationToken::cancel).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Running call, until it ends or is dropped.
struct Listed {
    running: Arc<Running>,
    execution: String,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.running.lock().remove(&self.execution);
    }
}

fn profile() -> Profile {
    Profile {
        // A call is resumed by making it again with its key; calls with one session id are made one after another.
        capabilities: ["structured_output", "session_resume"]
            .map(str::to_owned)
            .to_vec(),
        native_tools: Vec::new(),
        max_concurrent: MAX_CONCURRENT,
        output_strategies: vec![OutputStrategy::Stream, OutputStrategy::Structured],
        options: Vec::new(),
        cost_tier: CostTier::Low,
        latency_profile: LatencyProfile::Variable,
    }
}

fn result(answered: Answered) -> ExecutionResult {
    if answered.outcome == Outcome::Done {
        return ExecutionResult {
            structured_output: answered.result,
            ..ExecutionResult::default()
        };
    }
    let details = json!({ "diagnostics": answered.diagnostics, "traceId": answered.trace_id });
    let last = answered.diagnostics.last();
    let text = |key| last.and_then(|last| last[key].as_str()).unwrap_or_default();
    let code = match answered.outcome {
        Outcome::Denied => "blocked_by_policy",
        Outcome::TimedOut => "timeout",
        Outcome::Done | Outcome::Refused | Outcome::Failed | Outcome::Unavailable(_) => {
            text("code")
        }
    };
    ExecutionResult {
        details: Some(details),
        retryable: Some(matches!(
            answered.outcome,
            Outcome::TimedOut | Outcome::Unavailable(_)
        )),
        ..ExecutionResult::error(code, text("message"))
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("the answer has only text keys")
}
