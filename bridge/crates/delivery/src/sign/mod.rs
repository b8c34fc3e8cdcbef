//! Authentication of callbacks towards the receiver: Standard Webhooks signatures (`v1`), and the bearer
//! token configured for the origin.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::HeaderValue;
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use url::Url;

use forge_base::digest::MacKey;
use forge_base::id::DeliveryId;
use forge_base::reloadable::Reloadable;
use forge_base::vault::Vault;
use forge_net as net;
use forge_store::roles::Secrets;
use forge_store::sealed;

use super::{Config, Error};

const PREFIX: &str = "whsec_";
/// Name and sealing context of the generated secret in the store.
pub const STORED: &str = "webhook-secret";
const GENERATED_BYTES: usize = 32;

/// Secret that signs callbacks.
#[derive(Clone)]
pub struct SigningSecret {
    bytes: SecretSlice<u8>,
    /// MAC key prepared from `bytes`.
    key: MacKey,
}

impl SigningSecret {
    /// Parses `whsec_` and the base64 of 24 to 64 bytes; the prefix is optional.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix(PREFIX).unwrap_or(text);
        let key = SecretSlice::from(BASE64_STANDARD.decode(text).ok()?);
        let fits = (24..=64).contains(&key.expose_secret().len());
        fits.then(|| Self::from(key))
    }

    /// Generates a random secret.
    pub fn generate() -> Self {
        let key: [u8; GENERATED_BYTES] = rand::random();
        Self::from(SecretSlice::from(key.to_vec()))
    }

    /// Text form for receivers: `whsec_` and base64.
    pub fn to_text(&self) -> SecretString {
        let key = BASE64_STANDARD.encode(self.bytes.expose_secret());
        SecretString::from(format!("{PREFIX}{key}"))
    }

    fn signature(&self, content: &[&[u8]]) -> String {
        let code = BASE64_STANDARD.encode(self.key.mac(content.iter().copied()));
        format!("v1,{code}")
    }
}

impl From<SecretSlice<u8>> for SigningSecret {
    fn from(bytes: SecretSlice<u8>) -> Self {
        let key = MacKey::new(bytes.expose_secret());
        Self { bytes, key }
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningSecret([REDACTED])")
    }
}

/// Signing secrets and bearer tokens by origin. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Signer {
    keys: Reloadable<Keys>,
}

#[derive(Debug)]
struct Keys {
    default: Vec<SigningSecret>,
    generated: bool,
    by_origin: BTreeMap<String, Vec<SigningSecret>>,
    bearers: BTreeMap<String, SecretString>,
}

/// One entry in the output of `forge-bridge secrets`.
#[derive(Debug)]
pub struct Described {
    /// `None`: used for every origin without its own secrets.
    pub origin: Option<String>,
    pub source: Source,
    /// Secrets that all sign; more than one during a rotation.
    pub secrets: Vec<SecretString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Configured,
    /// Generated at the first start and sealed in the store.
    Generated,
}

impl Signer {
    /// Reads the secrets from the configuration. Without a configured default secret, uses the one in the
    /// store, which is generated if missing.
    pub async fn open(config: &Config, store: &dyn Secrets, vault: &Vault) -> Result<Self, Error> {
        let mut keys = Keys::read(config)?;
        if keys.default.is_empty() {
            keys.default = vec![stored(store, vault).await?];
            keys.generated = true;
        }
        Ok(Self { keys: keys.into() })
    }

    /// Same as `open`, with a stored default secret that the caller has read; `None` if none has been
    /// generated yet.
    pub fn with_sealed(
        config: &Config,
        sealed: Option<&[u8]>,
        vault: &Vault,
    ) -> Result<Self, Error> {
        let mut keys = Keys::read(config)?;
        if let (true, Some(sealed)) = (keys.default.is_empty(), sealed) {
            keys.default = vec![unseal(sealed, vault)?];
            keys.generated = true;
        }
        Ok(Self { keys: keys.into() })
    }

    /// Validates these settings as `open` does, without a store.
    pub fn check(config: &Config) -> Result<(), Error> {
        Keys::read(config).map(drop)
    }

    /// Replaces the secrets and tokens in force with those of `other`.
    pub fn adopt(&self, other: &Signer) {
        self.keys.replace(other.keys.get());
    }

    /// Computes the `webhook-signature` header. The dispatch's own secret takes precedence over the origin's,
    /// and that over the default.
    pub fn sign(&self, message: Message<'_>, own: Option<&SigningSecret>) -> String {
        let keys = self.keys.get();
        let secrets = match own {
            Some(own) => std::slice::from_ref(own),
            None => keys.by_origin.get(message.origin).unwrap_or(&keys.default),
        };
        let (id, timestamp) = (message.id.to_string(), message.timestamp.to_string());
        let content = [
            id.as_bytes(),
            b".",
            timestamp.as_bytes(),
            b".",
            message.body,
        ];
        let signatures: Vec<_> = secrets.iter().map(|s| s.signature(&content)).collect();
        signatures.join(" ")
    }

    /// Bearer token configured for this origin.
    pub fn bearer(&self, origin: &str) -> Option<SecretString> {
        self.keys.get().bearers.get(origin).cloned()
    }

    /// Signing secrets in force, the default first.
    pub fn describe(&self) -> Vec<Described> {
        let keys = self.keys.get();
        let texts =
            |secrets: &[SigningSecret]| secrets.iter().map(SigningSecret::to_text).collect();
        let default = Described {
            origin: None,
            source: match keys.generated {
                true => Source::Generated,
                false => Source::Configured,
            },
            secrets: texts(&keys.default),
        };
        let others = keys.by_origin.iter().map(|(origin, secrets)| Described {
            origin: Some(origin.clone()),
            source: Source::Configured,
            secrets: texts(secrets),
        });
        std::iter::once(default).chain(others).collect()
    }
}

/// Signed content of one attempt, and the origin that selects the secret.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub origin: &'a str,
    pub id: DeliveryId,
    /// Seconds since 1970.
    pub timestamp: i64,
    pub body: &'a [u8],
}

impl Keys {
    fn read(config: &Config) -> Result<Self, Error> {
        let mut by_origin = BTreeMap::new();
        let mut bearers = BTreeMap::new();
        for (text, settings) in &config.origins {
            let url = Url::parse(text).ok().filter(|url| {
                let bare = matches!(url.path(), "" | "/") && url.query().is_none();
                bare && matches!(url.scheme(), "http" | "https")
            });
            let url = url.ok_or_else(|| Error::MalformedOrigin(text.clone()))?;
            let origin = net::origin(&url);
            if !settings.secrets.is_empty() {
                let place = format!("an entry of callback.origins.{text:?}.secrets");
                by_origin.insert(origin.clone(), parse_all(&settings.secrets, &place)?);
            }
            if let Some(bearer) = &settings.bearer {
                HeaderValue::from_str(bearer.expose_secret())
                    .map_err(|_| Error::MalformedToken(text.clone()))?;
                bearers.insert(origin, bearer.clone());
            }
        }
        Ok(Self {
            default: parse_all(&config.secrets, "an entry of callback.secrets")?,
            generated: false,
            by_origin,
            bearers,
        })
    }
}

fn parse_all(secrets: &[SecretString], place: &str) -> Result<Vec<SigningSecret>, Error> {
    let parsed = secrets.iter().map(|secret| {
        SigningSecret::parse(secret.expose_secret()).ok_or_else(|| Error::MalformedSecret {
            place: place.to_owned(),
        })
    });
    parsed.collect()
}

async fn stored(store: &dyn Secrets, vault: &Vault) -> Result<SigningSecret, Error> {
    let sealed = sealed::named(store, STORED, || {
        let text = SigningSecret::generate().to_text();
        vault.seal(STORED, text.expose_secret().as_bytes())
    });
    unseal(&sealed.await.map_err(Error::ReadSecret)?, vault)
}

fn unseal(sealed: &[u8], vault: &Vault) -> Result<SigningSecret, Error> {
    let text = vault.unseal(STORED, sealed).map_err(Error::UnsealSecret)?;
    std::str::from_utf8(text.expose_secret())
        .ok()
        .and_then(SigningSecret::parse)
        .ok_or_else(|| Error::MalformedSecret {
            place: "the generated secret in the store".to_owned(),
        })
}

#[cfg(test)]
mod tests;
