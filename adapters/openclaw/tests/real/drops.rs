//! Connections that end during a run, and a gateway that is killed.

use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::{ExecutionAdapter as _, ExecutionRequest, HealthStatus};
use forge_adapter_openclaw::OpenClaw;
use forge_test_support::execution::{run, run_until};
use forge_test_support::instance::initialize;
use tokio::io::{AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::bench::{self, Bench, asked, request, until, used};

/// Close frame of a gateway that stops.
const CLOSE_1012: &[u8] = b"\x88\x11\x03\xf4service restart";

/// A proxy before the gateway; returns its address. Each notification ends all connections, with these last bytes.
async fn proxy(server: &str, last: &'static [u8]) -> (String, Arc<Notify>) {
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
                    () = cuts.notified() => client.write_all(last).await.unwrap(),
                }
            });
        }
    });
    (url, cut)
}

/// Asserts that one run of two calls of the model survives such an end of its connection.
async fn survives(bench: &Bench, id: &str, last: &'static [u8]) {
    let (url, cut) = proxy(bench.server.url(), last).await;
    let adapter: OpenClaw = initialize(bench::config(&url)).await;
    let command = format!(r#"CALL exec {{"command": "echo {id}; sleep 2"}}"#);
    let ran = run_until(
        &adapter,
        request(id, &command),
        "tool.invoked",
        async || {
            cut.notify_waiters();
        },
    )
    .await;
    assert!(ran.succeeded().contains(id), "{:?}", ran.result);
    used(&ran, 2);
    assert_eq!(ran.result.model.as_deref(), Some("fake-1"));
    assert_eq!(
        asked(&format!("echo {id}")).len(),
        2,
        "one run of two calls"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_without_its_connection_and_its_end_is_fetched() {
    let bench = Bench::new().await;
    tokio::join!(
        survives(&bench, "dsp_cut", b""),
        survives(&bench, "dsp_1012", CLOSE_1012)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_gateway_is_offline_then_continues_its_run_and_sessions() {
    let (server, _alone) = bench::alone().await;
    let adapter: OpenClaw = initialize(bench::config(server.url())).await;
    let first = run(&adapter, request("dsp_before", "my word is cherry")).await;
    first.succeeded();
    let command = r#"CALL exec {"command": "echo begun >> killed.txt; sleep 60"}"#;
    let file = server.workspace().join("killed.txt");
    let killed = run_until(
        &adapter,
        request("dsp_killed", command),
        "tool.invoked",
        async || {
            until("the tool", async || file.exists().then_some(())).await;
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
    let killed = tokio::time::timeout(Duration::from_secs(240), killed)
        .await
        .unwrap();
    killed.succeeded();
    used(&killed, 2);
    assert_eq!(asked("killed.txt").len(), 2, "one run of two calls");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "begun\n");
    // The attempt after it neither runs the task nor asks the model again.
    let again = ExecutionRequest {
        execution_id: "dsp_killed/2".to_owned(),
        attempt: 2,
        ..request("dsp_killed", command)
    };
    let again = run(&adapter, again).await;
    assert_eq!(again.succeeded(), killed.output());
    assert_eq!(asked("killed.txt").len(), 2);
    assert_eq!(adapter.check_health().await.status, HealthStatus::Healthy);
    let mut second = request("dsp_after", "what was it after the start");
    second.session_id.clone_from(&first.result.session_id);
    run(&adapter, second).await.succeeded();
    let sent = asked("after the start").pop().unwrap().body.to_string();
    assert!(sent.contains("my word is cherry"));
}
