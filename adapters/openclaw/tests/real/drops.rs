//! Connections that end during a run, and a gateway that is killed.

use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::{ExecutionAdapter as _, HealthStatus};
use forge_test_support::execution::{run, run_until};
use forge_test_support::instance::initialize;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::bench::{self, Bench, asked, request, until, used};

/// A proxy before the gateway; returns its address. Each notification ends all connections.
async fn proxy(server: &str) -> (String, Arc<Notify>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let target = server.strip_prefix("http://").unwrap().to_owned();
    let cut = Arc::new(Notify::new());
    let cuts = Arc::clone(&cut);
    #[expect(
        clippy::disallowed_methods,
        reason = "a test server ends with its runtime"
    )]
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let (target, cuts) = (target.clone(), Arc::clone(&cuts));
            tokio::spawn(async move {
                let mut server = TcpStream::connect(target).await.unwrap();
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut server) => {}
                    () = cuts.notified() => {}
                }
            });
        }
    });
    (url, cut)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_without_its_connection_and_its_end_is_fetched() {
    let bench = Bench::new().await;
    let (url, cut) = proxy(bench.server.url()).await;
    let adapter: forge_adapter_openclaw::OpenClaw = initialize(bench::config(&url)).await;
    let command = r#"CALL exec {"command": "echo dropped; sleep 2"}"#;
    let ran = run_until(
        &adapter,
        request("dsp_cut", command),
        "tool.invoked",
        async || {
            cut.notify_waiters();
        },
    )
    .await;
    assert!(ran.succeeded().contains("dropped"), "{:?}", ran.result);
    used(&ran, 2);
    assert_eq!(ran.result.model.as_deref(), Some("fake-1"));
    assert_eq!(asked("echo dropped").len(), 2, "one run of two calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_gateway_is_offline_and_works_after_its_start() {
    let (server, _alone) = bench::alone().await;
    let adapter: forge_adapter_openclaw::OpenClaw = initialize(bench::config(server.url())).await;
    let first = run(&adapter, request("dsp_before", "my word is cherry")).await;
    first.succeeded();
    let killed = run_until(
        &adapter,
        request("dsp_killed", "SLOW kill"),
        "assistant.text",
        async || {
            server.kill();
            until("offline", async || {
                let health = adapter.check_health().await;
                (health.status == HealthStatus::Offline).then_some(())
            })
            .await;
            tokio::task::spawn_blocking(|| server.start_again())
                .await
                .unwrap();
        },
    );
    let killed = tokio::time::timeout(Duration::from_secs(60), killed)
        .await
        .unwrap();
    killed.failed("upstream_error");
    assert_eq!(killed.result.retryable, Some(true));
    assert_eq!(adapter.check_health().await.status, HealthStatus::Healthy);
    let mut second = request("dsp_after", "what was it after the start");
    second.session_id.clone_from(&first.result.session_id);
    run(&adapter, second).await.succeeded();
    let sent = asked("after the start").pop().unwrap().body.to_string();
    assert!(sent.contains("my word is cherry"));
}
