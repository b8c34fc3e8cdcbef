//! Claim on the folder of all runs: one bridge uses it, that of the store which knows its runs.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::program::make_folder;

/// Longest id of a store that is read.
const ID_BYTES: u64 = 256;

/// Reason why a bridge must not use the folder.
#[derive(Debug, thiserror::Error)]
pub enum Unclaimed {
    #[error("another bridge uses the folder of runs {}: give each bridge its own `runs.folder`", .0.display())]
    InUse(PathBuf),
    #[error(
        "the folder of runs {} belongs to another store ({owner}): set `runs.folder` to another folder, or remove this one",
        folder.display()
    )]
    Foreign { folder: PathBuf, owner: String },
    #[error("the folder of runs {} cannot be used", folder.display())]
    Unusable {
        folder: PathBuf,
        #[source]
        error: io::Error,
    },
}

/// The folder of all runs, while no other process has it. Released on drop, and by a kill.
#[derive(Debug)]
pub struct FolderClaim {
    folder: PathBuf,
    file: File,
}

impl FolderClaim {
    /// Creates the folder if it is missing, and claims it. Blocks.
    pub fn take(folder: &Path) -> Result<Self, Unclaimed> {
        let unusable = |error| Unclaimed::Unusable {
            folder: folder.to_owned(),
            error,
        };
        make_folder(folder).map_err(|error| unusable(io::Error::other(error)))?;
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.mode(0o600).open(folder.join(".lock"));
        let file = file.map_err(unusable)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self {
                folder: folder.to_owned(),
                file,
            }),
            Err(Errno::WOULDBLOCK) => Err(Unclaimed::InUse(folder.to_owned())),
            Err(error) => Err(unusable(error.into())),
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes the folder that of a store. Folders of runs that the store does not know are removed, so that of another
    /// store is refused, unless `is_own`: nothing else than this store can have used it.
    pub fn bind(&mut self, store: &str, is_own: bool) -> Result<(), Unclaimed> {
        let mut owner = String::new();
        let read = (&self.file).take(ID_BYTES).read_to_string(&mut owner);
        if read.is_ok() && owner == store {
            return Ok(());
        }
        if !owner.is_empty() && !is_own {
            let folder = self.folder.clone();
            return Err(Unclaimed::Foreign { folder, owner });
        }
        let mut write = || {
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.file.write_all(store.as_bytes())
        };
        write().map_err(|error| Unclaimed::Unusable {
            folder: self.folder.clone(),
            error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_of_one_store_has_the_folder() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("runs");
        let mut claim = FolderClaim::take(&folder).unwrap();
        assert!(matches!(
            FolderClaim::take(&folder),
            Err(Unclaimed::InUse(_))
        ));
        claim.bind("store_a", false).unwrap();
        drop(claim);
        for (store, is_own, is_bound) in [
            ("store_a", false, true),
            ("store_b", false, false),
            ("store_b", true, true),
            ("store_a", false, false),
            ("store_b", false, true),
        ] {
            let bound = FolderClaim::take(&folder).unwrap().bind(store, is_own);
            assert_eq!(bound.is_ok(), is_bound, "{store}: {bound:?}");
        }
    }
}
