//! A real proxy: LiteLLM, with the fake model behind it.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forge_adapter_api::{ExecutionAdapter as _, ExecutionRequest, HealthStatus};
use forge_adapter_openai_compatible::OpenAiCompatible;
use forge_test_model::Model;
use forge_test_support::attachment::attached;
use forge_test_support::execution::run;
use forge_test_support::tool::find;
use serde_json::json;
use tempfile::TempDir;

use crate::bench::adapter;

const KEY: &str = "sk-of-the-proxy";
const PATIENCE: Duration = Duration::from_secs(120);

/// A running proxy; killed on drop.
struct Proxy {
    program: Child,
    _home: TempDir,
    url: String,
}

impl Proxy {
    /// Starts a proxy and waits until it answers. `behind` is the address of the model.
    async fn start(behind: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let config = format!(
            "model_list:\n- model_name: fake-1\n  litellm_params:\n    model: openai/fake-1\n    \
             api_base: {behind}/v1\n    api_key: sk-behind\n    max_retries: 0\n\
             router_settings:\n  num_retries: 0\n  disable_cooldowns: true\n\
             general_settings:\n  master_key: {KEY}\n",
        );
        let file = home.path().join("config.yaml");
        std::fs::write(&file, config).unwrap();
        let program = Command::new(forge_test_runtimes::litellm())
            .args([
                "--host",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--config",
            ])
            .arg(&file)
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .env("HOME", home.path())
            // The list of prices in the package; a newer one would be downloaded.
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let proxy = Self {
            program,
            _home: home,
            url: format!("http://127.0.0.1:{port}/v1"),
        };
        let adapter = proxy.adapter(KEY).await;
        let deadline = Instant::now() + PATIENCE;
        while adapter.check_health().await.status != HealthStatus::Healthy {
            assert!(
                Instant::now() < deadline,
                "{:?}",
                adapter.check_health().await
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        proxy
    }

    async fn adapter(&self, key: &str) -> OpenAiCompatible {
        adapter(json!({"base_url": self.url, "api_key": key, "model": "fake-1"})).await
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let group = format!("-{}", self.program.id());
        let status = Command::new("kill").args(["-KILL", "--", &group]).status();
        assert!(status.unwrap().success());
        self.program.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_passes_on_answers_refusals_and_waits() {
    let model = Model::start().await;
    let proxy = Proxy::start(model.url()).await;
    let adapter = proxy.adapter(KEY).await;
    answers(&adapter, &model).await;
    refusals(&adapter, &model).await;

    let asked = model.requests().len();
    let wrong = proxy.adapter("sk-wrong").await;
    let ran = run(&wrong, ExecutionRequest::sample("hello")).await;
    ran.failed("unauthenticated");
    assert!(ran.all("model.retrying").is_empty());
    assert_eq!(model.requests().len(), asked);
}

/// Text, a thought, a tool call and its result, and a picture.
async fn answers(adapter: &OpenAiCompatible, model: &Model) {
    let ran = run(adapter, ExecutionRequest::sample("THINK of the proxy")).await;
    assert_eq!(ran.succeeded(), "pong: THINK of the proxy");
    assert_eq!(ran.text(), ran.output());
    assert!(ran.all("assistant.text").len() > 1, "it is streamed");
    assert_eq!(ran.deltas("assistant.thinking"), "a fake thought");
    ran.used(1, (31, 9));
    assert_eq!(ran.result.usage.cache_read_tokens, Some(5));

    let mut request = ExecutionRequest::sample("CALL find {\"who\": \"bob\"}");
    request.tools = vec![find("find")];
    let ran = run(adapter, request.clone()).await;
    ran.succeeded();
    assert_eq!(ran.result.tool_calls[0].input, json!({"who": "bob"}));
    request.session_id.clone_from(&ran.result.session_id);
    request.tool_results = ran.tool_results(&json!("id 7"));
    "and now?".clone_into(&mut request.message);
    let ran = run(adapter, request).await;
    assert_eq!(ran.succeeded(), "pong: and now?");
    let told = model.requests().pop().unwrap().body["messages"].to_string();
    assert!(told.contains("id 7"), "{told}");

    let folder = tempfile::tempdir().unwrap();
    let mut request = ExecutionRequest::sample("look");
    request.attachments = vec![attached(folder.path(), "a.png", "image/png", b"abc")];
    run(adapter, request).await.succeeded();
    let seen = model.requests().pop().unwrap().body["messages"].to_string();
    assert!(seen.contains("data:image/png;base64,YWJj"), "{seen}");
}

/// Failures of the model behind the proxy, which does not repeat requests itself.
async fn refusals(adapter: &OpenAiCompatible, model: &Model) {
    for (message, reason) in [
        ("FAILONCE429 RETRYAFTER1", "rate_limited"),
        ("FAILONCE503 RETRYAFTER1", "overloaded"),
        ("FAILONCE529 RETRYAFTER1", "overloaded"),
    ] {
        let asked = model.requests().len();
        let ran = run(adapter, ExecutionRequest::sample(message)).await;
        ran.succeeded();
        let retries = ran.all("model.retrying");
        assert_eq!(retries.len(), 1, "{message}");
        let told = (&retries[0]["reason"], &retries[0]["delayMs"]);
        assert_eq!(told, (&json!(reason), &json!(1_000)), "{message}");
        assert_eq!(model.requests().len() - asked, 2, "{message}");
    }
    for (message, code) in [
        ("FAIL401", "unauthenticated"),
        ("FAIL403", "unauthenticated"),
        ("FAIL400", "invalid_request"),
    ] {
        let asked = model.requests().len();
        let ran = run(adapter, ExecutionRequest::sample(message)).await;
        ran.failed_with(code, "fake failure");
        assert!(ran.all("model.retrying").is_empty(), "{message}");
        assert_eq!(model.requests().len() - asked, 1, "{message}");
    }
    let ran = run(adapter, ExecutionRequest::sample("CUTOFF in the middle")).await;
    ran.failed("upstream_error");
    assert!(ran.output().starts_with("pong: "), "{}", ran.output());
}
