//! Pause markers: one empty file for each paused adapter, so that a pause survives a restart. The file's modification
//! time is the start of the pause.

use std::fs::{self, DirBuilder, DirEntry, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use jiff::Timestamp;

/// Folder of the markers below that of the state.
pub(crate) const FOLDER: &str = "paused";

/// The pause marker of one adapter.
#[derive(Clone)]
pub(crate) struct Mark {
    folder: PathBuf,
    file: PathBuf,
}

/// Adapters that are paused in a state folder.
pub fn paused(state_dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(state_dir.join(FOLDER)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let name = |entry: io::Result<DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    entries.map(name).collect()
}

impl Mark {
    /// The marker in `folder`, which holds those of all adapters.
    pub(crate) fn of(provider: &str, folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            file: folder.join(provider),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Start of the pause; `None` if the adapter is not paused.
    pub(crate) fn since(&self) -> Option<Timestamp> {
        match fs::symlink_metadata(&self.file) {
            Ok(metadata) => {
                // Without a known time the adapter is paused all the same.
                let made = metadata.modified().unwrap_or_else(|_| SystemTime::now());
                Some(Timestamp::try_from(made).unwrap_or_else(|_| Timestamp::now()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::error!(
                    "cannot check the pause marker {}: {error}",
                    self.file.display()
                );
                None
            }
        }
    }

    /// Creates the marker, durable on return. Returns the start of the pause; a repeated call does not change it.
    pub(crate) fn set(&self) -> io::Result<Timestamp> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.folder)?;
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.file);
        match made {
            Ok(file) => file.sync_all()?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        self.sync()?;
        Ok(self.since().unwrap_or_else(Timestamp::now))
    }

    /// Removes the marker, durable on return.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match fs::remove_file(&self.file) {
            Ok(()) => self.sync(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_kept_until_it_is_taken_back() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join(FOLDER);
        let (mark, other) = (Mark::of("echo", &folder), Mark::of("other", &folder));
        assert_eq!(mark.since(), None);
        assert!(paused(home.path()).unwrap().is_empty());
        mark.remove().unwrap();
        let since = mark.set().unwrap();
        assert_eq!(mark.set().unwrap(), since, "a second time changes nothing");
        assert_eq!(
            (Mark::of("echo", &folder).since(), other.since()),
            (Some(since), None)
        );
        assert_eq!(paused(home.path()).unwrap(), ["echo"]);
        mark.remove().unwrap();
        assert_eq!(mark.since(), None);
    }
}
