//! A real server: the API of the Hermes agent, with the fake model behind it.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forge_adapter_api::{ExecutionAdapter as _, ExecutionRequest, HealthStatus};
use forge_adapter_openai_compatible::OpenAiCompatible;
use forge_test_model::Model;
use forge_test_support::execution::{run, run_until};
use serde_json::json;
use tempfile::TempDir;

use crate::bench::adapter;

const KEY: &str = "a-key-of-at-least-16-characters";
const PATIENCE: Duration = Duration::from_secs(90);

/// A gateway and all its processes.
struct Gateway {
    program: Option<Child>,
    _home: TempDir,
    port: u16,
}

impl Gateway {
    fn start(model: &Model) -> Self {
        let home = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let config = format!(
            "model:\n  default: fake-1\n  provider: custom\n  base_url: {}/v1\n  api_key: x\n  \
             context_length: 128000\nterminal:\n  backend: local\n  cwd: {}\n",
            model.url(),
            home.path().display(),
        );
        std::fs::write(home.path().join("config.yaml"), config).unwrap();
        let program = Command::new(forge_test_runtimes::hermes())
            .args(["gateway", "run"])
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .env("HOME", home.path())
            .env("HERMES_HOME", home.path())
            .env("API_SERVER_ENABLED", "true")
            .env("API_SERVER_KEY", KEY)
            .env("API_SERVER_PORT", port.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        Self {
            program: Some(program),
            _home: home,
            port,
        }
    }

    fn kill(&mut self) {
        if let Some(mut program) = self.program.take() {
            let group = format!("-{}", program.id());
            let status = Command::new("kill").args(["-KILL", "--", &group]).status();
            assert!(status.unwrap().success());
            program.wait().unwrap();
        }
    }

    async fn adapter(&self) -> OpenAiCompatible {
        let url = format!("http://127.0.0.1:{}/v1", self.port);
        let adapter = adapter(json!({"base_url": url, "api_key": KEY})).await;
        until(&adapter, HealthStatus::Healthy).await;
        adapter
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn until(adapter: &OpenAiCompatible, wanted: HealthStatus) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let health = adapter.check_health().await;
        if health.status == wanted {
            return;
        }
        assert!(Instant::now() < deadline, "{health:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_behind_the_protocol_answers_is_cancelled_and_is_missed() {
    let model = Model::start().await;
    let mut gateway = Gateway::start(&model);
    let adapter = gateway.adapter().await;

    let ran = run(&adapter, ExecutionRequest::sample("hello hermes")).await;
    ran.succeeded();
    assert!(ran.output().contains("hello hermes"), "{}", ran.output());
    assert_eq!(ran.text(), ran.output());
    assert_eq!(ran.result.usage.total_tokens, Some(40), "{:?}", ran.result);

    let mut next = ExecutionRequest::sample("and again");
    next.session_id.clone_from(&ran.result.session_id);
    run(&adapter, next).await.succeeded();
    let said = model
        .requests()
        .into_iter()
        .map(|request| request.body["messages"].to_string());
    let both = |text: String| text.contains("hello hermes") && text.contains("and again");
    assert!(
        said.into_iter().any(both),
        "the model received the earlier messages"
    );

    let slow = ExecutionRequest::sample("SLOW please");
    let ran = run_until(&adapter, slow.clone(), "assistant.text", async || {
        assert!(adapter.cancel("task-sample").await.unwrap());
    })
    .await;
    ran.failed_with("cancelled", "cancelled");

    let ran = run_until(&adapter, slow, "assistant.text", async || gateway.kill()).await;
    ran.failed("upstream_error");
    until(&adapter, HealthStatus::Offline).await;
}
