//! The conformance checks of every adapter. They start an agent more than a dozen times, so a script answers the
//! protocol, and Hermes itself the management calls.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{ExecutionRequest, HealthStatus};
use forge_adapter_hermes_agent::HermesAgent;
use forge_test_support::instance::with_members;
use serde_json::json;

use crate::bench;

#[test]
fn conforms() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("hermes");
    // The arguments are `-p <profile> acp` or `-p <profile> serve ...`.
    let script = format!(
        "#!/bin/sh\ncase $3 in\nacp) exec python3 {}/../acp/tests/real/agent.py plain ;;\n*) exec {} \"$@\" ;;\nesac\n",
        env!("CARGO_MANIFEST_DIR"),
        forge_test_runtimes::hermes().display(),
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let config = bench::config("http://127.0.0.1:9", home.path());
    conformance::check::<HermesAgent>(Options {
        config: with_members(config, &json!({ "program": program })),
        health_without_config: HealthStatus::Degraded,
        bad_config: Some(json!({"management_url": "http://127.0.0.1:1"})),
        slow: Some(ExecutionRequest::sample("SLOW please")),
        failing: Some(ExecutionRequest::sample("FAIL400 now")),
        attaching: Some(ExecutionRequest::sample("hello")),
        patience: std::time::Duration::from_secs(30),
        ..Options::default()
    })
    .assert_ok();
}
