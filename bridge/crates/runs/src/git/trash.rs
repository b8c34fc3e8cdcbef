//! Removal of folders: each is renamed out of the way first, so that a kill leaves only trash, and deleted then.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use tokio::task::spawn_blocking;

use super::checkout::blocking;
use super::descent;
use super::made::Made;
use super::name::check_id;
use super::program::make_folder;
use super::space::mark_path;
use super::{Branch, Error, Git};

/// Folder of what is being deleted. No id of a run begins with a dot.
pub(super) const TRASH: &str = ".trash";
/// Folder of the checkouts of a run, below that of the run.
pub(super) const ATTEMPTS: &str = "attempts";

/// Deletions under way, by run.
#[derive(Default)]
pub(super) struct Removals(Mutex<HashMap<String, watch::Sender<usize>>>);

impl Removals {
    fn of(&self, run: &str) -> watch::Sender<usize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, count| *count.borrow() > 0 || count.sender_count() > 1);
        all.entry(run.to_owned()).or_default().clone()
    }
}

/// A folder out of the way, which is not deleted yet.
struct Removal {
    trash: PathBuf,
    count: watch::Sender<usize>,
}

impl Drop for Removal {
    fn drop(&mut self) {
        self.count.send_modify(|count| *count -= 1);
    }
}

impl Removal {
    fn delete(self) -> Result<(), Error> {
        remove_folder(&self.trash)
    }
}

impl Git {
    /// Removes the checkout of an attempt: it is out of the way on return, and deleted in the background. Its branch
    /// stays. Done if there is none.
    pub fn discard(&self, run: &str, branch: &Branch) -> Result<(), Error> {
        let folder = self.attempt_folder(run, branch)?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let new = folder.with_file_name(format!(".new-{name}"));
        Made::remove(&folder).map_err(|error| Error::file(&folder, error))?;
        for folder in [&folder, &new] {
            self.delete_later(run, folder)?;
        }
        if !name.contains('.') {
            let _: io::Result<()> = fs::remove_file(mark_path(&folder));
        }
        // Fails if there are others.
        let _: io::Result<()> = folder.parent().map_or(Ok(()), fs::remove_dir);
        Ok(())
    }

    /// Removes the checkout of an attempt, and keeps its mark.
    pub fn clear(&self, run: &str, branch: &Branch) -> Result<(), Error> {
        let folder = self.attempt_folder(run, branch)?;
        Made::remove(&folder).map_err(|error| Error::file(&folder, error))?;
        self.delete_later(run, &folder)
    }

    /// Names of the attempts of a run that have checkouts, by task: `<attempt>` and `<attempt>.<agent>`. Blocks.
    pub fn checkouts(&self, run: &str) -> Result<Vec<(String, String)>, Error> {
        let folder = self.run_folder(run)?.join(ATTEMPTS);
        let mut found = Vec::new();
        for task in names(&folder)? {
            for attempt in names(&folder.join(&task))? {
                let attempt = attempt.trim_start_matches(".new-");
                // Records and marks are beside the checkouts.
                if !attempt.starts_with('.') {
                    found.push((task.clone(), attempt.to_owned()));
                }
            }
        }
        Ok(found)
    }

    /// Runs that have a folder. Blocks.
    pub fn runs(&self) -> Result<Vec<String>, Error> {
        let mut found = names(&self.inner.folder)?;
        found.retain(|name| check_id(name).is_ok());
        Ok(found)
    }

    /// Removes everything of a run. Blocks.
    pub fn remove(&self, run: &str) -> Result<(), Error> {
        match self.take_away(run, &self.run_folder(run)?)? {
            Some(removal) => removal.delete(),
            None => Ok(()),
        }
    }

    pub(super) fn run_folder(&self, run: &str) -> Result<PathBuf, Error> {
        Ok(self.inner.folder.join(check_id(run)?))
    }

    /// Waits until what was removed of a run is deleted, so that checkouts that follow each other need the space of one.
    pub(super) async fn removed(&self, run: &str) {
        let mut count = self.inner.removals.of(run).subscribe();
        // It ends with the last sender, too.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    /// Removes a folder of a run.
    pub(super) async fn delete(&self, run: &str, folder: &Path) -> Result<(), Error> {
        if let Some(removal) = self.take_away(run, folder)? {
            let deleting = spawn_blocking(move || Ok(removal.delete()));
            blocking(deleting, folder).await??;
        }
        Ok(())
    }

    fn delete_later(&self, run: &str, folder: &Path) -> Result<(), Error> {
        if let Some(removal) = self.take_away(run, folder)? {
            spawn_blocking(move || {
                if let Err(error) = removal.delete() {
                    tracing::warn!("a removed folder is deleted at the next start: {error}");
                }
            });
        }
        Ok(())
    }

    fn take_away(&self, run: &str, folder: &Path) -> Result<Option<Removal>, Error> {
        let trash = self.inner.folder.join(TRASH);
        let Some(trash) = rename_into(&trash, folder)? else {
            return Ok(None);
        };
        let count = self.inner.removals.of(run);
        count.send_modify(|count| *count += 1);
        Ok(Some(Removal { trash, count }))
    }
}

/// Moves a folder into the trash; returns its place there, `None` if there is no such folder.
pub(super) fn rename_into(trash: &Path, folder: &Path) -> Result<Option<PathBuf>, Error> {
    make_folder(trash)?;
    let place = tempfile::Builder::new().prefix("").tempdir_in(trash);
    // An empty folder is replaced by a rename.
    let place = place.map_err(|error| Error::file(trash, error))?.keep();
    match fs::rename(folder, &place) {
        Ok(()) => Ok(Some(place)),
        Err(error) => {
            let _: io::Result<()> = fs::remove_dir(&place);
            match error.kind() {
                io::ErrorKind::NotFound => Ok(None),
                // Something else than a folder was put there.
                io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
                    fs::remove_file(folder).map_err(|error| Error::file(folder, error))?;
                    Ok(None)
                }
                _ => Err(Error::file(folder, error)),
            }
        }
    }
}

/// Names in a folder; none if there is no such folder.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let read = || {
        let entries = match fs::read_dir(folder) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(Vec::new());
            }
            entries => entries?,
        };
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().into_string().ok());
        let named: io::Result<Vec<_>> = entries.map(name).collect();
        Ok(named?.into_iter().flatten().collect())
    };
    read().map_err(|error| Error::file(folder, error))
}

/// Removes a folder that an agent may have closed to its owner.
pub(super) fn remove_folder(path: &Path) -> Result<(), Error> {
    descent::remove(path).map_err(|error| Error::file(path, error))
}
