//! `forge-bridge nodes`: the bridges that share the store of a running one.

use std::process::ExitCode;

use serde_json::Value;

use super::client::Target;
use super::screen::{Tone, text};
use super::{Context, block_on};

pub(super) fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let screen = context.screen();
    block_on(async {
        let listed = client.get(Target::path(&["api", "v2", "nodes"])).await?;
        if context.global.json {
            screen.value(&listed)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut rows = vec![
            [
                "node",
                "state",
                "name",
                "version",
                "running",
                "taken over",
                "adapters",
                "lease until",
            ]
            .map(str::to_owned)
            .to_vec(),
        ];
        let nodes = listed["nodes"].as_array().map_or(&[][..], Vec::as_slice);
        for node in nodes {
            let (tone, state) = match (node["live"] == true, node["id"] == listed["node"]) {
                (true, true) => (Tone::Good, "this one"),
                (true, false) => (Tone::Good, "live"),
                (false, _) => (Tone::Bad, "gone"),
            };
            rows.push(vec![
                text(node, "/id"),
                screen.paint(tone, state).to_string(),
                text(node, "/name"),
                text(node, "/version"),
                text(node, "/running"),
                text(node, "/takenOver"),
                adapters(node),
                text(node, "/leaseUntil"),
            ]);
        }
        screen.table(&rows)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Names of the adapters of a node, with the state of those that are not healthy.
fn adapters(node: &Value) -> String {
    let adapters = node["adapters"].as_array().map_or(&[][..], Vec::as_slice);
    let named = adapters.iter().map(|adapter| {
        let provider = text(adapter, "/provider");
        match (adapter["paused"] == true, text(adapter, "/status").as_str()) {
            (true, _) => format!("{provider} (paused)"),
            (false, "healthy") => provider,
            (false, status) => format!("{provider} ({status})"),
        }
    });
    named.collect::<Vec<_>>().join(", ")
}
