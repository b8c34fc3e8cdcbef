//! The console in a real browser.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    let again = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&again);
    sink.answer_with(move |request| {
        if request.path.ends_with("?again") {
            told.store(true, Ordering::Relaxed);
        }
        if request.path.ends_with("?refuse") {
            told.store(false, Ordering::Relaxed);
        }
        Answer::status(if told.load(Ordering::Relaxed) {
            200
        } else {
            410
        })
    });
    let bridge = Bridge::with(&[("BRIDGE_TOKENS", TOKEN)]).await;
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
