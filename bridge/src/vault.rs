//! The bridge's own key: seals what must not lie open in the store, and makes fingerprints that mean
//! nothing to those who do not have it. Does not know what it seals or where that is kept.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use chacha20poly1305::aead::{Aead, Generate, Nonce, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use hmac::{Hmac, Mac};
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use sha2::Sha256;

use crate::crash;

/// The first byte of everything sealed, so that another cipher can be told apart.
const SEALED_V1: u8 = 1;
const NONCE_BYTES: usize = 24;
const KEY_BYTES: usize = 32;

/// Where the key comes from.
#[derive(Clone, Debug)]
pub struct KeySource {
    /// `BRIDGE_SECRET_KEY`: 32 bytes as hex or base64. Wins over the file.
    pub key: Option<SecretString>,
    /// Made, mode 0600, when it is missing.
    pub file: PathBuf,
    /// The store's folder. The file must not be in it, or a copy of the store would hold its key.
    pub data_dir: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{origin} is not a key: it must be 32 bytes as 64 hex digits or as base64")]
    MalformedKey { origin: String },
    #[error("the key file {} can be read by others (mode {mode:o}); run: chmod 600 {}", file.display(), file.display())]
    KeyFileOpen { file: PathBuf, mode: u32 },
    #[error(
        "the key file {} is inside the store's folder, where every copy of the store would take it along; put it elsewhere",
        file.display()
    )]
    KeyFileInStore { file: PathBuf },
    #[error("cannot read the key file {}", file.display())]
    ReadKeyFile { file: PathBuf, source: io::Error },
    #[error("cannot create the key file {}", file.display())]
    CreateKeyFile { file: PathBuf, source: io::Error },
    #[error("what is sealed as {context} was sealed under another key, or is damaged")]
    Unseal { context: String },
}

/// Clones share one key.
#[derive(Clone)]
pub struct Vault(Arc<Keys>);

struct Keys {
    cipher: XChaCha20Poly1305,
    fingerprints: SecretSlice<u8>,
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Vault([REDACTED])")
    }
}

impl Vault {
    pub fn from_key(key: &SecretSlice<u8>) -> Result<Self, Error> {
        let key = key.expose_secret();
        if key.len() != KEY_BYTES {
            let origin = "the given key".to_owned();
            return Err(Error::MalformedKey { origin });
        }
        let seal = SecretSlice::from(mac(key, "forge-bridge seal", &[]).to_vec());
        let cipher = XChaCha20Poly1305::new_from_slice(seal.expose_secret())
            .expect("an HMAC-SHA256 is as long as the cipher's key");
        let fingerprints = SecretSlice::from(mac(key, "forge-bridge fingerprint", &[]).to_vec());
        Ok(Self(Arc::new(Keys {
            cipher,
            fingerprints,
        })))
    }

    /// The given key, else the key file, which is created when it is missing.
    pub fn open(source: &KeySource) -> Result<Self, Error> {
        if let Some(key) = &source.key {
            let origin = "BRIDGE_SECRET_KEY".to_owned();
            let key = decode(key.expose_secret()).ok_or(Error::MalformedKey { origin })?;
            return Self::from_key(&key);
        }
        let file = &source.file;
        if resolved(file).starts_with(resolved(&source.data_dir)) {
            return Err(Error::KeyFileInStore { file: file.clone() });
        }
        let text = match read_key_file(file)? {
            Some(text) => text,
            None => {
                create_key_file(file).map_err(|source| Error::CreateKeyFile {
                    file: file.clone(),
                    source,
                })?;
                // Read back: another process may have been first.
                read_key_file(file)?.ok_or_else(|| Error::ReadKeyFile {
                    file: file.clone(),
                    source: io::ErrorKind::NotFound.into(),
                })?
            }
        };
        let key = decode(text.expose_secret()).ok_or_else(|| Error::MalformedKey {
            origin: format!("the content of {}", file.display()),
        })?;
        Self::from_key(&key)
    }

    /// Encrypts under the key; only `unseal` with the same context opens it.
    pub fn seal(&self, context: &str, plain: &[u8]) -> Vec<u8> {
        let nonce = Nonce::<XChaCha20Poly1305>::generate();
        let payload = Payload {
            msg: plain,
            aad: context.as_bytes(),
        };
        let sealed = self.0.cipher.encrypt(&nonce, payload);
        let sealed = sealed.expect("only a message above 256 GiB cannot be sealed");
        [&[SEALED_V1], &nonce[..], &sealed[..]].concat()
    }

    pub fn unseal(&self, context: &str, sealed: &[u8]) -> Result<SecretSlice<u8>, Error> {
        let damaged = || Error::Unseal {
            context: context.to_owned(),
        };
        let rest = sealed.strip_prefix(&[SEALED_V1]).ok_or_else(damaged)?;
        let (nonce, msg) = rest.split_at_checked(NONCE_BYTES).ok_or_else(damaged)?;
        let nonce = <&Nonce<XChaCha20Poly1305>>::try_from(nonce).map_err(|_| damaged())?;
        let payload = Payload {
            msg,
            aad: context.as_bytes(),
        };
        let plain = self.0.cipher.decrypt(nonce, payload);
        plain.map(SecretSlice::from).map_err(|_| damaged())
    }

    /// An HMAC-SHA256 of the parts. Each part counts with its length, so that moving a byte from one
    /// part to the next gives another fingerprint.
    pub fn fingerprint(&self, context: &str, parts: &[&[u8]]) -> [u8; 32] {
        mac(self.0.fingerprints.expose_secret(), context, parts)
    }
}

fn mac(key: &[u8], context: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in std::iter::once(&context.as_bytes()).chain(parts) {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

fn decode(text: &str) -> Option<SecretSlice<u8>> {
    let text = text.trim();
    let bytes = if text.len() == 2 * KEY_BYTES {
        decode_hex(text)?
    } else {
        BASE64_STANDARD.decode(text).ok()?
    };
    let key = SecretSlice::from(bytes);
    (key.expose_secret().len() == KEY_BYTES).then_some(key)
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let pairs = text.as_bytes().chunks_exact(2);
    pairs
        .map(|pair| {
            let value = digit(pair[0])? << 4 | digit(pair[1])?;
            u8::try_from(value).ok()
        })
        .collect()
}

fn read_key_file(file: &Path) -> Result<Option<SecretString>, Error> {
    let failed = |source| Error::ReadKeyFile {
        file: file.to_owned(),
        source,
    };
    let open = match std::fs::File::open(file) {
        Ok(open) => open,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mode = open.metadata().map_err(failed)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(Error::KeyFileOpen {
            file: file.to_owned(),
            mode,
        });
    }
    let mut text = String::new();
    open.take(1024).read_to_string(&mut text).map_err(failed)?;
    Ok(Some(text.into()))
}

/// Writes a new key beside its place and moves it there, so that nobody ever sees half of one. A file
/// that came there meanwhile stays.
fn create_key_file(file: &Path) -> io::Result<()> {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let key = chacha20poly1305::Key::generate();
    let mut text = String::with_capacity(2 * KEY_BYTES + 1);
    for byte in key {
        text.push_str(&format!("{byte:02x}"));
    }
    text.push('\n');
    let text = SecretString::from(text);
    let mut draft = tempfile::NamedTempFile::new_in(folder)?;
    draft.write_all(text.expose_secret().as_bytes())?;
    draft.as_file().sync_all()?;
    crash::point("key.written");
    match draft.persist_noclobber(file) {
        Ok(_) => std::fs::File::open(folder)?.sync_all(),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error.error),
    }
}

/// The path with symbolic links followed as far as it exists.
fn resolved(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for existing in path.ancestors() {
        if let Ok(real) = existing.canonicalize() {
            let rest = path.strip_prefix(existing);
            return real.join(rest.expect("an ancestor is a prefix"));
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn vault(byte: u8) -> Vault {
        Vault::from_key(&SecretSlice::from(vec![byte; 32])).unwrap()
    }

    fn source(folder: &Path) -> KeySource {
        KeySource {
            key: None,
            file: folder.join("keys/key"),
            data_dir: folder.join("data"),
        }
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
    fn a_fingerprint_depends_on_key_context_and_the_seams_between_parts() {
        let one = vault(1).fingerprint("a", &[b"xy", b"z"]);
        assert_eq!(one, vault(1).fingerprint("a", &[b"xy", b"z"]));
        for other in [
            vault(2).fingerprint("a", &[b"xy", b"z"]),
            vault(1).fingerprint("b", &[b"xy", b"z"]),
            vault(1).fingerprint("a", &[b"x", b"yz"]),
            vault(1).fingerprint("a", &[b"xyz"]),
        ] {
            assert_ne!(one, other);
        }
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
                file: "/nonexistent/key".into(),
                data_dir: "/nonexistent".into(),
            };
            let opened = Vault::open(&source).is_ok_and(|v| v.unseal("c", &sealed).is_ok());
            assert_eq!(opened, good, "{text:?}");
        }
    }

    #[test]
    fn a_missing_key_file_is_made_private_and_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let source = source(folder.path());
        let sealed = Vault::open(&source).unwrap().seal("c", b"x");
        let mode = source.file.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode, 0o600);
        assert!(Vault::open(&source).unwrap().unseal("c", &sealed).is_ok());
    }

    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let source = source(folder.path());
        Vault::open(&source).unwrap();
        let open = std::fs::Permissions::from_mode(0o640);
        std::fs::set_permissions(&source.file, open).unwrap();
        let error = Vault::open(&source).unwrap_err();
        assert!(error.to_string().contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_key_file_inside_the_store_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("data"), folder.path().join("link")).unwrap();
        for file in ["data/key", "data/new/key", "link/key"] {
            let source = KeySource {
                file: folder.path().join(file),
                ..source(folder.path())
            };
            let refused = Vault::open(&source).unwrap_err();
            assert!(matches!(refused, Error::KeyFileInStore { .. }), "{file}");
        }
    }
}
