//! Trust checks of adapter files, and the private copy of a library that is loaded instead, so that the file cannot be
//! exchanged between check and use.

use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::boundary::format;
use crate::boundary::load_error::LoadError;
use crate::boundary::loaded_images::LoadedImages;
use forge_base::digest::{hex, sha256_of};
use forge_base::failpoint;
pub use forge_base::ownership::Trust;
use forge_base::ownership::{self, LastLink};

/// A library that passed the checks, as a private copy.
pub(crate) struct Vetted {
    pub copy: PathBuf,
    /// SHA-256 in lower-case hexadecimal digits.
    pub digest: String,
}

/// Rules that the file of an adapter is checked against.
#[derive(Clone, Copy)]
pub(crate) struct FileRules<'a> {
    pub trust: Trust,
    /// SHA-256 from the allow-list, in hexadecimal digits.
    pub digest: Option<&'a str>,
}

/// Rules for a library that is about to be loaded.
pub(crate) struct Rules<'a> {
    pub file: FileRules<'a>,
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
    let mut file = open_library(path, rules.file)?;

    failpoint::point("copy.before");
    let (copied, digest) = copy(&mut file, path, rules.copies)?;
    check_digest(path, rules.file, &digest)?;
    failpoint::point("copy.written");
    let vetted = keep(copied, digest, path, rules.copies)?;
    failpoint::point("copy.after");
    Ok(vetted)
}

/// Opens a library that is trusted and of this platform, at its beginning.
fn open_library(path: &Path, rules: FileRules<'_>) -> Result<File, LoadError> {
    let unreadable = |source: io::Error| unreadable(path, source);
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
    Ok(file)
}

/// Checks a library without copying it.
pub(crate) fn inspect(path: &Path, rules: FileRules<'_>) -> Result<(), LoadError> {
    let mut file = open_library(path, rules)?;
    let digest = hash(&mut file).map_err(|source| unreadable(path, source))?;
    check_digest(path, rules, &digest)
}

fn unreadable(path: &Path, source: io::Error) -> LoadError {
    LoadError::Read {
        path: path.to_owned(),
        source,
    }
}

/// Checks a program and returns its SHA-256. A program is not copied: it might need the files beside it.
pub(crate) fn vet_program(path: &Path, rules: FileRules<'_>) -> Result<String, LoadError> {
    let (mut file, metadata) = open_trusted(path, rules)?;
    if metadata.mode() & 0o111 == 0 {
        return Err(LoadError::NoProgram(path.to_owned()));
    }
    let digest = hash(&mut file).map_err(|source| unreadable(path, source))?;
    check_digest(path, rules, &digest)?;
    Ok(digest)
}

fn check_digest(path: &Path, rules: FileRules<'_>, found: &str) -> Result<(), LoadError> {
    match rules.digest {
        Some(wanted) if !wanted.eq_ignore_ascii_case(found) => Err(LoadError::DigestMismatch {
            path: path.to_owned(),
            found: found.to_owned(),
            wanted: wanted.to_owned(),
        }),
        Some(_) | None => Ok(()),
    }
}

/// Opens a file that no other user can exchange; logs a warning for any other file if the policy is `Warn`.
fn open_trusted(path: &Path, rules: FileRules<'_>) -> Result<(File, Metadata), LoadError> {
    let opened = ownership::open(path, LastLink::Refuse);
    let checked = opened.map_err(|source| match path.is_symlink() {
        true => LoadError::Symlink(path.to_owned()),
        false => LoadError::Read {
            path: path.to_owned(),
            source,
        },
    })?;
    if !checked.metadata.is_file() {
        return Err(LoadError::NoRegularFile(path.to_owned()));
    }
    for objection in checked.objections {
        match rules.trust {
            Trust::Enforce => return Err(LoadError::Untrusted(objection)),
            Trust::Warn => tracing::warn!("{objection} (loaded anyway: trust = \"warn\")"),
        }
    }
    Ok((checked.file, checked.metadata))
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
        let permissions = Permissions::from_mode(0o400);
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
            0o400
        );
        assert_eq!(std::fs::metadata(&copies).unwrap().mode() & 0o777, 0o700);

        std::fs::remove_file(&vetted.copy).unwrap();
        std::fs::write(&vetted.copy, "abd").unwrap();
        assert_eq!(std::fs::read(kept().copy).unwrap(), b"abc");
        assert_eq!(std::fs::read_dir(&copies).unwrap().count(), 1);
    }
}
