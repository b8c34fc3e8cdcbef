//! Record beside a checkout: which folder was made, and at which commit. An agent that removes or replaces its folder is
//! found out by it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::CommitId;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Made {
    folder: Identity,
    /// Commit from which the changes of the attempt count.
    pub(super) at: CommitId,
}

/// An inode alone is given to the next folder when its own is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    inode: u64,
    /// Nanoseconds since 1970; 0 in file systems that do not keep it.
    born: u128,
}

impl Identity {
    fn of(folder: &File) -> io::Result<Self> {
        let metadata = folder.metadata()?;
        let born = metadata.created().ok();
        let born = born.and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Ok(Self {
            inode: metadata.ino(),
            born: born.map_or(0, |born| born.as_nanos()),
        })
    }
}

impl Made {
    pub(super) fn new(folder: &File, at: CommitId) -> io::Result<Self> {
        let folder = Identity::of(folder)?;
        Ok(Self { folder, at })
    }

    /// This record, with another commit.
    pub(super) fn from(&self, at: &CommitId) -> Self {
        Self {
            folder: self.folder.clone(),
            at: at.clone(),
        }
    }

    pub(super) fn is(&self, folder: &File) -> io::Result<bool> {
        Ok(Identity::of(folder)? == self.folder)
    }

    /// Path of the record of a folder.
    pub(super) fn path(folder: &Path) -> PathBuf {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        folder.with_file_name(format!(".made-{name}"))
    }

    /// Record of a folder; `None` without one, or if it was lost with the machine.
    pub(super) fn read(folder: &Path) -> io::Result<Option<Self>> {
        let text = match fs::read_to_string(Self::path(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let mut words = text.split_whitespace();
        let mut made = || {
            let inode = words.next()?.parse().ok()?;
            let born = words.next()?.parse().ok()?;
            let at = CommitId::parse(words.next()?)?;
            let folder = Identity { inode, born };
            Some(Self { folder, at })
        };
        Ok(made())
    }

    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        let path = Self::path(folder);
        let new = path.with_extension("new");
        let Identity { inode, born } = self.folder;
        fs::write(&new, format!("{inode} {born} {}\n", self.at))?;
        fs::rename(new, path)
    }

    pub(super) fn remove(folder: &Path) -> io::Result<()> {
        match fs::remove_file(Self::path(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}
