//! The console in a real browser.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use tokio::process::Command;

use super::harness::api::quiet;
use super::harness::{Answer, Bridge, CallbackSink, until};

const TOKEN: &str = "console-token-console-token-0001";

const SHAKY: &str = "
[plugin.restart]
backoff = \"1ms\"
crash_limit = 2
[adapters.echo]
isolation = \"process\"
";

/// Starts a bridge and waits until its adapter is in quarantine.
async fn quarantined() -> Bridge {
    let bridge = Bridge::configured(SHAKY, &[]).await;
    for task in ["first", "second"] {
        bridge.api.run(quiet(task, "crash")).await;
    }
    until("the quarantine", || async {
        let (_, echo) = bridge.api.get("/api/v2/adapters/echo").await;
        (!echo["quarantine"].is_null()).then_some(())
    })
    .await;
    bridge
}

#[tokio::test]
async fn an_operator_can_do_everything_in_the_console() {
    let sink = CallbackSink::start().await;
    let answer = Arc::new(AtomicU16::new(410));
    sink.answer_with(move |request| {
        let asked = request.path.split_once('?');
        let asked = asked.and_then(|(_, query)| query.parse().ok());
        if let Some(status) = asked {
            answer.store(status, Ordering::Relaxed);
        }
        Answer::status(answer.load(Ordering::Relaxed))
    });
    let bridge = Bridge::with(&[
        ("BRIDGE_TOKENS", TOKEN),
        // The script closes the breaker itself.
        ("BRIDGE_CALLBACK_BREAKER_OPEN", "5m"),
    ])
    .await;
    let shaky = quarantined().await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/browser/console.mjs");
    let output = Command::new(forge_test_runtimes::node())
        .arg(script)
        .arg(forge_test_runtimes::browser())
        .args([
            bridge.api.url.as_str(),
            TOKEN,
            &sink.url("/hook"),
            &shaky.api.url,
        ])
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    bridge.stop().await;
    shaky.stop().await;
}
