//! `forge-bridge secrets`: what receivers need to check our signatures.

use std::process::ExitCode;

use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::screen::Tone;
use super::{Context, block_on};
use crate::app;
use crate::delivery::sign::Source;

pub(super) fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let loaded = context.sources().load()?;
    let known = block_on(app::check::signing_secrets(&loaded.config))?;
    let screen = context.screen();
    if context.global.json {
        let rows: Vec<Value> = known
            .iter()
            .map(|entry| {
                let secrets: Vec<_> = entry.secrets.iter().map(|s| s.expose_secret()).collect();
                json!({
                    "origin": entry.origin, "generated": entry.source == Source::Generated, "secrets": secrets,
                })
            })
            .collect();
        screen.value(&json!({ "callbackSecrets": rows }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for entry in &known {
        let origin = entry.origin.as_deref().unwrap_or("every other destination");
        let source = match entry.source {
            Source::Generated => "made at the first start",
            Source::Configured => "from the configuration",
        };
        if entry.secrets.is_empty() {
            screen.aside("none yet: the bridge makes one at its first start")?;
        }
        for secret in &entry.secrets {
            screen.line(format_args!(
                "{}  {}",
                secret.expose_secret(),
                screen.paint(Tone::Quiet, format_args!("{origin}, {source}")),
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
