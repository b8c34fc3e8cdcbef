//! Validation of the fake model by the official Python client.

use forge_test_model::Model;
use tokio::process::Command;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_accepts_the_fake() {
    let model = Model::start().await;
    let python = tokio::task::spawn_blocking(forge_test_runtimes::openai)
        .await
        .unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/official_client.py");
    let run = Command::new(python)
        .arg(script)
        .arg(format!("{}/v1", model.url()))
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert_eq!(
        said.trim(),
        "accepted",
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
}
