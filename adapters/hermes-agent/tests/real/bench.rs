//! Test setup: the adapter, Hermes with a home directory of its own, and a fake model.

use std::path::Path;

use forge_adapter_api::ExecutionRequest;
use forge_adapter_hermes_agent::HermesAgent;
use forge_test_model::Model;
use forge_test_support::execution::{Execution, run};
use forge_test_support::instance::{initialize, with_members};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) struct Bench {
    pub(crate) model: Model,
    pub(crate) adapter: HermesAgent,
    pub(crate) home: TempDir,
    pub(crate) workspace: TempDir,
}

/// The adapter's table; writes the settings of Hermes to its home directory.
pub(crate) fn config(model: &str, home: &Path) -> Value {
    let file = format!(
        "model: {{default: fake-1, provider: custom, base_url: '{model}/v1', api_key: fake, context_length: 128000}}\n\
         agent: {{api_max_retries: 1}}\nterminal: {{backend: local}}\n"
    );
    std::fs::write(home.join("config.yaml"), file).unwrap();
    json!({
        "program": forge_test_runtimes::hermes(), "env": {"HOME": home, "HERMES_HOME": home},
    })
}

impl Bench {
    /// Sets up an adapter with these members in its table.
    pub(crate) async fn with(table: Value) -> Self {
        let model = Model::start().await;
        let home = tempfile::tempdir().unwrap();
        let config = with_members(config(model.url(), home.path()), &table);
        Self {
            adapter: initialize(config).await,
            model,
            home,
            workspace: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn request(&self, agent: &str, message: &str) -> ExecutionRequest {
        let dir = self.workspace.path().canonicalize().unwrap();
        serde_json::from_value(json!({
            "executionId": "dsp_1/1", "taskId": "task-1", "agentId": agent, "attempt": 1,
            "message": message, "timeoutSeconds": 60.0, "outputStrategy": "stream",
            "workspace": {"dir": dir},
        }))
        .unwrap()
    }

    pub(crate) async fn say(&self, agent: &str, message: &str) -> Execution {
        run(&self.adapter, self.request(agent, message)).await
    }

    /// The last model request of a run; requests for titles and the like have no tools.
    pub(crate) fn asked_last(&self) -> Value {
        let requests = self.model.requests();
        let mut of_run = requests.iter().rev().map(|request| &request.body);
        of_run
            .find(|body| body["tools"].is_array())
            .unwrap()
            .clone()
    }
}
