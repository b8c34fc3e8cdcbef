//! A management server that does not start, dies, or refuses the token.

use std::fs::{self, Permissions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use forge_adapter_api::manage::{AgentManager, SystemManager as _};
use forge_adapter_api::{ExecutionAdapter as _, HealthStatus};
use forge_adapter_hermes_agent::HermesAgent;
use forge_test_support::deadline::until_some;
use forge_test_support::instance::{initialize, with_members};
use forge_test_support::process;
use serde_json::{Value, json};

use crate::bench::{self, Bench};

#[tokio::test]
async fn a_server_that_does_not_start_is_told_and_the_health_names_it() {
    for (program, said, shown) in [
        (
            "/bin/false",
            "`hermes serve` ended (exit status: 1)",
            "`hermes serve`",
        ),
        ("/nowhere/hermes", "pip install", "pip install"),
    ] {
        let bench = Bench::with(json!({"program": program})).await;
        let error = AgentManager::list(&bench.adapter).await.unwrap_err();
        assert_eq!(error.code, "adapter_unavailable", "{error:?}");
        assert!(error.message.contains(said), "{error:?}");
        let health = bench.adapter.check_health().await;
        assert!(health.message.unwrap().contains(shown), "{program}");
    }
}

#[tokio::test]
async fn a_server_that_dies_is_started_again_and_ends_with_the_adapter() {
    let bench = Bench::with(json!({})).await;
    AgentManager::list(&bench.adapter).await.unwrap();
    let servers = || servers_of(bench.home.path());
    let [first] = &servers()[..] else {
        panic!("not one server: {:?}", servers());
    };

    // A stopped server takes the call and does not answer it.
    let stopped = Command::new("kill").args(["-STOP", first]).status();
    assert!(stopped.unwrap().success());
    let (met, killed) = tokio::join!(AgentManager::list(&bench.adapter), async {
        process::kill(first)
    });
    assert!(killed);
    let error = met.unwrap_err();
    assert_eq!(
        (&*error.code, error.retryable),
        ("adapter_unavailable", true)
    );
    assert!(error.message.contains("hermes serve"), "{error:?}");
    // A call can meet the end before the adapter does.
    let listed = async || AgentManager::list(&bench.adapter).await.ok();
    until_some("another server", listed).await;
    let health = bench.adapter.check_health().await;
    assert_eq!(
        (health.status, health.message),
        (HealthStatus::Healthy, None)
    );
    assert!(!servers().contains(first));

    bench.adapter.shutdown().await.unwrap();
    assert_eq!(servers(), [""; 0]);
}

#[tokio::test]
async fn a_server_that_refuses_the_token_is_told_and_that_of_the_operator_is_used_with_its_own() {
    let home = tempfile::tempdir().unwrap();
    let config = bench::config("http://127.0.0.1:9", home.path());
    let (server, url) = serve(home.path(), "the-operators-token");
    let at = |token: &str| json!({"management_url": url, "management_token": token});

    // A server that is started, whose port is that of another one.
    let program = home.path().join("hermes");
    let port = url.rsplit_once(':').unwrap().1;
    let script = format!("#!/bin/sh\necho HERMES_BACKEND_READY port={port}\nexec sleep 1000\n");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
    let with = async |table: Value| -> HermesAgent {
        initialize(with_members(config.clone(), &table)).await
    };
    for (table, advice) in [
        (at("another-token"), true),
        (json!({ "program": program }), false),
    ] {
        let adapter = with(table).await;
        let error = AgentManager::list(&adapter).await.unwrap_err();
        assert_eq!(error.code, "unauthenticated");
        assert!(
            error.message.contains("refused the token (401 "),
            "{error:?}"
        );
        assert_eq!(
            error.message.contains("management_token"),
            advice,
            "{error:?}"
        );
        assert!(!error.message.contains("another-token"), "{error:?}");
        adapter.shutdown().await.unwrap();
    }

    let adapter = with(at("the-operators-token")).await;
    assert_eq!(AgentManager::list(&adapter).await.unwrap().len(), 1);
    assert_eq!(
        adapter.list_models().await.unwrap()[0].model_id,
        "custom:fake-1"
    );
    assert_eq!(servers_of(home.path()), [server.0.id().to_string()]);
    adapter.shutdown().await.unwrap();
    assert!(
        process::exists(&server.0.id().to_string()),
        "it is not the adapter's"
    );
}

/// A process that is killed with the test. Its output stays open: the server ends when it cannot write.
struct Server(Child, BufReader<ChildStdout>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts a server as an operator does; returns it with its address.
fn serve(home: &Path, token: &str) -> (Server, String) {
    let mut child = Command::new(forge_test_runtimes::hermes())
        .args(["serve", "--port", "0", "--skip-build"])
        .envs([("HOME", home), ("HERMES_HOME", home)])
        .env("HERMES_DASHBOARD_SESSION_TOKEN", token)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut server = Server(child, output);
    let mut line = String::new();
    while !line.starts_with("HERMES_BACKEND_READY") {
        line.clear();
        assert_ne!(server.1.read_line(&mut line).unwrap(), 0, "it ended");
    }
    let port = line.trim().rsplit_once('=').unwrap().1;
    let url = format!("http://127.0.0.1:{port}");
    (server, url)
}

/// Ids of the processes that serve the management of this home.
fn servers_of(home: &Path) -> Vec<String> {
    let mark = format!("HERMES_HOME={}", home.display());
    let holds = |path: &Path, word: &str| {
        let text = fs::read(path).unwrap_or_default();
        text.split(|byte| *byte == 0)
            .any(|part| part == word.as_bytes())
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| holds(&entry.path().join("environ"), &mark))
        .filter(|entry| holds(&entry.path().join("cmdline"), "--skip-build"))
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}
