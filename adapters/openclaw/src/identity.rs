//! The adapter's identity at gateways: an Ed25519 key and the tokens that gateways issued for it, in one file with
//! mode 0600 in the adapter's state folder.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use forge_adapter_api::{AdapterError, Result};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::connection::lock;
use crate::session::hex;

const FILE: &str = "device.json";

pub(crate) struct Identity {
    key: Ed25519KeyPair,
    /// `None` without a state folder: the key then lasts as long as the instance.
    file: Option<PathBuf>,
    stored: Mutex<Stored>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    /// PKCS #8 in base64.
    private_key: String,
    /// By address of the gateway.
    #[serde(default)]
    device_tokens: BTreeMap<String, String>,
}

/// Values that a signature covers beside the identity itself.
pub(crate) struct Claims<'a> {
    pub(crate) client_id: &'a str,
    pub(crate) mode: &'a str,
    pub(crate) role: &'a str,
    pub(crate) scopes: &'a [&'a str],
    pub(crate) platform: &'a str,
    pub(crate) token: &'a str,
    pub(crate) nonce: &'a str,
    /// Time of the challenge in milliseconds since 1970.
    pub(crate) signed_at: u64,
}

impl Identity {
    /// Reads the identity of the state folder; creates it at the first start.
    pub(crate) fn open(state_dir: Option<&Path>) -> Result<Self> {
        let file = state_dir.map(|folder| folder.join(FILE));
        let stored = match &file {
            Some(file) => match std::fs::read(file) {
                Ok(bytes) => serde_json::from_slice(&bytes)
                    .map_err(|error| unusable(file, &error.to_string()))?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => create(Some(file))?,
                Err(error) => return Err(unusable(file, &error.to_string())),
            },
            None => create(None)?,
        };
        let key = STANDARD
            .decode(&stored.private_key)
            .ok()
            .and_then(|bytes| Ed25519KeyPair::from_pkcs8(&bytes).ok())
            .ok_or_else(|| unusable(file.as_deref().unwrap_or(Path::new(FILE)), "no key in it"))?;
        Ok(Self {
            key,
            file,
            stored: Mutex::new(stored),
        })
    }

    /// Hash of the public key, under which the gateway knows the adapter.
    pub(crate) fn id(&self) -> String {
        hex(self.key.public_key().as_ref())
    }

    /// The member `device` of a `connect` request.
    pub(crate) fn device(&self, claims: &Claims<'_>) -> Value {
        let id = self.id();
        let text = signed_text(&id, claims);
        json!({
            "id": id,
            "publicKey": URL_SAFE_NO_PAD.encode(self.key.public_key()),
            "signature": URL_SAFE_NO_PAD.encode(self.key.sign(text.as_bytes())),
            "signedAt": claims.signed_at,
            "nonce": claims.nonce,
        })
    }

    /// The token that this gateway issued for the key.
    pub(crate) fn token(&self, url: &str) -> Option<String> {
        lock(&self.stored).device_tokens.get(url).cloned()
    }

    /// Keeps the token that this gateway issued.
    pub(crate) fn keep_token(&self, url: &str, token: &str) -> Result<()> {
        let mut stored = lock(&self.stored);
        let earlier = stored
            .device_tokens
            .insert(url.to_owned(), token.to_owned());
        match &self.file {
            Some(file) if earlier.as_deref() != Some(token) => write(file, &stored),
            Some(_) | None => Ok(()),
        }
    }
}

fn create(file: Option<&Path>) -> Result<Stored> {
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new())
        .map_err(|_| AdapterError::new("internal", "no random numbers for a device key"))?;
    let stored = Stored {
        private_key: STANDARD.encode(pkcs8),
        device_tokens: BTreeMap::new(),
    };
    if let Some(file) = file {
        write(file, &stored)?;
    }
    Ok(stored)
}

/// Replaces the file as a whole. Temporary files have mode 0600.
fn write(file: &Path, stored: &Stored) -> Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let written = || -> io::Result<()> {
        let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer(&mut temporary, stored)?;
        temporary.flush()?;
        temporary.as_file().sync_all()?;
        temporary.persist(file)?;
        Ok(())
    };
    written().map_err(|error| unusable(file, &error.to_string()))
}

fn unusable(file: &Path, reason: &str) -> AdapterError {
    let text = format!(
        "the device identity {} cannot be used: {reason}; repair or remove the file, then approve the new device",
        file.display()
    );
    AdapterError::new("invalid_config", text)
}

fn signed_text(id: &str, claims: &Claims<'_>) -> String {
    let scopes = claims.scopes.join(",");
    let at = claims.signed_at.to_string();
    let (platform, family) = (claims.platform.to_lowercase(), "");
    let parts = [
        "v3",
        id,
        claims.client_id,
        claims.mode,
        claims.role,
        &scopes,
        &at,
        claims.token,
        claims.nonce,
        &platform,
        family,
    ];
    parts.join("|")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_key_and_tokens_are_kept_in_a_private_file() {
        let folder = tempfile::tempdir().unwrap();
        let first = Identity::open(Some(folder.path())).unwrap();
        first.keep_token("http://a", "t1").unwrap();
        let second = Identity::open(Some(folder.path())).unwrap();
        assert_eq!(first.id(), second.id());
        assert_eq!(second.token("http://a").as_deref(), Some("t1"));
        assert_eq!(second.token("http://b"), None);
        let mode = std::fs::metadata(folder.path().join(FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_ne!(Identity::open(None).unwrap().id(), first.id());
    }

    #[test]
    fn a_damaged_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(FILE), "{}").unwrap();
        let Err(error) = Identity::open(Some(folder.path())) else {
            panic!("it was used")
        };
        assert_eq!(error.code, "invalid_config");
        assert_eq!(std::fs::read(folder.path().join(FILE)).unwrap(), b"{}");
    }
}
