//! Test setup: an adapter, a fake model, and a home directory for the program.

use std::path::Path;

use forge_adapter_api::ExecutionRequest;
use forge_adapter_claude_agent_sdk::ClaudeAgentSdk;
use forge_test_model::Model;
use forge_test_support::execution::{Execution, record};
use forge_test_support::instance::{initialize, with_members};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Cost that the program reports for one call of the fake model, in US dollars, by the model's list price.
const CALL_COST: f64 = 0.000_268_35;
/// Tokens of one model call: 25 uncached, 7 read from the cache, 3 written to it; 12 of output.
pub(crate) const CALL_INPUT: u64 = 35;
pub(crate) const CALL_OUTPUT: u64 = 12;

pub(crate) struct Bench {
    pub(crate) model: Model,
    pub(crate) adapter: ClaudeAgentSdk,
    pub(crate) workspace: TempDir,
    _home: TempDir,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(json!({})).await
    }

    /// Sets up an adapter with these members in its table.
    pub(crate) async fn with(table: Value) -> Self {
        let model = Model::start().await;
        let home = tempfile::tempdir().unwrap();
        let config = config(model.url(), home.path());
        Self {
            adapter: initialize(with_members(config, &table)).await,
            model,
            workspace: tempfile::tempdir().unwrap(),
            _home: home,
        }
    }

    pub(crate) fn request(&self, message: &str) -> ExecutionRequest {
        serde_json::from_value(json!({
            "executionId": "dsp_1/1", "taskId": "task-1", "agentId": "agent-1", "attempt": 1,
            "message": message, "model": "claude-sonnet-4-5", "timeoutSeconds": 60.0,
            "outputStrategy": "stream", "workspace": {"dir": self.workspace.path()},
        }))
        .unwrap()
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Execution {
        self.run_until(request, "", async || {}).await
    }

    pub(crate) async fn say(&self, message: &str) -> Execution {
        self.run(self.request(message)).await
    }

    /// Runs a request that must have a result, and `act` beside it from the first event of this kind on.
    pub(crate) async fn run_until(
        &self,
        request: ExecutionRequest,
        kind: &str,
        act: impl AsyncFnOnce(),
    ) -> Execution {
        let (result, events) = record(&self.adapter, request, kind, act).await;
        Execution {
            result: result.unwrap(),
            events,
        }
    }
}

/// Asserts usage and cost of exactly this number of model calls.
#[track_caller]
pub(crate) fn used(ran: &Execution, calls: u64) {
    ran.used(calls, (CALL_INPUT, CALL_OUTPUT));
    #[expect(clippy::cast_precision_loss, reason = "a handful of calls")]
    let wanted = calls as f64 * CALL_COST;
    let cost = ran.result.cost_usd.expect("the cost is known");
    assert!((cost - wanted).abs() < 1e-9, "{cost} is not {wanted}");
}

pub(crate) fn config(model: &str, home: &Path) -> Value {
    json!({
        "program": forge_test_runtimes::claude(),
        "HOME": home, "CLAUDE_CONFIG_DIR": home.join(".claude"),
        "ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "fake",
        "CLAUDE_CODE_MAX_RETRIES": "1",
    })
}
