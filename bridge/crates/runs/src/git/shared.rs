//! Objects that the copies of one run share. They are a second copy of what the run begins with: nothing is read from
//! it but by the copies, so an agent that damages it spoils copies of its own run only, and it is made again.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::task::spawn_blocking;

use super::checkout::blocking;
use super::repository::make_repository;
use super::tree::{Entry, Tree};
use super::{CommitId, Error, Repository};

impl Repository {
    /// Folder of the shared objects; made by the first call.
    pub(super) async fn shared_objects(&self) -> Result<PathBuf, Error> {
        let _making = self.sharing().lock().await;
        let shared = self.folder().join("shared.git");
        let objects = shared.join("objects");
        if fs::exists(&objects).map_err(|error| Error::file(&objects, error))? {
            return Ok(objects);
        }
        let new = self.folder().join(".new-shared.git");
        for folder in [&shared, &new] {
            self.git().delete(self.run(), folder).await?;
        }
        let (bare, base, made) = (self.bare().to_owned(), self.base().clone(), new.clone());
        let copying = spawn_blocking(move || Ok(copy(&bare, &made, &base)));
        blocking(copying, &new).await??;
        fs::rename(&new, &shared).map_err(|error| Error::file(&shared, error))?;
        Ok(objects)
    }

    /// Removes the shared objects, which the next copy makes again.
    pub(super) async fn discard_shared(&self) -> Result<(), Error> {
        let _making = self.sharing().lock().await;
        let shared = self.folder().join("shared.git");
        self.git().delete(self.run(), &shared).await
    }
}

fn copy(bare: &Path, new: &Path, base: &CommitId) -> Result<(), Error> {
    make_repository(new, true, "none", base)?;
    let from = bare.join("objects");
    copy_objects(&from, &new.join("objects")).map_err(|error| Error::file(&from, error))?;
    for folder in ["info", "refs", ""].map(|name| new.join(name)) {
        fs::set_permissions(&folder, Permissions::from_mode(0o555))
            .map_err(|error| Error::file(&folder, error))?;
    }
    Ok(())
}

/// Copies the files of a folder of objects and of the folders in it. No link is followed, and none is made: a file of
/// the repository that is pushed never has a second name that an agent can write to.
fn copy_objects(from: &Path, to: &Path) -> io::Result<()> {
    let tree = Tree::open(from)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type()?.is_dir() {
            if name != "info" {
                fs::create_dir_all(to.join(&name))?;
                copy_objects(&entry.path(), &to.join(&name))?;
            }
        } else if let Entry::File(mut file, ..) = tree.entry(name.as_bytes())? {
            let mut options = File::options();
            let options = options.write(true).create_new(true).mode(0o444);
            // Shares the blocks where the file system can.
            io::copy(&mut file, &mut options.open(to.join(&name))?)?;
        }
    }
    fs::set_permissions(to, Permissions::from_mode(0o555))
}
