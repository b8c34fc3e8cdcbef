//! Lock of a branch, as git takes it: a file beside that of the branch, which then takes its place.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use tokio::task::spawn_blocking;

use super::checkout::blocking;
use super::program::make_folder;
use super::{CommitId, Error};

/// While it exists, nothing else moves the branch.
pub(super) struct Lock {
    branch: PathBuf,
    file: PathBuf,
    is_held: bool,
}

impl Lock {
    /// Locks the branch with this file, to move it to a commit.
    pub(super) async fn take(branch: PathBuf, to: &CommitId) -> Result<Self, Error> {
        let name = branch.file_name().unwrap_or_default().to_string_lossy();
        let file = branch.with_file_name(format!("{name}.lock"));
        make_folder(file.parent().unwrap_or(Path::new("/")))?;
        let text = format!("{to}\n");
        let shown = file.clone();
        let writing = spawn_blocking(move || {
            let mut options = File::options();
            let mut opened = options
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&file)?;
            let lock = Self {
                branch,
                file,
                is_held: true,
            };
            opened.write_all(text.as_bytes())?;
            opened.sync_all()?;
            Ok(lock)
        });
        blocking(writing, &shown).await
    }

    /// Moves the branch.
    pub(super) fn apply(mut self) -> Result<(), Error> {
        let moved = fs::rename(&self.file, &self.branch);
        self.is_held = moved.is_err();
        moved.map_err(|error| Error::file(&self.branch, error))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.is_held {
            // One that is left is removed when the repository is attached again.
            let _: io::Result<()> = fs::remove_file(&self.file);
        }
    }
}
