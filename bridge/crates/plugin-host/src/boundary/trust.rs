//! Trust checks of adapter files, and the private copy of a library that is loaded instead, so that the file cannot be
//! exchanged between check and use.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::boundary::format;
use crate::boundary::load_error::LoadError;
use crate::boundary::loaded_images::LoadedImages;
use forge_base::digest::{hex, sha256_of};
use forge_base::failpoint;

/// Policy for a file that other users can write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// Refuse it.
    #[default]
    Enforce,
    /// Log a warning and load it; for `dev` and `demo`.
    Warn,
}

/// A library that passed the checks, as a private copy.
pub(crate) struct Vetted {
    pub copy: PathBuf,
    /// SHA-256 in lower-case hexadecimal digits.
    pub digest: String,
}

/// Rules that a library is checked against.
pub(crate) struct Rules<'a> {
    pub trust: Trust,
    /// SHA-256 from the allow-list, in hexadecimal digits.
    pub digest: Option<&'a str>,
    /// Folder of the private copies.
    pub copies: &'a Path,
    /// Images that are loaded already.
    pub images: &'a LoadedImages,
}

impl Vetted {
    /// An earlier copy, if its content still matches the digest.
    pub(crate) fn known(copy: &Path, digest: &str) -> Option<Self> {
        is_same(copy, digest).then(|| Self {
            copy: copy.to_owned(),
            digest: digest.to_owned(),
        })
    }
}

/// Checks the file at an absolute path and copies it. Every step uses the same open file.
pub(crate) fn vet(path: &Path, rules: &Rules<'_>) -> Result<Vetted, LoadError> {
    let unreadable = |source: io::Error| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let (mut file, metadata) = open_trusted(path, rules)?;
    let mut head = [0; format::HEAD];
    let read = read_head(&mut file, &mut head).map_err(unreadable)?;
    let length = metadata.len();
    format::check(&head[..read], length, std::env::consts::ARCH).map_err(|found| {
        LoadError::Platform {
            path: path.to_owned(),
            found,
        }
    })?;
    file.rewind().map_err(unreadable)?;

    failpoint::point("copy.before");
    let (copied, digest) = copy(&mut file, path, rules.copies)?;
    check_digest(path, rules, &digest)?;
    failpoint::point("copy.written");
    let vetted = keep(copied, digest, path, rules.copies)?;
    failpoint::point("copy.after");
    Ok(vetted)
}

/// Checks a program and returns its SHA-256. A program is not copied: it might need the files beside it.
pub(crate) fn vet_program(path: &Path, rules: &Rules<'_>) -> Result<String, LoadError> {
    let (mut file, metadata) = open_trusted(path, rules)?;
    if metadata.mode() & 0o111 == 0 {
        return Err(LoadError::NoProgram(path.to_owned()));
    }
    let digest = hash(&mut file).map_err(|source| LoadError::Read {
        path: path.to_owned(),
        source,
    })?;
    check_digest(path, rules, &digest)?;
    Ok(digest)
}

fn check_digest(path: &Path, rules: &Rules<'_>, found: &str) -> Result<(), LoadError> {
    match rules.digest {
        Some(wanted) if !wanted.eq_ignore_ascii_case(found) => Err(LoadError::DigestMismatch {
            path: path.to_owned(),
            found: found.to_owned(),
            wanted: wanted.to_owned(),
        }),
        Some(_) | None => Ok(()),
    }
}

/// Opens a file that no other user can write; logs a warning for any other file if the policy is `Warn`.
fn open_trusted(path: &Path, rules: &Rules<'_>) -> Result<(File, Metadata), LoadError> {
    let unreadable = |source: io::Error| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    let file = open(path)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(LoadError::NoRegularFile(path.to_owned()));
    }
    let folder_metadata = std::fs::metadata(folder).map_err(unreadable)?;
    for (path, metadata) in [(path, &metadata), (folder, &folder_metadata)] {
        let groups = Groups::read();
        let us = rustix::process::geteuid().as_raw();
        if let Some(why) = objection(&Owner::of(metadata), us, &groups) {
            let error = LoadError::BadPermissions {
                path: path.to_owned(),
                mode: metadata.mode() & 0o7777,
                uid: metadata.uid(),
                why,
            };
            match rules.trust {
                Trust::Enforce => return Err(error),
                Trust::Warn => tracing::warn!("{error} (loaded anyway: trust = \"warn\")"),
            }
        }
    }
    Ok((file, metadata))
}

fn open(path: &Path) -> Result<File, LoadError> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|source| {
            if path.is_symlink() {
                LoadError::Symlink(path.to_owned())
            } else {
                LoadError::Read {
                    path: path.to_owned(),
                    source,
                }
            }
        })
}

fn read_head(file: &mut File, head: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < head.len() {
        match file.read(&mut head[read..])? {
            0 => break,
            more => read += more,
        }
    }
    Ok(read)
}

/// Mode and owners of a file: who can change it.
struct Owner {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Owner {
    fn of(metadata: &std::fs::Metadata) -> Self {
        Self {
            mode: metadata.mode(),
            uid: metadata.uid(),
            gid: metadata.gid(),
        }
    }
}

/// Reason why the user `us` must not trust a file or folder of this owner; `None` if it is trusted.
fn objection(owner: &Owner, us: u32, groups: &Groups) -> Option<&'static str> {
    if owner.uid != 0 && owner.uid != us {
        return Some("it belongs to another user; give it to root or to the bridge's user (chown)");
    }
    if owner.mode & 0o002 != 0 {
        return Some("it is writable by others; remove that permission (chmod o-w)");
    }
    if owner.mode & 0o020 != 0 && !groups.is_own(owner.gid, owner.uid) {
        return Some("it is writable by a group; remove that permission (chmod g-w)");
    }
    None
}

/// Local user and group names, to recognise a user's private group.
struct Groups {
    passwd: String,
    group: String,
}

impl Groups {
    fn read() -> Self {
        // A system without these files has no names: then only equal numbers are a private group.
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            passwd: read("/etc/passwd"),
            group: read("/etc/group"),
        }
    }

    /// True if the group is the user's private one: same number or same name, and no other members.
    fn is_own(&self, gid: u32, uid: u32) -> bool {
        let user = line_of(&self.passwd, uid);
        let group = line_of(&self.group, gid);
        let members = group.and_then(|line| line.split(':').nth(3)).unwrap_or("");
        let name =
            |line: Option<&str>| line.and_then(|line| line.split(':').next().map(str::to_owned));
        let own = gid == uid || (user.is_some() && name(user) == name(group));
        own && members
            .split(',')
            .all(|member| member.is_empty() || Some(member.to_owned()) == name(user))
    }
}

/// The line whose third field is `id`.
fn line_of(table: &str, id: u32) -> Option<&str> {
    let id = id.to_string();
    table
        .lines()
        .find(|line| line.split(':').nth(2) == Some(id.as_str()))
}

/// Copies an open file to a temporary file in `folder` (mode 0700) and returns its SHA-256.
fn copy(file: &mut File, path: &Path, folder: &Path) -> Result<(NamedTempFile, String), LoadError> {
    let failed = |source: io::Error| not_copied(path, folder, source);
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(failed)?;
    std::fs::set_permissions(folder, Permissions::from_mode(0o700)).map_err(failed)?;

    let mut temporary = NamedTempFile::new_in(folder).map_err(failed)?;
    let digest = sha256_of(file, |piece| temporary.write_all(piece)).map_err(failed)?;
    Ok((temporary, hex(&digest)))
}

/// Renames a copy to `<folder>/<sha256>.<ext>`, mode 0444, unless an identical one exists.
fn keep(
    temporary: NamedTempFile,
    digest: String,
    path: &Path,
    folder: &Path,
) -> Result<Vetted, LoadError> {
    let failed = |source: io::Error| not_copied(path, folder, source);
    let copy = folder.join(format!("{digest}.{}", std::env::consts::DLL_EXTENSION));
    if !has_copy(&copy, temporary.path()) {
        let permissions = Permissions::from_mode(0o444);
        std::fs::set_permissions(temporary.path(), permissions).map_err(failed)?;
        temporary
            .persist(&copy)
            .map_err(|error| failed(error.error))?;
    }
    Ok(Vetted { copy, digest })
}

fn not_copied(path: &Path, folder: &Path, source: io::Error) -> LoadError {
    LoadError::Copy {
        path: path.to_owned(),
        folder: folder.to_owned(),
        source,
    }
}

/// True if an earlier copy equals the new one; comparing is faster than hashing.
fn has_copy(copy: &Path, new: &Path) -> bool {
    const PIECE_BYTES: usize = 16 * 1024;
    let is_same = || {
        let (mut copy, mut new) = (File::open(copy)?, File::open(new)?);
        let (mut one, mut other) = ([0; PIECE_BYTES], [0; PIECE_BYTES]);
        if copy.metadata()?.len() != new.metadata()?.len() {
            return Ok(false);
        }
        loop {
            let read = new.read(&mut one)?;
            copy.read_exact(&mut other[..read])?;
            if read == 0 || one[..read] != other[..read] {
                return io::Result::Ok(read == 0);
            }
        }
    };
    // A missing or unreadable copy is replaced.
    !copy.is_symlink() && is_same().unwrap_or(false)
}

/// True if an earlier copy still matches its digest.
fn is_same(copy: &Path, digest: &str) -> bool {
    let found = || hash(&mut File::open(copy)?);
    !copy.is_symlink() && found().is_ok_and(|found| found == digest)
}

fn hash(file: &mut File) -> io::Result<String> {
    Ok(hex(&sha256_of(file, |_| Ok(()))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups() -> Groups {
        Groups {
            passwd: "root:x:0:0:::\nann:x:1000:1001:::\nbob:x:1002:100:::\n".into(),
            group: "root:x:0:\nann:x:1001:\nusers:x:100:bob\nshared:x:1000:bob\n".into(),
        }
    }

    #[test]
    fn only_what_no_other_user_can_write_is_trusted() {
        let table = [
            ("own", 0o755, 1000, 1001, None),
            ("root's", 0o644, 0, 0, None),
            ("another user's", 0o755, 1002, 100, Some("another user")),
            ("writable by others", 0o777, 1000, 1001, Some("others")),
            ("its private group", 0o775, 1000, 1001, None),
            ("a shared group", 0o775, 1000, 100, Some("a group")),
            (
                "the same number, members",
                0o775,
                1000,
                1000,
                Some("a group"),
            ),
        ];
        for (name, mode, uid, gid, expected) in table {
            let found = objection(&Owner { mode, uid, gid }, 1000, &groups());
            assert_eq!(found.is_some(), expected.is_some(), "{name}: {found:?}");
            assert!(
                found
                    .unwrap_or_default()
                    .contains(expected.unwrap_or_default())
            );
        }
    }

    #[test]
    fn a_copy_is_named_by_its_digest_and_mended_when_it_was_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.so");
        std::fs::write(&path, "abc").unwrap();
        let copies = folder.path().join("copies/a");
        let kept = || {
            let mut file = File::open(&path).unwrap();
            let (copied, digest) = copy(&mut file, &path, &copies).unwrap();
            keep(copied, digest, &path, &copies).unwrap()
        };
        let vetted = kept();
        assert!(
            vetted
                .digest
                .starts_with("ba7816bf8f01cfea414140de5dae2223")
        );
        assert_eq!(
            std::fs::metadata(&vetted.copy).unwrap().mode() & 0o777,
            0o444
        );
        assert_eq!(std::fs::metadata(&copies).unwrap().mode() & 0o777, 0o700);

        std::fs::remove_file(&vetted.copy).unwrap();
        std::fs::write(&vetted.copy, "abd").unwrap();
        assert_eq!(std::fs::read(kept().copy).unwrap(), b"abc");
        assert_eq!(std::fs::read_dir(&copies).unwrap().count(), 1);
    }
}
