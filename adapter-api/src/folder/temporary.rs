//! Temporary folders of a process, which the next one removes if it was killed.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::Errno;
use tempfile::TempDir;

use super::{Folder, ownership};
use crate::User;

const PRIVATE: u32 = 0o700;

/// A temporary folder that only this user can access, until it is given to the user of a program. Removed when the last
/// clone is dropped.
#[derive(Clone, Debug)]
pub struct TempFolder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: TempDir,
    /// Held while the folder is in use. The system releases it when the process is killed.
    lock: File,
    /// The folder belongs to the user of its programs, or giving it has failed.
    is_given: Mutex<bool>,
}

impl TempFolder {
    /// Creates `forge-<name>.<random>` in the system's folder for temporary files. `name` contains no dot.
    pub fn create(name: &str) -> io::Result<Self> {
        Self::create_in(&std::env::temp_dir(), name)
    }

    /// The same in another folder. If programs of another user work in it, `parent` must not be writable for that user:
    /// [`Host::temp_folder`](crate::Host::temp_folder) chooses such a folder.
    pub fn create_in(parent: &Path, name: &str) -> io::Result<Self> {
        let parent = parent.canonicalize()?;
        loop {
            let folder = tempfile::Builder::new()
                .prefix(&prefix(name))
                .permissions(Permissions::from_mode(PRIVATE))
                .tempdir_in(&parent)?;
            // `None`: `remove_leftovers` of another process was faster than the lock.
            if let Some(lock) = lock(folder.path())? {
                let is_given = Mutex::new(false);
                return Ok(Self(Arc::new(Inner {
                    folder,
                    lock,
                    is_given,
                })));
            }
        }
    }

    /// Absolute path without symbolic links.
    pub fn path(&self) -> &Path {
        self.0.folder.path()
    }

    /// Creates a folder in this one with the same access.
    pub fn subfolder(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path().join(name);
        DirBuilder::new().mode(PRIVATE).create(&path)?;
        Ok(path)
    }

    /// Removes the folders of this name that killed processes left behind. Those in use stay.
    pub fn remove_leftovers(name: &str) {
        Self::remove_leftovers_in(&std::env::temp_dir(), name);
    }

    /// The same in another folder.
    pub fn remove_leftovers_in(parent: &Path, name: &str) {
        remove(parent, &prefix(name));
    }

    /// Gives the folder and everything in it to the user of its programs, before the first of them starts. Further calls
    /// do nothing, since the folder is that user's by then.
    pub(crate) fn give(&self, user: &User) -> io::Result<()> {
        let is_given = self.0.is_given.lock();
        let mut is_given = is_given.unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_given, true) {
            return Ok(());
        }
        ownership::give(&self.0.lock, user)
    }

    /// Opens this folder, or one below it; `None` for a path that is outside.
    pub(crate) fn open(&self, path: &Path) -> Option<io::Result<Folder>> {
        let below = path.strip_prefix(self.path()).ok()?;
        Some(Folder::open_from(&self.0.lock, below, path))
    }
}

fn prefix(name: &str) -> String {
    // Names contain no dot, so no prefix is the beginning of another one.
    format!("forge-{name}.")
}

/// Locks a folder; `None` if it is in use, or removed.
fn lock(folder: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = match openat(CWD, folder, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => File::from(opened?),
    };
    match flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    let locked = opened.metadata()?;
    let is_there = fs::symlink_metadata(folder)
        .is_ok_and(|found| (found.dev(), found.ino()) == (locked.dev(), locked.ino()));
    Ok(is_there.then_some(opened))
}

fn remove(parent: &Path, prefix: &str) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        let folder = entry.path();
        // An error: the folder of another user, or a file.
        let Ok(Some(_lock)) = lock(&folder) else {
            continue;
        };
        // Follows no links.
        if let Err(error) = fs::remove_dir_all(&folder) {
            tracing::warn!(
                "cannot remove {} of a killed process: {error}",
                folder.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_killed_processes_are_removed_and_those_in_use_stay() {
        let parent = tempfile::tempdir().unwrap();
        for name in ["forge-x.left", "forge-x.used", "forge-x-y.left", "other"] {
            fs::create_dir(parent.path().join(name)).unwrap();
            fs::write(parent.path().join(name).join("file"), "").unwrap();
        }
        fs::write(parent.path().join("forge-x.file"), "").unwrap();
        let used = parent.path().join("forge-x.used");
        let held = lock(&used).unwrap().unwrap();
        assert!(lock(&used).unwrap().is_none());
        let left = || {
            remove(parent.path(), "forge-x.");
            let entries = fs::read_dir(parent.path()).unwrap();
            let mut left: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            left.sort();
            left
        };
        let kept = ["forge-x-y.left", "forge-x.file", "forge-x.used", "other"];
        assert_eq!(left(), kept);
        drop(held);
        assert_eq!(left(), ["forge-x-y.left", "forge-x.file", "other"]);
    }

    #[test]
    fn only_this_user_can_access_a_folder_and_it_goes_with_its_owner() {
        let folder = TempFolder::create("test").unwrap();
        let inner = folder.subfolder("tmp").unwrap();
        for path in [folder.path(), &inner] {
            assert_eq!(path.metadata().unwrap().mode() & 0o7777, PRIVATE);
        }
        TempFolder::remove_leftovers("test");
        assert!(inner.exists(), "it is in use");
        let path = folder.path().to_owned();
        drop(folder);
        assert!(!path.exists());
    }
}
