//! Test bench: one adapter with one program.

use forge_adapter_api::ExecutionRequest;
use forge_adapter_command::Command;
use forge_test_support::execution::{Execution, run};
use forge_test_support::instance::initialize;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) struct Bench {
    pub(crate) adapter: Command,
    pub(crate) workspace: TempDir,
}

impl Bench {
    pub(crate) async fn new(table: Value) -> Self {
        Self {
            adapter: initialize(table).await,
            workspace: tempfile::tempdir().unwrap(),
        }
    }

    /// A bench with a shell script; its arguments are the rest of the table's `args`.
    pub(crate) async fn sh(script: &str, mut table: Value) -> Self {
        let mut args = vec![json!("-c"), json!(script.replace('{', "{{")), json!("sh")];
        args.extend(table["args"].as_array().cloned().unwrap_or_default());
        table["program"] = "sh".into();
        table["args"] = args.into();
        Self::new(table).await
    }

    pub(crate) fn request(&self, message: &str) -> ExecutionRequest {
        let mut request = ExecutionRequest::sample(message);
        request.workspace = serde_json::from_value(json!({"dir": self.workspace.path()})).unwrap();
        request
    }

    pub(crate) async fn say(&self, message: &str) -> Execution {
        self.run(self.request(message)).await
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Execution {
        run(&self.adapter, request).await
    }
}
