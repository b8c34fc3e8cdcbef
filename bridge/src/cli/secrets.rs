//! `forge-bridge secrets`: secrets that receivers need to verify signatures, tokens for callers, and the keys that
//! secrets in the store are encrypted with.

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
    /// Create a token for a caller; prints it once, with its hash as a line for the configuration
    Token {
        /// Name of the token, for people only
        #[arg(long)]
        name: Option<String>,
        /// Scopes, separated by commas: dispatch, read, admin, signals; all when absent
        #[arg(long, value_delimiter = ',')]
        scopes: Vec<String>,
        /// Lifetime, such as 90d; unlimited when absent
        #[arg(long, value_name = "DURATION", value_parser = life)]
        expires: Option<Duration>,
    },
    /// Show the ids of the keys and the number of secrets encrypted with each
    Keys,
    /// Put a new key first in the key file; older keys still decrypt what they encrypted
    Rotate,
    /// Remove unused keys from the key file; older backups still need theirs
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
    duration::parse(text).ok_or_else(|| "expected a duration such as 12h or 90d".to_owned())
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
            Source::Generated => "generated at the first start",
            Source::Configured => "from the configuration",
        };
        if entry.secrets.is_empty() {
            screen.aside("none yet: the bridge generates one at its first start")?;
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
    for text in [
        "It is not shown again. Add its hash to the list auth.token in the configuration:"
            .to_owned(),
        format!("  {}", line(&entry)),
        "A running bridge applies it on SIGHUP.".to_owned(),
    ] {
        screen.line(screen.paint(Tone::Quiet, text))?;
    }
    Ok(())
}

/// Entry of the list `auth.token` in the configuration.
pub(super) fn line(entry: &Value) -> String {
    // Strings, lists of strings and numbers have the same syntax in JSON and TOML.
    let members = entry.as_object().into_iter().flatten();
    let members: Vec<_> = members
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    format!("{{ {} }}", members.join(", "))
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
            Role::Sealing => "encrypts new secrets",
            Role::Former if usage.sealed == 0 => {
                "unused: `forge-bridge secrets retire` removes it from the key file"
            }
            Role::Former => "a running bridge re-encrypts these with the current key",
            Role::Missing => "key missing: these cannot be decrypted",
        };
        screen.line(format_args!(
            "{}  {} encrypted  {}",
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
        "{key} is now the first key in {}",
        config.secret.key_file.display()
    ))?;
    for line in [
        "Send SIGHUP to a running bridge: it encrypts with the new key from then on and re-encrypts existing \
         secrets. A stopped one does so at its next start.",
        "Then check with forge-bridge secrets keys. Once the old key is unused, run forge-bridge secrets retire. \
         Earlier backups need the old key: keep it with them.",
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
        screen.line("every key is still in use; forge-bridge secrets keys shows the numbers")?;
    }
    for key in retired {
        screen.line(format_args!("{key} was removed from the key file"))?;
    }
    Ok(())
}
