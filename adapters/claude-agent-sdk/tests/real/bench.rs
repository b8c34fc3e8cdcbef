//! Test setup: an adapter, a fake model, and a home directory for the program.

use std::path::Path;

use forge_adapter_api::{
    AdapterEvent, Config, Events, ExecutionAdapter as _, ExecutionRequest, ExecutionResult, Host,
    Status,
};
use forge_adapter_claude_agent_sdk::ClaudeAgentSdk;
use forge_test_model::Model;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Cost that the program reports for one call of the fake model, in US dollars, by the model's list price.
pub(crate) const CALL_COST: f64 = 0.000_268_35;
/// Tokens of one model call: 25 uncached, 7 read from the cache, 3 written to it; 12 of output.
pub(crate) const CALL_INPUT: u64 = 35;
pub(crate) const CALL_OUTPUT: u64 = 12;

pub(crate) struct Bench {
    pub(crate) model: Model,
    pub(crate) adapter: ClaudeAgentSdk,
    pub(crate) workspace: TempDir,
    _home: TempDir,
}

pub(crate) struct Ran {
    pub(crate) result: ExecutionResult,
    pub(crate) events: Vec<AdapterEvent>,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(json!({})).await
    }

    /// Sets up an adapter with these members in its table.
    pub(crate) async fn with(table: Value) -> Self {
        let model = Model::start().await;
        let home = tempfile::tempdir().unwrap();
        let mut config = config(model.url(), home.path());
        let members = table.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(members);
        let config = Config::try_from(config).unwrap();
        Self {
            adapter: ClaudeAgentSdk::initialize(Host::detached(), config)
                .await
                .unwrap(),
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

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Ran {
        self.run_until(request, "", async || {}).await
    }

    pub(crate) async fn say(&self, message: &str) -> Ran {
        self.run(self.request(message)).await
    }

    /// Runs a request, and `act` beside it from the first event of this kind on.
    pub(crate) async fn run_until(
        &self,
        request: ExecutionRequest,
        kind: &str,
        act: impl AsyncFnOnce(),
    ) -> Ran {
        let (events, mut received) = Events::channel(10_000);
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
                    // The receiver is gone if the execution has already ended.
                    let _ = begin.send(());
                }
                seen.push(event);
            }
            seen
        };
        let execution = self.adapter.execute(request, events);
        let (result, events, ()) = tokio::join!(execution, collecting, acting);
        Ran {
            result: result.unwrap(),
            events,
        }
    }
}

impl Ran {
    /// Asserts that the execution failed with this code.
    #[track_caller]
    pub(crate) fn failed(&self, code: &str) {
        assert_eq!(
            self.result.error_code.as_deref(),
            Some(code),
            "{:?}",
            self.result
        );
        assert_eq!(self.result.status, Status::Error);
        assert!(
            self.result
                .error
                .as_deref()
                .is_some_and(|text| !text.is_empty())
        );
    }

    #[track_caller]
    pub(crate) fn succeeded(&self) {
        assert_eq!(self.result.status, Status::Ok, "{:?}", self.result);
        assert_eq!(self.result.error_code, None);
    }

    /// Asserts usage of exactly this number of model calls.
    #[track_caller]
    pub(crate) fn used(&self, calls: u64) {
        let usage = &self.result.usage;
        assert_eq!(
            (usage.input_tokens, usage.output_tokens, usage.total_tokens),
            (
                Some(calls * CALL_INPUT),
                Some(calls * CALL_OUTPUT),
                Some(calls * (CALL_INPUT + CALL_OUTPUT))
            )
        );
        #[expect(clippy::cast_precision_loss, reason = "a handful of calls")]
        let wanted = calls as f64 * CALL_COST;
        let cost = self.result.cost_usd.expect("the cost is known");
        assert!((cost - wanted).abs() < 1e-9, "{cost} is not {wanted}");
    }

    pub(crate) fn output(&self) -> &str {
        self.result.output.as_deref().unwrap_or_default()
    }

    pub(crate) fn all(&self, kind: &str) -> Vec<&Value> {
        self.events
            .iter()
            .filter(|event| event.kind == kind)
            .map(|event| event.data.as_ref().unwrap())
            .collect()
    }

    /// The deltas of this kind joined, without those of subagents.
    pub(crate) fn text(&self, kind: &str) -> String {
        self.all(kind)
            .into_iter()
            .filter(|data| data.get("parentToolCallId").is_none())
            .map(|data| data["delta"].as_str().unwrap())
            .collect()
    }
}

pub(crate) fn config(model: &str, home: &Path) -> Value {
    json!({
        "program": forge_test_runtimes::claude(),
        "HOME": home, "CLAUDE_CONFIG_DIR": home.join(".claude"),
        "ANTHROPIC_BASE_URL": model, "ANTHROPIC_API_KEY": "fake",
        "CLAUDE_CODE_MAX_RETRIES": "1",
    })
}
