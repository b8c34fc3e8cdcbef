//! The clients in `sdk/` with a bridge: the examples of their READMEs, and callbacks that the libraries of Standard Webhooks
//! verify as well. Their tests start the bridge themselves, since one of the examples goes through a restart of it.

use std::process::{Command, Stdio};

use super::examples::{build_sdk, output};
use super::harness::library::root;
use super::harness::plugins;

/// Runs the tests of a client, and names the program and the folder of its adapters to them.
fn test(command: &mut Command, client: &str) {
    let command = command.current_dir(root().join("sdk").join(client));
    let command = command.env("FORGE_BRIDGE", env!("CARGO_BIN_EXE_forge-bridge"));
    output(command.env("FORGE_PLUGINS", plugins()).stdin(Stdio::null()));
}

#[test]
fn the_examples_of_the_typescript_client_run() {
    build_sdk();
    let mut node = Command::new(forge_test_runtimes::node());
    let vitest = ["node_modules/vitest/vitest.mjs", "run"];
    test(node.args(vitest).arg("test/examples.test.ts"), "typescript");
}

#[test]
fn the_tests_and_examples_of_the_python_client_run() {
    let mut python = Command::new(forge_test_runtimes::sdk_python());
    let python = python.args(["-m", "pytest", "--quiet"]);
    test(python.env("PYTHONDONTWRITEBYTECODE", "1"), "python");
}
