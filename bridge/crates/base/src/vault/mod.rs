//! Encryption keys of the bridge: the first one that all bridges of the store have encrypts secrets for it, the others
//! decrypt older ones.
//! Independent of the values and of their location.

pub mod file;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::PathBuf;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use chacha20poly1305::aead::{Aead, Generate, Nonce, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use secrecy::{ExposeSecret, SecretSlice, SecretString};

use crate::digest::{self, MacKey};
use crate::edit_lock::EditLockError;
use crate::reloadable::Reloadable;

/// First byte of a sealed value: the version of its format.
const SEALED_V1: u8 = 1;
/// Same cipher; the id of the key precedes the nonce.
const SEALED_V2: u8 = 2;
const ID_BYTES: usize = 4;
const NONCE_BYTES: usize = 24;
const KEY_BYTES: usize = 32;

/// Sources of the keys.
#[derive(Clone, Debug)]
pub struct KeySource {
    /// `BRIDGE_SECRET_KEY`: 32 bytes as hex or base64. Takes precedence over the file.
    pub key: Option<SecretString>,
    /// Former keys, for decryption only.
    pub previous: Vec<SecretString>,
    /// Key file, created with mode 0600 if it is missing. One key per line; the first one encrypts.
    pub file: PathBuf,
    /// Folder of the store. The key file must not be in it, or a copy of the store would contain its key.
    pub data_dir: PathBuf,
}

/// Identifies a key without revealing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId([u8; ID_BYTES]);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&digest::hex(&self.0))
    }
}

impl KeyId {
    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = digest::from_hex(text)?;
        bytes.try_into().ok().map(Self)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{origin} is not a key: it must be 32 bytes as 64 hex digits or as base64")]
    MalformedKey { origin: String },
    #[error("the key file {} can be read by others (mode {mode:o}); run: chmod 600 {}", file.display(), file.display())]
    KeyFileOpen { file: PathBuf, mode: u32 },
    #[error(
        "the key file {} is inside the store's folder, where every copy of the store would contain it; move it elsewhere",
        file.display()
    )]
    KeyFileInStore { file: PathBuf },
    #[error("cannot read the key file {}", file.display())]
    ReadKeyFile { file: PathBuf, source: io::Error },
    #[error("cannot create the key file {}", file.display())]
    CreateKeyFile { file: PathBuf, source: io::Error },
    #[error("cannot write the key file {}", file.display())]
    WriteKeyFile { file: PathBuf, source: io::Error },
    #[error(transparent)]
    LockKeyFile(#[from] EditLockError),
    #[error("the secret {context} is encrypted with another key, or is damaged")]
    Unseal { context: String },
    #[error(
        "the secret {context} is encrypted with another key, {wanted}; the keys here are {}: add the missing key to \
         the key file or to secret.previous",
        list(known)
    )]
    MissingKey {
        context: String,
        wanted: KeyId,
        known: Vec<KeyId>,
    },
}

fn list(ids: &[KeyId]) -> String {
    let ids: Vec<_> = ids.iter().map(KeyId::to_string).collect();
    ids.join(", ")
}

/// Encrypts and decrypts secrets. Clones share the keys, including later changes.
#[derive(Clone)]
pub struct Vault {
    ring: Reloadable<Ring>,
    /// Keys of each other bridge that opens what is encrypted here.
    others: Reloadable<Vec<BTreeSet<KeyId>>>,
}

/// All of them decrypt.
struct Ring(Vec<Key>);

struct Key {
    id: KeyId,
    cipher: XChaCha20Poly1305,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vault([REDACTED])")
    }
}

impl Vault {
    pub fn from_key(key: &SecretSlice<u8>) -> Result<Self, Error> {
        Self::from_keys(std::slice::from_ref(key))
    }

    /// The first key that all bridges have encrypts, the others decrypt older values.
    pub fn from_keys(keys: &[SecretSlice<u8>]) -> Result<Self, Error> {
        if keys.is_empty() {
            let origin = "an empty list of keys".to_owned();
            return Err(Error::MalformedKey { origin });
        }
        let ring = keys.iter().map(Key::derive).collect::<Result<_, _>>()?;
        Ok(Self {
            ring: Ring(ring).into(),
            others: Reloadable::default(),
        })
    }

    /// Uses the given key, or else those of the key file, which is created if it is missing.
    pub fn open(source: &KeySource) -> Result<Self, Error> {
        let mut keys = match &source.key {
            Some(key) => vec![parse(key, "BRIDGE_SECRET_KEY")?],
            None => file::open(source)?,
        };
        for key in &source.previous {
            keys.push(parse(key, "an entry of secret.previous")?);
        }
        Self::from_keys(&keys)
    }

    /// Replaces the keys by those of `other`.
    pub fn adopt(&self, other: &Vault) {
        self.ring.replace(other.ring.get());
    }

    /// Encrypts from now on with the first key that each of these bridges has, too. True if that is another one than
    /// before.
    pub fn share(&self, others: Vec<BTreeSet<KeyId>>) -> bool {
        let before = self.sealing();
        self.others.replace(others);
        self.sealing() != before
    }

    /// Id of the key that encrypts.
    pub fn sealing(&self) -> KeyId {
        self.shared(&self.ring.get().0).id
    }

    fn shared<'a>(&self, keys: &'a [Key]) -> &'a Key {
        let others = self.others.get();
        let is_everywhere = |key: &&Key| others.iter().all(|known| known.contains(&key.id));
        // A bridge without a key of the store does not start.
        keys.iter().find(is_everywhere).unwrap_or(&keys[0])
    }

    /// Ids of all keys, the newest one first.
    pub fn keys(&self) -> Vec<KeyId> {
        self.ring.get().0.iter().map(|key| key.id).collect()
    }

    /// Encrypts with the key of `sealing`; `unseal` needs the same context.
    pub fn seal(&self, context: &str, plain: &[u8]) -> Vec<u8> {
        let ring = self.ring.get();
        let key = self.shared(&ring.0);
        let nonce = Nonce::<XChaCha20Poly1305>::generate();
        let payload = Payload {
            msg: plain,
            aad: context.as_bytes(),
        };
        let sealed = key.cipher.encrypt(&nonce, payload);
        let sealed = sealed.expect("only a message above 256 GiB cannot be sealed");
        [&[SEALED_V2], &key.id.0[..], &nonce[..], &sealed[..]].concat()
    }

    pub fn unseal(&self, context: &str, sealed: &[u8]) -> Result<SecretSlice<u8>, Error> {
        let damaged = || Error::Unseal {
            context: context.to_owned(),
        };
        let ring = self.ring.get();
        let (version, rest) = sealed.split_first().ok_or_else(damaged)?;
        let (keys, rest) = match *version {
            // This version does not name its key.
            SEALED_V1 => (ring.0.iter().collect(), rest),
            SEALED_V2 => {
                let (id, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
                let wanted = KeyId(*id);
                let key = ring.0.iter().find(|key| key.id == wanted);
                let key = key.ok_or_else(|| Error::MissingKey {
                    context: context.to_owned(),
                    wanted,
                    known: ring.0.iter().map(|key| key.id).collect(),
                })?;
                (vec![key], rest)
            }
            _ => return Err(damaged()),
        };
        let (nonce, msg) = rest.split_at_checked(NONCE_BYTES).ok_or_else(damaged)?;
        let nonce = <&Nonce<XChaCha20Poly1305>>::try_from(nonce).map_err(|_| damaged())?;
        let aad = context.as_bytes();
        let open = |key: &Key| key.cipher.decrypt(nonce, Payload { msg, aad }).ok();
        let plain = keys.into_iter().find_map(open);
        plain.map(SecretSlice::from).ok_or_else(damaged)
    }

    /// Id of the key that a value is encrypted with; `None` for a format that does not name it.
    pub fn key_of(sealed: &[u8]) -> Option<KeyId> {
        let rest = sealed.strip_prefix(&[SEALED_V2])?;
        rest.first_chunk().map(|id| KeyId(*id))
    }
}

impl Key {
    fn derive(key: &SecretSlice<u8>) -> Result<Self, Error> {
        let key = key.expose_secret();
        if key.len() != KEY_BYTES {
            let origin = "the given key".to_owned();
            return Err(Error::MalformedKey { origin });
        }
        let seal = SecretSlice::from(mac(key, "forge-bridge seal").to_vec());
        let cipher = XChaCha20Poly1305::new_from_slice(seal.expose_secret())
            .expect("an HMAC-SHA256 is as long as the cipher's key");
        let [a, b, c, d, ..] = mac(key, "forge-bridge key id");
        let id = KeyId([a, b, c, d]);
        Ok(Self { id, cipher })
    }
}

fn mac(key: &[u8], context: &str) -> [u8; 32] {
    let length = (context.len() as u64).to_be_bytes();
    MacKey::new(key).mac([&length[..], context.as_bytes()])
}

fn parse(text: &SecretString, origin: &str) -> Result<SecretSlice<u8>, Error> {
    decode(text.expose_secret()).ok_or_else(|| Error::MalformedKey {
        origin: origin.to_owned(),
    })
}

fn decode(text: &str) -> Option<SecretSlice<u8>> {
    let text = text.trim();
    let bytes = if text.len() == 2 * KEY_BYTES {
        digest::from_hex(text)?
    } else {
        BASE64_STANDARD.decode(text).ok()?
    };
    let key = SecretSlice::from(bytes);
    (key.expose_secret().len() == KEY_BYTES).then_some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vault(byte: u8) -> Vault {
        Vault::from_key(&SecretSlice::from(vec![byte; 32])).unwrap()
    }

    #[test]
    fn what_is_sealed_opens_only_under_its_key_and_context() {
        let sealed = vault(1).seal("dispatch:1", b"secret");
        assert_eq!(
            vault(1)
                .unseal("dispatch:1", &sealed)
                .unwrap()
                .expose_secret(),
            b"secret"
        );
        assert!(vault(2).unseal("dispatch:1", &sealed).is_err());
        assert!(vault(1).unseal("dispatch:2", &sealed).is_err());
        for damaged in [&[][..], &sealed[..10], &sealed[..sealed.len() - 1]] {
            assert!(vault(1).unseal("dispatch:1", damaged).is_err());
        }
        assert_ne!(sealed, vault(1).seal("dispatch:1", b"secret"));
    }

    #[test]
    fn a_key_is_read_as_hex_or_base64_of_32_bytes() {
        let sealed = vault(7).seal("c", b"x");
        for (text, good) in [
            ("07".repeat(32), true),
            (format!(" {}\n", "07".repeat(32)), true),
            (BASE64_STANDARD.encode([7; 32]), true),
            ("07".repeat(31), false),
            ("0x".repeat(32), false),
            ("é7".repeat(21) + "7", false),
            (BASE64_STANDARD.encode([7; 31]), false),
            (String::new(), false),
        ] {
            let source = KeySource {
                key: Some(text.clone().into()),
                previous: Vec::new(),
                file: "/nonexistent/key".into(),
                data_dir: "/nonexistent".into(),
            };
            let opened = Vault::open(&source).is_ok_and(|v| v.unseal("c", &sealed).is_ok());
            assert_eq!(opened, good, "{text:?}");
        }
    }

    #[test]
    fn a_new_key_encrypts_once_all_bridges_have_it() {
        let [old, new] = [vault(1).sealing(), vault(2).sealing()];
        assert_eq!(KeyId::parse(&old.to_string()), Some(old));
        assert_eq!(KeyId::parse("0102"), None);
        let here = vault(1);
        assert!(!here.share(vec![BTreeSet::from([old]), BTreeSet::from([old])]));
        let keys = [2, 1].map(|byte| SecretSlice::from(vec![byte; 32]));
        here.adopt(&Vault::from_keys(&keys).unwrap());
        assert_eq!(here.keys(), [new, old]);
        let key = |vault: &Vault| Vault::key_of(&vault.clone().seal("c", b"x"));
        assert_eq!((here.sealing(), key(&here)), (old, Some(old)));
        assert!(!here.share(vec![BTreeSet::from([new, old]), BTreeSet::from([old])]));
        assert!(here.share(vec![BTreeSet::from([new, old]), BTreeSet::from([new])]));
        assert_eq!((here.sealing(), key(&here)), (new, Some(new)));
    }

    #[test]
    fn former_keys_open_what_they_sealed_also_in_the_older_form() {
        let keys = [2, 1].map(|byte| SecretSlice::from(vec![byte; 32]));
        let both = Vault::from_keys(&keys).unwrap();
        let old = vault(1).seal("c", b"x");
        assert_eq!(both.unseal("c", &old).unwrap().expose_secret(), b"x");
        let unnamed = [&[SEALED_V1], &old[1 + ID_BYTES..]].concat();
        assert_eq!(both.unseal("c", &unnamed).unwrap().expose_secret(), b"x");
        assert_eq!(Vault::key_of(&unnamed), None);
        assert!(vault(2).unseal("c", &unnamed).is_err());
        let new = both.seal("c", b"x");
        assert!(vault(2).unseal("c", &new).is_ok());
        let missing = vault(1).unseal("c", &new).unwrap_err();
        assert!(matches!(missing, Error::MissingKey { wanted, .. } if wanted == both.sealing()));
    }
}
