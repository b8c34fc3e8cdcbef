//! Git directory of one step: refs and objects of a repository of a run, with settings that the bridge writes for that
//! step. An agent that runs as the user of the bridge can change the files of the repository, and git reads settings,
//! attributes and hooks there that start programs and choose where credentials are sent. It reads none of them now.

use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use tempfile::TempDir;

use super::Error;
use super::program::make_folder;
use super::settings::{self, ATTRIBUTES};

/// Folder of the git directories of steps. No id of a run begins with a dot.
pub(super) const STEPS: &str = ".steps";

/// Makes the git directory of a step, which is removed with the result. `digits` is the length of the ids in the
/// repository.
pub(super) fn git_dir(steps: &Path, repository: &Path, digits: usize) -> Result<TempDir, Error> {
    make_folder(steps)?;
    let make = || {
        let mut folder = tempfile::Builder::new();
        let folder = folder.permissions(Permissions::from_mode(0o700));
        let folder = folder.tempdir_in(steps)?;
        let own = folder.path();
        for linked in ["refs", "objects", "packed-refs"] {
            symlink(repository.join(linked), own.join(linked))?;
        }
        fs::create_dir(own.join("info"))?;
        write(&own.join("config"), &settings::repository(true, digits))?;
        write(&own.join("HEAD"), "ref: refs/heads/none\n")?;
        write(&own.join("info/attributes"), ATTRIBUTES)?;
        // Objects of other repositories: none of ours has any.
        match fs::remove_file(repository.join("objects/info/alternates")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(folder),
        }
    };
    make().map_err(|error| Error::file(steps, error))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut options = File::options();
    let file = options.write(true).create_new(true).mode(0o600);
    file.open(path)?.write_all(text.as_bytes())
}
