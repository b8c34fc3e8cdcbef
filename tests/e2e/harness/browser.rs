//! Scripts of `tests/browser`, which drive a real browser.

use std::path::Path;

use tokio::process::Command;

/// Runs a script with the folder of the browser's modules and these arguments; fails the test unless it succeeds.
pub(crate) async fn run(script: &str, arguments: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/browser");
    let output = Command::new(forge_test_runtimes::node())
        .arg(folder.join(script))
        .arg(forge_test_runtimes::browser())
        .args(arguments)
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
}
