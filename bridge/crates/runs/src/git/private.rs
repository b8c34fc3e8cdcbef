//! Git directory of one step: refs and objects of a repository of a run, with settings that the bridge writes for that
//! step. An agent that runs as the user of the bridge can change the files of the repository, and git reads settings,
//! attributes and hooks there that start programs and choose where credentials are sent. It reads none of them now.
//!
//! Making a directory takes longer than most steps, so a later step of the repository uses it again, if it is exactly
//! as it was made.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::OFlags;
use tempfile::TempDir;

use super::Error;
use super::program::make_folder;
use super::settings::{self, ATTRIBUTES};

/// Folder of the git directories of steps. No id of a run begins with a dot.
pub(super) const STEPS: &str = ".steps";

/// Directories without a step that are kept.
const IDLE: usize = 16;
const HEAD: &str = "ref: refs/heads/none\n";
/// Entries of the repository that a step sees.
const LINKED: [&str; 3] = ["refs", "objects", "packed-refs"];

/// Directories of steps that have ended.
#[derive(Default)]
pub(super) struct GitDirs(Mutex<VecDeque<GitDir>>);

/// Directory of a step, removed with it unless it is kept.
pub(super) struct GitDir {
    folder: TempDir,
    repository: PathBuf,
    /// Length of the ids in the repository.
    digits: usize,
}

impl GitDirs {
    /// A directory for a step in this repository.
    pub(super) fn take(
        &self,
        steps: &Path,
        repository: &Path,
        digits: usize,
    ) -> Result<GitDir, Error> {
        remove_alternates(repository).map_err(|error| Error::file(repository, error))?;
        while let Some(kept) = self.kept(repository, digits) {
            if kept.is_as_made() {
                return Ok(kept);
            }
        }
        GitDir::make(steps, repository, digits).map_err(|error| Error::file(steps, error))
    }

    /// Keeps the directory of a step that has ended.
    pub(super) fn keep(&self, git_dir: GitDir) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = (idle.len() >= IDLE).then(|| idle.pop_front());
        idle.push_back(git_dir);
        // Removed without the lock.
        drop(idle);
        drop(oldest);
    }

    fn kept(&self, repository: &Path, digits: usize) -> Option<GitDir> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |kept: &GitDir| kept.repository == repository && kept.digits == digits;
        let found = idle.iter().rposition(fits)?;
        idle.remove(found)
    }
}

impl GitDir {
    fn make(steps: &Path, repository: &Path, digits: usize) -> io::Result<Self> {
        make_folder(steps).map_err(io::Error::other)?;
        let mut folder = tempfile::Builder::new();
        let folder = folder.permissions(Permissions::from_mode(0o700));
        let made = Self {
            folder: folder.tempdir_in(steps)?,
            repository: repository.to_owned(),
            digits,
        };
        for linked in LINKED {
            symlink(repository.join(linked), made.path().join(linked))?;
        }
        fs::create_dir(made.path().join("info"))?;
        for (name, text) in made.files() {
            let mut options = File::options();
            let file = options.write(true).create_new(true).mode(0o600);
            file.open(made.path().join(name))?
                .write_all(text.as_bytes())?;
        }
        Ok(made)
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn files(&self) -> [(&'static str, String); 3] {
        [
            ("config", settings::repository(true, self.digits)),
            ("HEAD", HEAD.to_owned()),
            ("info/attributes", ATTRIBUTES.to_owned()),
        ]
    }

    /// True if it has the entries that it was made with, each with its content, and no other one.
    fn is_as_made(&self) -> bool {
        let has = |folder: &str, wanted: &[&str]| {
            let found = fs::read_dir(self.path().join(folder));
            let found = found.and_then(|all| all.map(|entry| Ok(entry?.file_name())).collect());
            let wanted: BTreeSet<OsString> = wanted.iter().map(Into::into).collect();
            found.is_ok_and(|found: BTreeSet<OsString>| found == wanted)
        };
        let is_linked = |name: &&str| {
            let target = fs::read_link(self.path().join(name));
            target.is_ok_and(|target| target == self.repository.join(name))
        };
        let is_written = |(name, text): &(&str, String)| {
            read(&self.path().join(name), text.len()).is_ok_and(|found| found == text.as_bytes())
        };
        let [refs, objects, packed] = LINKED;
        has("", &[refs, objects, packed, "info", "config", "HEAD"])
            && has("info", &["attributes"])
            && LINKED.iter().all(is_linked)
            && self.files().iter().all(is_written)
    }
}

/// Up to one byte more than this.
fn read(path: &Path, bytes: usize) -> io::Result<Vec<u8>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let file = File::options()
        .read(true)
        .custom_flags(flags.cast_signed())
        .open(path)?;
    let mut found = Vec::new();
    file.take(bytes as u64 + 1).read_to_end(&mut found)?;
    Ok(found)
}

/// Objects of other repositories: none of ours has any.
fn remove_alternates(repository: &Path) -> io::Result<()> {
    match fs::remove_file(repository.join("objects/info/alternates")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = (&'static str, fn(&Path) -> io::Result<()>);

    /// Changes that an agent of the same user can make to a directory that is kept.
    const CHANGES: [Change; 7] = [
        ("settings", |own| {
            fs::write(own.join("config"), "[core]\n\tfsmonitor = x\n")
        }),
        ("a link in place of settings", |own| {
            fs::rename(own.join("config"), own.with_extension("moved"))?;
            symlink(own.with_extension("moved"), own.join("config"))
        }),
        ("attributes", |own| {
            fs::write(own.join("info/attributes"), "* filter=x\n")
        }),
        ("other objects", |own| {
            fs::remove_file(own.join("objects"))?;
            symlink("/tmp", own.join("objects"))
        }),
        ("another common directory", |own| {
            fs::write(own.join("commondir"), "/tmp\n")
        }),
        ("an exclusion", |own| {
            fs::write(own.join("info/exclude"), "*\n")
        }),
        ("a file that is missing", |own| {
            fs::remove_file(own.join("HEAD"))
        }),
    ];

    #[test]
    fn a_directory_is_used_again_unless_it_was_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (steps, repository) = (folder.path().join("steps"), folder.path().join("a.git"));
        let dirs = GitDirs::default();
        let take = || dirs.take(&steps, &repository, 40).unwrap();
        let first = take();
        let path = first.path().to_owned();
        dirs.keep(first);
        let again = take();
        assert_eq!(again.path(), path);
        dirs.keep(again);
        let other = dirs.take(&steps, &folder.path().join("b.git"), 40).unwrap();
        assert_ne!(other.path(), path);
        for (name, change) in CHANGES {
            let kept = take();
            let path = kept.path().to_owned();
            change(&path).unwrap();
            dirs.keep(kept);
            let next = take();
            assert_ne!(next.path(), path, "{name}");
            assert!(!path.exists(), "{name}");
            assert!(next.is_as_made());
        }
    }

    #[test]
    fn a_bounded_number_of_directories_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (steps, repository) = (folder.path().join("steps"), folder.path().join("a.git"));
        let dirs = GitDirs::default();
        let taken = || dirs.take(&steps, &repository, 40).unwrap();
        let all: Vec<_> = (0..IDLE + 4).map(|_| taken()).collect();
        all.into_iter().for_each(|one| dirs.keep(one));
        assert_eq!(fs::read_dir(&steps).unwrap().count(), IDLE);
    }
}
