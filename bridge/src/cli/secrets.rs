//! `forge-bridge secrets`: what receivers need to check our signatures, tokens for callers, and the keys under
//! which secrets lie in the store.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::screen::Tone;
use super::{Context, block_on};
use crate::app;
use crate::app::secrets::{Minted, Role, Usage};
use forge_base::duration;
use forge_delivery::sign::Source;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token for a caller: shown once, and its hash as a line for the configuration
    Token {
        /// Whose it is; for people alone
        #[arg(long)]
        name: Option<String>,
        /// dispatch, read or admin; several with commas, all when absent
        #[arg(long, value_delimiter = ',')]
        scopes: Vec<String>,
        /// How long it is valid, such as 90d; for ever when absent
        #[arg(long, value_name = "DURATION", value_parser = life)]
        expires: Option<Duration>,
    },
    /// Show the ids of the keys, and how much lies under each
    Keys,
    /// Put a new key into the key file; the old ones still open what they sealed
    Rotate,
    /// Take the keys out of the key file under which nothing lies any more; older backups still need theirs
    Retire,
}

pub(super) fn run(context: &Context, arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        None => signing(context),
        Some(Command::Token {
            name,
            scopes,
            expires,
        }) => token(context, &app::secrets::mint(name, &scopes, expires)?),
        Some(Command::Keys) => keys(context),
        Some(Command::Rotate) => rotate(context),
        Some(Command::Retire) => retire(context),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn life(text: &str) -> Result<Duration, String> {
    duration::parse(text).ok_or_else(|| "wanted a duration such as 12h or 90d".to_owned())
}

fn signing(context: &Context) -> anyhow::Result<()> {
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
        return Ok(screen.value(&json!({ "callbackSecrets": rows }))?);
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
    Ok(())
}

fn token(context: &Context, minted: &Minted) -> anyhow::Result<()> {
    let (screen, token) = (context.screen(), minted.token.expose_secret());
    let mut entry = json!(minted.entry);
    if context.global.json {
        entry["token"] = token.into();
        return Ok(screen.value(&entry)?);
    }
    screen.line(token)?;
    // A text, a list of texts and a number are the same in JSON and in TOML.
    let members = entry.as_object().into_iter().flatten();
    let members: Vec<_> = members
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    for line in [
        "It is not shown again. The configuration has its hash alone, in the list auth.token:"
            .to_owned(),
        format!("  {{ {} }}", members.join(", ")),
        "A running bridge takes it over at SIGHUP.".to_owned(),
    ] {
        screen.line(screen.paint(Tone::Quiet, line))?;
    }
    Ok(())
}

fn keys(context: &Context) -> anyhow::Result<()> {
    let config = context.sources().load()?.config;
    let usages = block_on(app::secrets::keys(&config))?;
    let screen = context.screen();
    let role = |usage: &Usage| match usage.role {
        Role::Sealing => "sealing",
        Role::Former => "former",
        Role::Missing => "missing",
    };
    let key = |usage: &Usage| usage.key.map(|key| key.to_string());
    if context.global.json {
        let rows: Vec<Value> = (usages.iter())
            .map(|usage| json!({ "key": key(usage), "role": role(usage), "sealed": usage.sealed }))
            .collect();
        return Ok(screen.value(&json!({ "keys": rows }))?);
    }
    for usage in &usages {
        let what = match usage.role {
            Role::Sealing => "seals what is new",
            Role::Former if usage.sealed == 0 => {
                "nothing lies under it: `forge-bridge secrets retire` takes it out of the key file"
            }
            Role::Former => "a running bridge seals anew what lies under it",
            Role::Missing => "not here: what lies under it cannot be read",
        };
        screen.line(format_args!(
            "{}  {} sealed  {}",
            key(usage).as_deref().unwrap_or("unnamed "),
            usage.sealed,
            screen.paint(Tone::Quiet, what),
        ))?;
    }
    Ok(())
}

fn rotate(context: &Context) -> anyhow::Result<()> {
    let config = context.sources().load()?.config;
    let (key, screen) = (app::secrets::rotate(&config)?, context.screen());
    if context.global.json {
        return Ok(screen.value(&json!({ "key": key.to_string() }))?);
    }
    screen.line(format_args!(
        "{key} is the first key in {}",
        config.secret.key_file.display()
    ))?;
    for line in [
        "Send SIGHUP to a bridge that runs: it seals with the new key from then on, and seals anew what lies under \
         the old one. One that does not run does it at its next start.",
        "Then: forge-bridge secrets keys, and when nothing lies under the old key, forge-bridge secrets retire. Backups \
         of before need the old key: keep it with them.",
    ] {
        screen.line(screen.paint(Tone::Quiet, line))?;
    }
    Ok(())
}

fn retire(context: &Context) -> anyhow::Result<()> {
    let config = context.sources().load()?.config;
    let retired = block_on(app::secrets::retire(&config))?;
    let retired: Vec<_> = retired.iter().map(ToString::to_string).collect();
    let screen = context.screen();
    if context.global.json {
        return Ok(screen.value(&json!({ "retired": retired }))?);
    }
    if retired.is_empty() {
        screen.line("every key is still needed; forge-bridge secrets keys shows for how much")?;
    }
    for key in retired {
        screen.line(format_args!("{key} is no longer in the key file"))?;
    }
    Ok(())
}
