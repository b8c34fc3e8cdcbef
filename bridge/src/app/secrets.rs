//! Token generation, and rotation of the keys that encrypt secrets in the store. Works while a bridge runs.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use secrecy::SecretString;

use crate::config::Config;
use forge_base::digest::{self, sha256};
use forge_base::time;
use forge_base::vault::{self, KeyId, KeySource, Vault};
use forge_server::token::{Scope, TokenHash};

use super::store;

/// Prefix of the bridge's tokens, which also secret scanners can recognise.
const PREFIX: &str = "fbt_";
const SIGNALS_PREFIX: &str = "forg_live_";

/// New token and its entry for the configuration.
#[derive(Debug)]
pub struct Minted {
    pub token: SecretString,
    pub entry: TokenHash,
}

/// Generates a random token. Without scopes it gets all of them.
pub fn mint(
    name: Option<String>,
    scopes: &[String],
    life: Option<Duration>,
) -> anyhow::Result<Minted> {
    let scopes = match scopes.is_empty() {
        true => Scope::all(),
        false => scopes
            .iter()
            .map(|name| scope(name))
            .collect::<anyhow::Result<_>>()?,
    };
    let random = BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    Ok(minted(format!("{PREFIX}{random}"), name, scopes, life))
}

/// Generates a random token for signals, in the form of that protocol.
pub fn mint_for_signals() -> Minted {
    let random = digest::hex(&rand::random::<[u8; 16]>());
    minted(
        format!("{SIGNALS_PREFIX}{random}"),
        None,
        vec![Scope::Signals],
        None,
    )
}

fn minted(
    token: String,
    name: Option<String>,
    scopes: Vec<Scope>,
    life: Option<Duration>,
) -> Minted {
    let entry = TokenHash {
        hash: digest::hex(&sha256(&token)),
        name,
        scopes,
        expires: life.map(|life| time::after(Timestamp::now(), life)),
        requests_per_minute: None,
        space: None,
        identity: None,
    };
    let token = SecretString::from(token);
    Minted { token, entry }
}

fn scope(name: &str) -> anyhow::Result<Scope> {
    let known = Scope::all();
    match known.iter().find(|scope| scope.name() == name) {
        Some(scope) => Ok(*scope),
        None => bail!("unknown scope {name:?}: use dispatch, read, admin or signals"),
    }
}

/// Number of secrets sealed with one key.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// `None`: sealed by a version that did not record the key.
    pub key: Option<KeyId>,
    pub role: Role,
    pub sealed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Seals new secrets.
    Sealing,
    /// Only opens secrets that it sealed.
    Former,
    /// Not in the configuration: secrets sealed with it cannot be read.
    Missing,
}

/// Returns the keys and the number of secrets sealed with each. Reads the whole store.
pub async fn keys(config: &Config) -> anyhow::Result<Vec<Usage>> {
    let vault = open_vault(config).await?;
    let heads = store::sealed_heads(config).await?;
    let mut usages: Vec<_> = (vault.keys().into_iter().enumerate())
        .map(|(place, key)| Usage {
            key: Some(key),
            role: match place {
                0 => Role::Sealing,
                _ => Role::Former,
            },
            sealed: 0,
        })
        .collect();
    for (head, count) in heads {
        let key = Vault::key_of(&head);
        match usages.iter_mut().find(|usage| usage.key == key) {
            Some(usage) => usage.sealed += count,
            None => usages.push(Usage {
                key,
                role: match key {
                    Some(_) => Role::Missing,
                    None => Role::Former,
                },
                sealed: count,
            }),
        }
    }
    Ok(usages)
}

/// Adds a new key to the key file, before the existing ones.
pub fn rotate(config: &Config) -> anyhow::Result<KeyId> {
    refuse_configured_key(config)?;
    Ok(vault::file::rotate(&key_source(config))?)
}

/// Removes keys from the key file that no secret is sealed with.
pub async fn retire(config: &Config) -> anyhow::Result<Vec<KeyId>> {
    refuse_configured_key(config)?;
    let usages = keys(config).await?;
    if (usages.iter()).any(|usage| usage.key.is_none() && usage.sealed > 0) {
        bail!(
            "some secrets do not record the key they are encrypted with; start a bridge, which re-encrypts them"
        );
    }
    let unused = usages
        .iter()
        .filter(|usage| usage.role == Role::Former && usage.sealed == 0);
    let unused: BTreeSet<KeyId> = unused.filter_map(|usage| usage.key).collect();
    Ok(vault::file::retire(&key_source(config), &unused)?)
}

pub(super) fn key_source(config: &Config) -> KeySource {
    KeySource {
        key: config.secret.key.clone(),
        previous: config.secret.previous.clone(),
        file: config.secret.key_file.clone(),
        data_dir: config.data_dir.clone(),
    }
}

pub(super) async fn open_vault(config: &Config) -> anyhow::Result<Vault> {
    let source = key_source(config);
    Ok(tokio::task::spawn_blocking(move || Vault::open(&source)).await??)
}

fn refuse_configured_key(config: &Config) -> anyhow::Result<()> {
    if config.secret.key.is_some() {
        bail!(
            "the key is set by secret.key (BRIDGE_SECRET_KEY): put a new one there, for example from `openssl rand -hex \
             32`, and the old one into secret.previous (BRIDGE_SECRET_PREVIOUS)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn a_token_has_the_scopes_and_the_life_that_are_asked_for() {
        let day = Duration::from_secs(24 * 60 * 60);
        let minted = mint(Some("ci".to_owned()), &["read".to_owned()], Some(day)).unwrap();
        assert_eq!(minted.entry.scopes, [Scope::Read]);
        assert!(minted.entry.expires.unwrap() > Timestamp::now());
        let token = minted.token.expose_secret();
        assert!(token.starts_with(PREFIX) && token.len() > 40, "{token}");
        let hash = sha256(token);
        assert_eq!(minted.entry.hash, digest::hex(&hash));
        let tools = mint(None, &["signals".to_owned()], None).unwrap();
        assert_eq!(tools.entry.scopes, [Scope::Signals]);
        let other = mint(None, &[], None).unwrap();
        assert_eq!(other.entry.scopes, Scope::all());
        assert_ne!(other.token.expose_secret(), token);
        assert!(mint(None, &["root".to_owned()], None).is_err());
    }
}
