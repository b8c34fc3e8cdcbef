//! Disk space of checkouts: sizes, free space, and marks of attempts whose checkouts were removed for want of it.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::made::Made;
use super::name::check_id;
use super::private::STEPS;
use super::program::make_folder;
use super::trash::{ATTEMPTS, TRASH, names, remove_folder, rename_into};
use super::{Branch, Error, FolderClaim, Git};

/// Limit of the entries that are counted in one checkout.
const MAX_ENTRIES: usize = 2_000_000;
/// Longest mark that is read.
const MARK_BYTES: usize = 1024;
/// Bytes of a unit in which file systems count what a file takes.
const BLOCK: u64 = 512;

impl Git {
    /// Free bytes on the disk of the folder of runs. Blocks.
    pub fn free_bytes(&self) -> io::Result<u64> {
        free_bytes(&self.inner.folder)
    }

    /// Bytes that the checkouts of an attempt and of the agents that it has started take on the disk. Shared objects are
    /// not counted. Blocks.
    pub fn attempt_bytes(&self, run: &str, branch: &Branch) -> Result<u64, Error> {
        let own = self.attempt_folder(run, branch)?;
        let name = own.file_name().unwrap_or_default().to_string_lossy();
        let task = own.parent().unwrap_or(&own);
        let children = format!("{name}.");
        let of_attempt = |found: &String| **found == *name || found.starts_with(&children);
        let folders = names(task)?.into_iter().filter(of_attempt);
        Ok(folders.map(|found| bytes_of(&task.join(found))).sum())
    }

    /// Notes why an attempt is ended, for [`Self::mark_of`]. The note outlives the process.
    pub fn mark(&self, run: &str, branch: &Branch, text: &str) -> Result<(), Error> {
        write_mark(&mark_path(&self.attempt_folder(run, branch)?), text)
    }

    /// Note of an attempt; gone with its checkout once the end of the attempt is recorded.
    pub fn mark_of(&self, run: &str, branch: &Branch) -> Option<String> {
        let path = mark_path(&self.attempt_folder(run, branch).ok()?);
        // A mark is written by the bridge or, at worst, by the agent that it is about.
        let metadata = fs::symlink_metadata(&path).ok()?;
        if !metadata.is_file() || metadata.len() > MARK_BYTES as u64 {
            return None;
        }
        fs::read_to_string(path).ok()
    }

    pub(super) fn attempt_folder(&self, run: &str, branch: &Branch) -> Result<PathBuf, Error> {
        Ok(self
            .run_folder(run)?
            .join(ATTEMPTS)
            .join(branch.below_run()))
    }
}

impl FolderClaim {
    /// Empties the trash, and removes the checkouts of dead attempts, the largest first, until this many bytes are free.
    /// No agent may be running. Returns the number of checkouts removed. Blocks.
    pub fn make_room(&self, wanted: u64, text: &str) -> Result<usize, Error> {
        let folder = self.folder();
        let trash = folder.join(TRASH);
        remove_folder(&trash)?;
        remove_folder(&folder.join(STEPS))?;
        let is_short = || free_bytes(folder).is_ok_and(|free| free < wanted);
        if !is_short() {
            return Ok(0);
        }
        let mut checkouts = Vec::new();
        for run in names(folder)? {
            if check_id(&run).is_err() {
                continue;
            }
            let run = folder.join(run);
            remove_folder(&run.join("checks"))?;
            let attempts = run.join(ATTEMPTS);
            for task in names(&attempts)? {
                let task = attempts.join(task);
                for name in names(&task)? {
                    let checkout = task.join(name);
                    if checkout.is_dir() && !checkout.is_symlink() {
                        checkouts.push((bytes_of(&checkout), checkout));
                    }
                }
            }
        }
        checkouts.sort();
        let mut removed = 0;
        while let Some((_, checkout)) = checkouts.pop().filter(|_| is_short()) {
            Made::remove(&checkout).map_err(|error| Error::file(&checkout, error))?;
            if let Some(place) = rename_into(&trash, &checkout)? {
                remove_folder(&place)?;
            }
            // After the removal, since a mark needs space, too.
            write_mark(&mark_path(&checkout), text)?;
            removed += 1;
        }
        Ok(removed)
    }
}

/// Place of the mark beside a checkout; that of an agent which an attempt has started is the attempt's.
pub(super) fn mark_path(checkout: &Path) -> PathBuf {
    let name = checkout.file_name().unwrap_or_default().to_string_lossy();
    // One that is being made has another beginning.
    let name = name.trim_start_matches(".new-");
    let attempt = name.split('.').next().unwrap_or_default();
    checkout.with_file_name(format!(".{attempt}.ended"))
}

fn write_mark(path: &Path, text: &str) -> Result<(), Error> {
    make_folder(path.parent().unwrap_or(path))?;
    let mut text = text.to_owned();
    text.truncate(text.floor_char_boundary(MARK_BYTES));
    let written = fs::write(path, text);
    written.map_err(|error| Error::file(path, error))
}

pub(super) fn free_bytes(folder: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(folder)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Bytes of what is below a folder, without following links. What cannot be read is not counted.
pub(super) fn bytes_of(folder: &Path) -> u64 {
    let (mut open, mut total, mut entries) = (vec![folder.to_owned()], 0, 0);
    // Files with several names take their space once.
    let mut linked = HashSet::new();
    while let Some(folder) = open.pop() {
        let Ok(found) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in found.flatten() {
            entries += 1;
            if entries > MAX_ENTRIES {
                return total;
            }
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                open.push(entry.path());
            } else if metadata.nlink() > 1 && !linked.insert(metadata.ino()) {
                continue;
            }
            total += metadata.blocks() * BLOCK;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_count_once_and_links_lead_nowhere() {
        let home = tempfile::tempdir().unwrap();
        let [own, other] = ["own", "other"].map(|name| home.path().join(name));
        for folder in [&own, &other] {
            fs::create_dir_all(folder.join("deep")).unwrap();
            fs::write(folder.join("deep/file"), vec![1; 1 << 20]).unwrap();
        }
        symlink(&other, own.join("link")).unwrap();
        fs::hard_link(own.join("deep/file"), own.join("again")).unwrap();
        fs::File::create(own.join("sparse"))
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        let found = bytes_of(&own);
        assert!((1 << 20..1_200_000).contains(&found), "{found}");
    }

    #[test]
    fn the_largest_checkouts_of_dead_attempts_make_room() {
        let home = tempfile::tempdir().unwrap();
        let claim = FolderClaim::take(home.path()).unwrap();
        for (file, size) in [
            ("run_1/attempts/a/1/file", 3),
            ("run_1/attempts/a/1.2/file", 1),
            ("run_2/attempts/b/4/file", 2),
            ("run_2/repository.git/HEAD", 1),
            (".trash/x/file", 1),
        ] {
            let path = home.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![1; size << 16]).unwrap();
        }
        let exists = |path: &str| home.path().join(path).exists();
        assert_eq!(claim.make_room(0, "disk_full: x").unwrap(), 0);
        assert!(!exists(".trash/x") && exists("run_1/attempts/a/1/file"));
        assert_eq!(claim.make_room(u64::MAX, "disk_full: x").unwrap(), 3);
        for (path, expected) in [
            ("run_1/attempts/a/1", false),
            ("run_1/attempts/a/1.2", false),
            ("run_1/attempts/a/.1.ended", true),
            ("run_2/attempts/b/.4.ended", true),
            ("run_2/repository.git/HEAD", true),
        ] {
            assert_eq!(exists(path), expected, "{path}");
        }
    }
}
