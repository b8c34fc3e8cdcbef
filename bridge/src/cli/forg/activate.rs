//! `forg activate` and `forg token`: the token for the engine API, in the keychain of the user.

use std::io::{self, Read as _};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use super::super::screen::Tone;
use super::super::{Context, secrets};
use super::keystore::{Keystore, Kind};
use crate::app::secrets::mint_for_signals;

const MOST_BYTES: usize = 512;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Token to keep, `-` to read it from standard input; a new one when absent
    #[arg(value_name = "TOKEN")]
    kept: Option<String>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
pub(super) struct TokenArguments {
    /// Print the token: FORG_TOKEN, else the one that is kept
    #[arg(long, required = true)]
    print: bool,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Place {
    /// Place of the token
    #[arg(long, env = "FORG_KEYSTORE", value_enum, default_value = "os")]
    keystore: Kind,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let keystore = Keystore::open(arguments.place.keystore, &context.environment)?;
    let (token, entry) = match arguments.kept.as_deref() {
        None => {
            let minted = mint_for_signals();
            (minted.token, Some(json!(minted.entry)))
        }
        Some("-") => {
            let mut text = String::new();
            let input = io::stdin().take(MOST_BYTES as u64 + 2);
            { input }
                .read_to_string(&mut text)
                .context("cannot read the token from standard input")?;
            (checked(&text)?, None)
        }
        Some(text) => (checked(text)?, None),
    };
    keystore.keep(&token)?;
    let screen = context.screen();
    if context.global.json {
        screen.value(&json!({ "kept": true, "entry": entry }))?;
        return Ok(ExitCode::SUCCESS);
    }
    screen.line("The token is kept. `forg token --print` prints it.")?;
    if let Some(entry) = entry {
        let note = "Add its hash to the list auth.token in the configuration of the bridge:";
        screen.line(screen.paint(Tone::Quiet, note))?;
        screen.line(format_args!("  {}", secrets::line(&entry)))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn token(context: &Context, arguments: &TokenArguments) -> anyhow::Result<ExitCode> {
    let given = context.environment.get("FORG_TOKEN");
    let token = match given.filter(|token| !token.is_empty()) {
        Some(token) => SecretString::from(token.trim()),
        None => {
            let keystore = Keystore::open(arguments.place.keystore, &context.environment)?;
            match keystore.token()? {
                Some(token) => token,
                None => bail!("no token is kept; `forg activate` makes one"),
            }
        }
    };
    let screen = context.screen();
    match context.global.json {
        true => screen.value(&json!({ "token": Value::from(token.expose_secret()) }))?,
        false => screen.line(token.expose_secret())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A token without space at its ends. Its characters are those of bearer tokens.
fn checked(text: &str) -> anyhow::Result<SecretString> {
    let text = text.trim();
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    ensure!(
        (1..=MOST_BYTES).contains(&text.len()) && text.bytes().all(is_token),
        "a token has 1 to {MOST_BYTES} characters out of letters, digits and -._~+/="
    );
    Ok(SecretString::from(text))
}
