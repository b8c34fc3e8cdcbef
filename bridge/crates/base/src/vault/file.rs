//! Key file: one key per line, the first one encrypts. It is only replaced as a whole, so that a crash or a
//! concurrent reader sees either the old content or the new one.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use chacha20poly1305::aead::Generate;
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use tempfile::NamedTempFile;

use super::{Error, KEY_BYTES, Key, KeyId, KeySource, decode};
use crate::edit_lock::EditLock;
use crate::failpoint;
use crate::folder_lock::parent;

/// Limit for reading the file: about 1000 keys.
const MOST_BYTES: u64 = 64 * 1024;

/// Reads the keys of the file, which is created if it is missing.
pub(super) fn open(source: &KeySource) -> Result<Vec<SecretSlice<u8>>, Error> {
    let file = &source.file;
    if resolved(file).starts_with(resolved(&source.data_dir)) {
        return Err(Error::KeyFileInStore { file: file.clone() });
    }
    let text = match read(file)? {
        Some(text) => text,
        None => {
            create(file).map_err(|source| Error::CreateKeyFile {
                file: file.clone(),
                source,
            })?;
            // Read back: another process can have created the file first.
            read(file)?.ok_or_else(|| Error::ReadKeyFile {
                file: file.clone(),
                source: io::ErrorKind::NotFound.into(),
            })?
        }
    };
    keys(file, &text)
}

/// Inserts a new key before the others; returns its id.
pub fn rotate(source: &KeySource) -> Result<KeyId, Error> {
    let (_lock, mut keys) = open_to_change(source)?;
    let new = SecretSlice::from(chacha20poly1305::Key::generate().to_vec());
    let key = Key::derive(&new)?;
    keys.insert(0, new);
    write(&source.file, &keys)?;
    Ok(key.id)
}

/// Removes former keys, which no value is encrypted with, and never the first one; returns the ids of those removed. A key
/// that was added since the values were counted is none of them.
pub fn retire(source: &KeySource, unused: &BTreeSet<KeyId>) -> Result<Vec<KeyId>, Error> {
    let (_lock, keys) = open_to_change(source)?;
    let (mut kept, mut retired) = (Vec::new(), Vec::new());
    for key in keys {
        let derived = Key::derive(&key)?;
        match !kept.is_empty() && unused.contains(&derived.id) {
            true => retired.push(derived.id),
            false => kept.push(key),
        }
    }
    if !retired.is_empty() {
        write(&source.file, &kept)?;
    }
    Ok(retired)
}

/// Reads the keys as the only process that changes them, until the lock is dropped.
fn open_to_change(source: &KeySource) -> Result<(EditLock, Vec<SecretSlice<u8>>), Error> {
    // A missing file is created, and with it the folder that is locked.
    open(source)?;
    let lock = EditLock::take(&source.file)?;
    Ok((lock, open(source)?))
}

fn keys(file: &Path, text: &SecretString) -> Result<Vec<SecretSlice<u8>>, Error> {
    let malformed = || Error::MalformedKey {
        origin: format!("the content of {}", file.display()),
    };
    let lines = text.expose_secret().lines().map(str::trim);
    let keys: Option<Vec<_>> = lines.filter(|line| !line.is_empty()).map(decode).collect();
    keys.filter(|keys| !keys.is_empty()).ok_or_else(malformed)
}

fn read(file: &Path) -> Result<Option<SecretString>, Error> {
    let failed = |source| Error::ReadKeyFile {
        file: file.to_owned(),
        source,
    };
    let open = match File::open(file) {
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
    let read = open.take(MOST_BYTES).read_to_string(&mut text);
    read.map_err(failed)?;
    Ok(Some(text.into()))
}

/// Writes a new key to a temporary file and renames it, so that no reader sees part of a key. An existing file stays.
fn create(file: &Path) -> io::Result<()> {
    let folder = parent(file);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let key = SecretSlice::from(chacha20poly1305::Key::generate().to_vec());
    let draft = draft(folder, &[key])?;
    failpoint::point("key.written");
    match draft.persist_noclobber(file) {
        Ok(_) => File::open(folder)?.sync_all(),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error.error),
    }
}

/// Replaces the keys of the file.
fn write(file: &Path, keys: &[SecretSlice<u8>]) -> Result<(), Error> {
    let replace = || {
        // A link is followed; its target is replaced.
        let file = file.canonicalize()?;
        let folder = parent(&file);
        let draft = draft(folder, keys)?;
        draft.persist(&file).map_err(|error| error.error)?;
        File::open(folder)?.sync_all()
    };
    replace().map_err(|source| Error::WriteKeyFile {
        file: file.to_owned(),
        source,
    })
}

/// Temporary file, readable by its owner only and synced.
fn draft(folder: &Path, keys: &[SecretSlice<u8>]) -> io::Result<NamedTempFile> {
    let mut text = String::with_capacity(keys.len() * (2 * KEY_BYTES + 1));
    for key in keys {
        for byte in key.expose_secret() {
            text.push_str(&format!("{byte:02x}"));
        }
        text.push('\n');
    }
    let text = SecretString::from(text);
    let mut draft = NamedTempFile::new_in(folder)?;
    draft.write_all(text.expose_secret().as_bytes())?;
    draft.as_file().sync_all()?;
    Ok(draft)
}

/// Path with symbolic links resolved as far as it exists.
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

    use super::super::Vault;
    use super::*;

    fn source(folder: &Path) -> KeySource {
        KeySource {
            key: None,
            previous: Vec::new(),
            file: folder.join("keys/key"),
            data_dir: folder.join("data"),
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
    fn a_new_key_seals_and_the_old_one_opens_until_it_is_retired() {
        let folder = tempfile::tempdir().unwrap();
        let source = source(folder.path());
        let old = Vault::open(&source).unwrap();
        let sealed = old.seal("c", b"x");
        let id = rotate(&source).unwrap();
        assert_eq!(source.file.metadata().unwrap().mode() & 0o777, 0o600);
        let vault = Vault::open(&source).unwrap();
        assert_eq!(vault.keys(), [id, old.sealing()]);
        assert_eq!(vault.sealing(), id);
        assert!(vault.unseal("c", &sealed).is_ok());
        assert_eq!(Vault::key_of(&vault.seal("c", b"x")), Some(id));

        assert_eq!(retire(&source, &[].into()).unwrap(), []);
        let unused = [id, old.sealing()].into();
        assert_eq!(retire(&source, &unused).unwrap(), [old.sealing()]);
        let error = Vault::open(&source).unwrap().unseal("c", &sealed);
        let error = error.unwrap_err().to_string();
        assert!(error.contains(&old.sealing().to_string()), "{error}");
        assert!(error.contains(&id.to_string()), "{error}");
        assert_eq!(retire(&source, &unused).unwrap(), [], "the last one stays");
    }

    #[test]
    fn rotations_at_once_lose_no_key() {
        let folder = tempfile::tempdir().unwrap();
        let source = source(folder.path());
        let rotated: BTreeSet<_> = std::thread::scope(|scope| {
            let rotate = || scope.spawn(|| rotate(&source).unwrap());
            let threads: Vec<_> = (0..20).map(|_| rotate()).collect();
            let ids = threads.into_iter().map(|thread| thread.join().unwrap());
            ids.collect()
        });
        let keys: BTreeSet<_> = Vault::open(&source).unwrap().keys().into_iter().collect();
        assert_eq!((rotated.len(), keys.len()), (20, 21));
        assert!(keys.is_superset(&rotated));
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

    #[test]
    fn a_key_file_with_a_line_that_is_no_key_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let source = source(folder.path());
        Vault::open(&source).unwrap();
        for text in [
            "",
            "\n",
            "no key\n",
            &format!("{}\nno key\n", "07".repeat(32)),
        ] {
            std::fs::write(&source.file, text).unwrap();
            let refused = Vault::open(&source).unwrap_err();
            assert!(matches!(refused, Error::MalformedKey { .. }), "{text:?}");
        }
    }
}
