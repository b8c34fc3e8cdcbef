//! Test bench: one adapter with one program.

use std::time::Duration;

use forge_adapter_api::{
    AdapterEvent, Config, Events, ExecutionAdapter as _, ExecutionRequest, ExecutionResult, Host,
    Status,
};
use forge_adapter_command::Command;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;

pub(crate) struct Bench {
    pub(crate) adapter: Command,
    pub(crate) workspace: TempDir,
}

pub(crate) struct Ran {
    pub(crate) result: ExecutionResult,
    pub(crate) events: Vec<AdapterEvent>,
}

impl Bench {
    pub(crate) async fn new(table: Value) -> Self {
        let config = Config::try_from(table).unwrap();
        Self {
            adapter: Command::initialize(Host::detached(), config).await.unwrap(),
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

    pub(crate) async fn say(&self, message: &str) -> Ran {
        self.run(self.request(message)).await
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Ran {
        self.run_until(request, "", async || {}).await
    }

    /// Runs a request, and `act` concurrently from the first event of this kind.
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
                    // `act` is skipped when the execution has already ended.
                    let _ = begin.send(());
                }
                seen.push(event);
            }
            seen
        };
        let execution = self.adapter.execute(request, events);
        let (result, events, ()) = tokio::join!(execution, collecting, acting);
        let result = result.unwrap_or_else(|error| ExecutionResult {
            retryable: Some(error.retryable),
            ..ExecutionResult::error(error.code, error.message)
        });
        Ran { result, events }
    }
}

impl Ran {
    #[track_caller]
    pub(crate) fn succeeded(&self) -> &str {
        assert_eq!(self.result.status, Status::Ok, "{:?}", self.result);
        self.result.output.as_deref().unwrap_or_default()
    }

    /// Asserts that the run failed with this code; returns the error text.
    #[track_caller]
    pub(crate) fn failed(&self, code: &str) -> &str {
        assert_eq!(
            self.result.error_code.as_deref(),
            Some(code),
            "{:?}",
            self.result
        );
        self.result.error.as_deref().unwrap()
    }

    pub(crate) fn all(&self, kind: &str) -> Vec<&Value> {
        let events = self.events.iter().filter(|event| event.kind == kind);
        events.map(|event| event.data.as_ref().unwrap()).collect()
    }

    pub(crate) fn text(&self) -> String {
        let deltas = self.all("assistant.text").into_iter();
        deltas.map(|data| data["delta"].as_str().unwrap()).collect()
    }
}

pub(crate) async fn until(condition: impl Fn() -> bool) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(tokio::time::Instant::now() < limit, "it never happened");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
