//! Tools in a sandbox of the gateway: its `ssh` backend with a program that runs its command in a mount namespace.

use std::path::PathBuf;

use forge_adapter_api::{ExecutionAdapter as _, ExecutionRequest};
use forge_adapter_openclaw::OpenClaw;
use forge_test_support::execution::run;
use forge_test_support::instance::initialize;
use serde_json::json;

use crate::bench::{self, Bench, asked, planted, request, until};

/// Reads the planted file and leaves another beside it.
fn reads(id: &str) -> ExecutionRequest {
    let file = planted();
    let command = format!("cat {0}; touch {0}.{id}", file.display());
    let call = json!({ "command": command });
    request(&format!("dsp_box_{id}"), &format!("CALL exec {call}"))
}

fn ran_on_the_host(id: &str) -> bool {
    PathBuf::from(format!("{}.{id}", planted().display())).exists()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_hides_the_host_and_without_one_nothing_runs() {
    let bench = Bench::new().await;
    let by = |agent: &str| ExecutionRequest {
        agent_id: agent.to_owned(),
        ..reads(agent)
    };
    let boxed = bench.run(by("boxed")).await;
    let output = boxed.succeeded();
    assert!(output.contains("No such file"), "{output}");
    let open = bench.run(by("main")).await;
    assert!(open.succeeded().contains("planted"), "{:?}", open.result);
    let none = bench.run(by("dockerless")).await;
    none.failed("sandbox_unavailable");
    let hosts = ["boxed", "main", "dockerless"].map(ran_on_the_host);
    assert_eq!(hosts, [false, true, false]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxing_is_declared_and_kept_while_the_gateway_has_it_on() {
    let (server, _alone) = bench::alone().await;
    let adapter: OpenClaw = initialize(bench::config(server.url())).await;
    let is_declared = || adapter.capabilities().supports("sandboxing");
    let switch = |mode: &str| {
        let change = json!({"agents": {"defaults": {"sandbox": {"mode": mode}}}});
        server.set(&change.to_string());
    };
    let requires = |id: &str| ExecutionRequest {
        requires: vec!["sandboxing".to_owned()],
        ..reads(id)
    };
    run(&adapter, requires("off"))
        .await
        .failed_with("sandbox_unavailable", "mode to `all`");
    switch("all");
    until("sandboxing", async || {
        adapter.check_health().await;
        is_declared().then_some(())
    })
    .await;
    let on = run(&adapter, requires("on")).await;
    assert!(on.succeeded().contains("No such file"), "{:?}", on.result);
    switch("off");
    // No health check in between: the execution itself finds out.
    let refused = until("the refusal", async || {
        let ran = run(&adapter, requires("off")).await;
        (ran.result.error_code.is_some()).then_some(ran)
    })
    .await;
    refused.failed("sandbox_unavailable");
    assert!(!is_declared());
    assert!(!["off", "on"].into_iter().any(ran_on_the_host));
    assert!(
        asked("planted.txt.off").len() <= 2,
        "none but in the sandbox"
    );
}
