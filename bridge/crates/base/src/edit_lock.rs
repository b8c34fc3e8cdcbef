//! One process at a time that reads a file, changes it and replaces it: of two at once, the second one would undo the
//! first. Readers need no lock, because the file is replaced as a whole.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::folder_lock::parent;

/// Wait for another process. A change takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const LOCK_POLL: Duration = Duration::from_millis(10);

/// Lock for a change, held until it is dropped; the kernel releases it when the process dies. It is on the folder, because
/// the file itself is replaced, and leaves no file behind.
#[derive(Debug)]
pub struct EditLock {
    _folder: File,
}

#[derive(Debug, thiserror::Error)]
pub enum EditLockError {
    #[error("another process changes files in {folder}, and has not finished for {} s; try again", LOCK_TIMEOUT.as_secs())]
    Held { folder: PathBuf },
    #[error("cannot lock {folder}")]
    Folder { folder: PathBuf, source: io::Error },
}

impl EditLock {
    /// Waits up to 10 s for the lock of the folder that the file, or the target of a link, is in. The folder must exist.
    /// The file must be read again afterwards.
    pub fn take(file: &Path) -> Result<Self, EditLockError> {
        Self::take_within(file, LOCK_TIMEOUT)
    }

    fn take_within(file: &Path, timeout: Duration) -> Result<Self, EditLockError> {
        let real = file.canonicalize();
        // A missing file is created beside its name.
        let folder = parent(real.as_deref().unwrap_or(file));
        let failed = |source| EditLockError::Folder {
            folder: folder.to_owned(),
            source,
        };
        let opened = File::open(folder).map_err(failed)?;
        let begun = Instant::now();
        loop {
            match opened.try_lock() {
                Ok(()) => return Ok(Self { _folder: opened }),
                Err(TryLockError::WouldBlock) if begun.elapsed() < timeout => sleep(LOCK_POLL),
                Err(TryLockError::WouldBlock) => {
                    let folder = folder.to_owned();
                    return Err(EditLockError::Held { folder });
                }
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn one_at_a_time_changes_a_file_also_by_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (folder.path().join("own"), folder.path().join("other"));
        for folder in [&own, &other] {
            fs::create_dir(folder).unwrap();
        }
        let (file, link) = (own.join("file"), other.join("link"));
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let lock = EditLock::take(&file).unwrap();
        for same in [&file, &link, &own.join("missing")] {
            let held = EditLock::take_within(same, Duration::ZERO).unwrap_err();
            assert!(matches!(held, EditLockError::Held { .. }), "{held}");
        }
        EditLock::take(&other.join("missing")).unwrap();
        drop(lock);
        EditLock::take(&link).unwrap();
    }
}
