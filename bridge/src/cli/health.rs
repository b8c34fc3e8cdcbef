//! `forge-bridge health`: readiness of a bridge, its callbacks, and health of its adapters. Needs no token.

use std::process::ExitCode;

use super::client::Target;
use super::screen::{Tone, text};
use super::{Context, block_on};

pub(super) fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let screen = context.screen();
    block_on(async {
        let ready = client
            .get(Target::path(&["api", "health", "ready"]))
            .await?;
        let health = client.get(Target::path(&["api", "health"])).await?;
        if context.global.json {
            screen.value(&health)?;
            return Ok(ExitCode::SUCCESS);
        }
        screen.line(format_args!(
            "{}, {}",
            screen.paint(Tone::Good, text(&ready, "/status")),
            text(&health, "/status"),
        ))?;
        screen.line(format_args!(
            "callbacks: {} pending, {} dead",
            text(&health, "/deliveries/pending"),
            text(&health, "/deliveries/dead"),
        ))?;
        let mut rows = vec![
            ["adapter", "status", "running", "queued", "message"]
                .map(str::to_owned)
                .to_vec(),
        ];
        for (name, adapter) in health["adapters"].as_object().into_iter().flatten() {
            let columns = ["/status", "/running", "/queued", "/message"];
            let mut row = vec![name.clone()];
            row.extend(columns.map(|column| text(adapter, column)));
            rows.push(row);
        }
        screen.table(&rows)?;
        Ok(ExitCode::SUCCESS)
    })
}
