//! `forge-bridge health`: readiness of a bridge, its callbacks, and health of its adapters. Needs no token.

use std::process::ExitCode;

use serde_json::Value;

use super::client::{Client, Error, Target};
use super::screen::{Tone, text};
use super::{Context, FAILED, block_on};

pub(super) fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let screen = context.screen();
    block_on(async {
        let ready = report(&client, &["api", "health", "ready"]).await?;
        let health = report(&client, &["api", "health"]).await?;
        let (tone, code) = match ready["status"] == "ok" {
            true => (Tone::Good, ExitCode::SUCCESS),
            false => (Tone::Bad, ExitCode::from(FAILED)),
        };
        if context.global.json {
            screen.value(&health)?;
            return Ok(code);
        }
        screen.line(format_args!(
            "{}, {}",
            screen.paint(tone, text(&ready, "/status")),
            text(&health, "/status"),
        ))?;
        if health["store"]["status"] != "healthy" {
            screen.line(format_args!(
                "store: {}, {}",
                text(&health, "/store/status"),
                text(&health, "/store/message"),
            ))?;
        }
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
        Ok(code)
    })
}

/// A health report. A bridge that does not accept work sends it with the status 503.
async fn report(client: &Client, path: &[&str]) -> Result<Value, Error> {
    match client.get(Target::path(path)).await {
        Err(Error::Refused { refusal, .. }) if refusal.body["status"].is_string() => {
            Ok(refusal.body)
        }
        answer => answer,
    }
}
