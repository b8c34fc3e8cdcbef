//! Profiles of the shipped adapter libraries, as `adapters inspect` shows them.

use std::fs;
use std::path::Path;

use forge_test_runtimes::OPENCLAW_TOKEN;
use serde_json::Value;

use super::harness::process::{Home, Process};

/// A library with the least capabilities, the cost tier and the latency profile that clients can rely on.
type Row = (&'static str, &'static str, &'static str, &'static str);

/// Capabilities and tiers of the runtimes that have an id of their own in the protocol are those of its documentation;
/// it names no latency.
const ROWS: [Row; 13] = [
    (
        "a2a",
        "streaming session_resume attachments",
        "medium",
        "variable",
    ),
    (
        "acp",
        "streaming session_resume file_io mcp_servers native_tools",
        "medium",
        "variable",
    ),
    (
        "claude-agent-sdk",
        "streaming session_resume file_io mcp_servers subagents cost_tracking",
        "high",
        "variable",
    ),
    ("command", "streaming file_io", "low", "variable"),
    ("echo", "streaming session_resume", "low", "fast"),
    ("gloo-ai", "streaming cost_tracking", "low", "fast"),
    (
        "hermes-agent",
        "streaming session_resume file_io mcp_servers management native_tools",
        "medium",
        "variable",
    ),
    ("http", "streaming session_resume", "medium", "variable"),
    (
        "langgraph",
        "streaming session_resume cost_tracking structured_output management",
        "medium",
        "variable",
    ),
    (
        "openai-compatible",
        "streaming session_resume structured_output",
        "low",
        "variable",
    ),
    (
        "openclaw",
        "streaming session_resume file_io sandboxing subagents management",
        "medium",
        "moderate",
    ),
    (
        "openrouter",
        "streaming session_resume cost_tracking",
        "low",
        "variable",
    ),
    (
        "vercel-ai",
        "streaming mcp_servers cost_tracking structured_output",
        "low",
        "fast",
    ),
];

/// Names of the libraries in the folder `adapters`, sorted. Others there are shared code.
fn shipped() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../adapters");
    let folders = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let is_library = |path: &Path| {
        let manifest = fs::read_to_string(path.join("Cargo.toml"));
        manifest.is_ok_and(|manifest| manifest.contains("\"cdylib\""))
    };
    let libraries = folders.filter(|path| is_library(path));
    let mut names: Vec<String> = libraries
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

fn inspect(home: &Home, bridge: &Process, provider: &str) -> Value {
    let mut command = home.command();
    command.args(["adapters", "inspect", provider, "--json"]);
    let output = command.env("BRIDGE_URL", &bridge.api.url).output().unwrap();
    assert!(output.status.success(), "{provider}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Strings of a list.
fn names(list: &Value) -> Vec<&str> {
    let list = list.as_array().unwrap().iter();
    list.map(|name| name.as_str().unwrap()).collect()
}

#[tokio::test]
async fn each_shipped_library_declares_at_least_its_row() {
    let libraries = shipped();
    assert_eq!(
        ROWS.map(|(library, ..)| library.to_owned()).to_vec(),
        libraries
    );
    // Its tools and its sandbox are those of a gateway.
    let sandbox = r#"{"agents": {"defaults": {"sandbox": {"mode": "all"}}}}"#;
    let gateway = move || forge_test_runtimes::openclaw("http://127.0.0.1:9", sandbox);
    let gateway = tokio::task::spawn_blocking(gateway).await.unwrap();
    let home = Home::new(&[
        ("BRIDGE_ADAPTERS", &libraries.join(",")),
        ("OPENCLAW_URL", gateway.url()),
        ("OPENCLAW_TOKEN", OPENCLAW_TOKEN),
    ]);
    let bridge = home.start();
    for (library, capabilities, cost, latency) in ROWS {
        let adapter = inspect(&home, &bridge, library);
        let profile = &adapter["profile"];
        let declared = names(&profile["capabilities"]);
        for capability in capabilities.split(' ') {
            assert!(
                declared.contains(&capability),
                "{library} without {capability}: {adapter}"
            );
        }
        assert_eq!(profile["costTier"], cost, "{library}");
        assert_eq!(profile["latencyProfile"], latency, "{library}");
        assert!(
            names(&profile["outputStrategies"]).contains(&"stream"),
            "{library}"
        );
        assert!(profile["maxConcurrent"].as_u64() > Some(0), "{library}");
        let is_managed = !names(&adapter["interfaces"]).is_empty();
        assert!(is_managed || !declared.contains(&"management"), "{library}");
        // Those of `acp` are the operator's to name.
        let has_tools = !names(&profile["nativeTools"]).is_empty() || library == "acp";
        assert_eq!(declared.contains(&"native_tools"), has_tools, "{library}");
    }
}

#[tokio::test]
async fn a_bridge_with_every_runtime_starts_without_any_of_them() {
    let ids = super::check::RUNTIMES;
    let home = Home::new(&[("BRIDGE_ADAPTERS", &ids.join(","))]);
    let bridge = home.start();
    for id in ids {
        let adapter = inspect(&home, &bridge, id);
        assert!(adapter["profile"].is_object(), "{adapter}");
        assert_eq!(adapter["health"]["status"], "degraded", "{adapter}");
    }
}
