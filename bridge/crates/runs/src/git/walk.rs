//! The walk of an agent's folder: what differs from a commit, and what is left out. Nothing is read before it is known
//! to be a regular file, and entries, rules and time are bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::fs::{AtFlags, FileType, Mode, openat, statat};
use rustix::io::Errno;

use super::descent::{Descent, names};
use super::ignore::{RULE_BYTES, Rules};
use super::path::{is_git, shown};
use super::tree::{self, Entry, LINK, READ_FOLDER, SUBMODULE, Tree};
use super::{Error, LeftOut};

/// Largest file that is committed.
pub(super) const FILE_BYTES: u64 = 64 * 1024 * 1024;
/// Longest path that git can check out again.
const PATH_BYTES: usize = 4095;
/// Limit of the entries of a folder with all below it, without what is ignored.
const ENTRIES: usize = 1_000_000;
/// Limit of the files that one commit changes.
const CHANGES: usize = 100_000;
/// Limits of the entries that are reported as left out, and of their paths.
const REPORTED: usize = 100;
const REPORTED_BYTES: usize = 64 * 1024;
/// Beginning of a file `.git` that names a repository.
const GIT_FILE: &[u8] = b"gitdir: ";

/// Mode and id of each path of a commit.
pub(super) type Tracked = BTreeMap<Vec<u8>, (String, String)>;

/// Difference between a folder and a commit.
#[derive(Default)]
pub(super) struct Difference {
    pub(super) removed: Vec<Vec<u8>>,
    pub(super) written: Vec<Vec<u8>>,
    /// Files whose content is that of the commit.
    pub(super) moded: Vec<(Vec<u8>, &'static str)>,
    /// Tracked files that are too large to be committed, unless they are unchanged.
    pub(super) large: Vec<Large>,
    pub(super) left_out: LeftOuts,
}

impl Difference {
    /// All paths that differ.
    pub(super) fn paths(&self) -> impl Iterator<Item = &[u8]> {
        let moded = self.moded.iter().map(|(path, _)| path);
        let paths = self.removed.iter().chain(&self.written).chain(moded);
        paths.map(Vec::as_slice)
    }
}

pub(super) struct Large {
    pub(super) path: Vec<u8>,
    pub(super) size: u64,
    pub(super) mode: &'static str,
}

/// Entries that were left out: the first ones, and their number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOuts {
    pub listed: Vec<LeftOut>,
    pub total: usize,
    bytes: usize,
}

impl LeftOuts {
    pub(super) fn add(&mut self, path: &[u8], reason: &'static str) {
        self.total += 1;
        let path = shown(path);
        self.bytes += path.len();
        if self.listed.len() < REPORTED && self.bytes <= REPORTED_BYTES {
            self.listed.push(LeftOut { path, reason });
        }
    }
}

/// Fails if the time for a folder is over.
pub(super) fn check_time(until: Instant) -> Result<(), Error> {
    match Instant::now() > until {
        true => Err(Error::TooLarge(
            "the folder of the agent, which cannot be read within runs.git_timeout,".to_owned(),
        )),
        false => Ok(()),
    }
}

/// Compares a folder with a commit. A tracked file that cannot be read is an error; others are left out.
pub(super) fn compare(
    tree: &Tree,
    tracked: &Tracked,
    decided: &BTreeSet<Vec<u8>>,
    until: Instant,
) -> Result<Difference, Error> {
    let mut walk = Walk {
        tree,
        tracked,
        decided,
        until,
        missing: tracked.keys().map(Vec::as_slice).collect(),
        path: Vec::new(),
        levels: Vec::new(),
        entries: 0,
        faults: Vec::new(),
        found: Difference::default(),
    };
    walk.run()?;
    let Walk {
        missing,
        faults,
        mut found,
        ..
    } = walk;
    if let Some((path, reason)) = faults.first() {
        return Err(Error::Unreadable {
            path: shown(path),
            reason,
            others: faults.len() - 1,
        });
    }
    let is_file = |path: &&&[u8]| {
        tracked
            .get(**path)
            .is_some_and(|(mode, _)| mode != SUBMODULE)
    };
    found.removed = missing
        .iter()
        .filter(is_file)
        .map(|path| path.to_vec())
        .collect();
    found.written.sort_unstable();
    found.left_out.listed.sort_unstable();
    let number = found.removed.len() + found.written.len() + found.moded.len();
    match number > CHANGES {
        true => Err(Error::TooLarge(format!("the change of {number} files"))),
        false => Ok(found),
    }
}

struct Walk<'a> {
    tree: &'a Tree,
    tracked: &'a Tracked,
    /// Paths that are never ignored.
    decided: &'a BTreeSet<Vec<u8>>,
    until: Instant,
    /// Tracked paths that were not met.
    missing: BTreeSet<&'a [u8]>,
    /// The folder, with a slash at its end unless it is the first.
    path: Vec<u8>,
    levels: Vec<Level>,
    entries: usize,
    /// Tracked paths that cannot be read.
    faults: Vec<(Vec<u8>, &'static str)>,
    found: Difference,
}

/// Folder on the way.
struct Level {
    /// Length of its path.
    length: usize,
    rules: Option<Rules>,
    /// Folders in it that are still to be visited, and true if only what is tracked counts in them.
    folders: Vec<(CString, bool)>,
}

impl<'a> Walk<'a> {
    fn run(&mut self) -> Result<(), Error> {
        let mut descent = Descent::new(self.tree.open_root()?)?;
        self.visit(&descent, false)?;
        while let Some(level) = self.levels.last_mut() {
            self.path.truncate(level.length);
            let Some((name, is_excluded)) = level.folders.pop() else {
                self.levels.pop();
                descent.up()?;
                continue;
            };
            self.path.extend_from_slice(name.to_bytes());
            self.path.push(b'/');
            match descent.down(&name) {
                Ok(()) => self.visit(&descent, is_excluded)?,
                Err(Errno::ACCESS | Errno::PERM) => self.refuse_folder("it cannot be read"),
                // It was there a moment ago; what was tracked in it is removed.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => return Err(std::io::Error::from(error).into()),
            }
        }
        Ok(())
    }

    /// Reads the folder of the path: its files at once, its folders later.
    fn visit(&mut self, descent: &Descent, mut is_excluded: bool) -> Result<(), Error> {
        let here = descent.here();
        let mut names = names(here, ENTRIES - self.entries)?;
        self.entries += names.len();
        if self.entries > ENTRIES {
            return Err(Error::TooLarge(format!(
                "the folder of the agent, which has more than {ENTRIES} entries that are not ignored,"
            )));
        }
        names.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let has = |wanted: &[u8]| names.iter().any(|(name, _)| name.to_bytes() == wanted);
        if !self.path.is_empty() && !is_excluded && has(b".git") && is_repository(here, self.tree)?
        {
            self.leave_out_folder("it is a repository of its own");
            is_excluded = true;
        }
        let rules = match !is_excluded && has(b".gitignore") {
            true => self.rules(here)?,
            false => None,
        };
        let (length, folders) = (self.path.len(), Vec::new());
        self.levels.push(Level {
            length,
            rules,
            folders,
        });
        for (name, kind) in names {
            check_time(self.until)?;
            self.path.truncate(length);
            self.path.extend_from_slice(name.to_bytes());
            match kind {
                FileType::Directory => self.folder(here, name, is_excluded)?,
                kind => self.file(here, &name, kind, is_excluded)?,
            }
        }
        if let Some(level) = self.levels.last_mut() {
            level.folders.reverse();
        }
        Ok(())
    }

    fn folder(&mut self, here: &OwnedFd, name: CString, is_excluded: bool) -> Result<(), Error> {
        if self.path == b".git" {
            return Ok(());
        }
        let mode = self.tracked.get(&self.path).map(|(mode, _)| &**mode);
        self.path.push(b'/');
        let is_tracked = self.is_above_tracked();
        if mode == Some(SUBMODULE) {
            let inside = openat(here, &name, READ_FOLDER, Mode::empty());
            let is_empty =
                inside.is_ok_and(|inside| names(&inside, 0).is_ok_and(|names| names.is_empty()));
            if !is_empty {
                self.leave_out_folder("it is in a submodule");
            }
            return Ok(());
        }
        let is_excluded = is_excluded || self.is_ignored(true)?;
        let refused = match () {
            () if is_excluded => None,
            () if is_git(name.to_bytes()) => Some("some systems read this name as .git"),
            () if self.path.len() > PATH_BYTES => Some("its path is longer than 4,095 bytes"),
            () => None,
        };
        if let Some(reason) = refused {
            self.leave_out_folder(reason);
        }
        let is_excluded = is_excluded || refused.is_some();
        if (!is_excluded || is_tracked)
            && let Some(level) = self.levels.last_mut()
        {
            level.folders.push((name, is_excluded));
        }
        Ok(())
    }

    fn file(
        &mut self,
        here: &OwnedFd,
        name: &CString,
        kind: FileType,
        is_excluded: bool,
    ) -> Result<(), Error> {
        let former = self.tracked.get_key_value(&self.path);
        if former.is_none() {
            let is_decided = self.decided.contains(&self.path);
            if !is_decided && (is_excluded || self.is_ignored(false)?) {
                return Ok(());
            }
            let refused = match name.to_bytes() {
                b".git" => Some("git keeps its own data under this name"),
                name if is_git(name) => Some("some systems read this name as .git"),
                _ if self.path.len() > PATH_BYTES => Some("its path is longer than 4,095 bytes"),
                _ => None,
            };
            if let Some(reason) = refused {
                self.found.left_out.add(&self.path, reason);
                return Ok(());
            }
        }
        let (path, mode, id) = match former {
            Some((path, (mode, id))) => (path, &**mode, &**id),
            None => return self.untracked(here, name, kind),
        };
        self.missing.remove(&**path);
        if mode == SUBMODULE {
            self.found
                .left_out
                .add(path, "it is in place of a submodule");
            return Ok(());
        }
        let digits = id.len();
        let (now, found) = match self.tree.entry_at(here, name, kind)? {
            // Removed while it was read.
            Entry::Missing => {
                self.missing.insert(path);
                return Ok(());
            }
            Entry::Refused(reason) => {
                self.faults.push((path.clone(), reason));
                return Ok(());
            }
            Entry::File(_, size, mode) if size > FILE_BYTES => {
                let path = path.clone();
                self.found.large.push(Large { path, size, mode });
                return Ok(());
            }
            Entry::File(file, size, mode) => (mode, tree::blob_id(file, size, digits, self.until)?),
            Entry::Link(target) => {
                let size = target.len() as u64;
                (LINK, tree::blob_id(&target[..], size, digits, self.until)?)
            }
        };
        let is_same = found.as_deref() == Some(id);
        match (is_same, now == mode) {
            (true, true) => {}
            (true, false) => self.found.moded.push((path.clone(), now)),
            (false, _) => self.found.written.push(path.clone()),
        }
        Ok(())
    }

    fn untracked(&mut self, here: &OwnedFd, name: &CString, kind: FileType) -> Result<(), Error> {
        match self.tree.entry_at(here, name, kind)? {
            Entry::Missing => {}
            Entry::Refused(reason) => self.found.left_out.add(&self.path, reason),
            Entry::File(_, size, _) if size > FILE_BYTES => {
                self.found
                    .left_out
                    .add(&self.path, "it is larger than 64 MiB");
            }
            Entry::File(..) | Entry::Link(_) => self.found.written.push(self.path.clone()),
        }
        match self.found.written.len() > CHANGES {
            true => Err(Error::TooLarge(format!(
                "the change of over {CHANGES} files"
            ))),
            false => Ok(()),
        }
    }

    /// Reads the rules of the folder.
    fn rules(&mut self, here: &OwnedFd) -> Result<Option<Rules>, Error> {
        let name = c".gitignore".to_owned();
        let stat = statat(here, &name, AtFlags::SYMLINK_NOFOLLOW);
        let kind = stat.map_or(FileType::Unknown, |stat| {
            FileType::from_raw_mode(stat.st_mode)
        });
        // Anything else is reported with the files of the folder; like git, this follows no link.
        let Entry::File(file, ..) = self.tree.entry_at(here, &name, kind)? else {
            return Ok(None);
        };
        let above = self.levels.iter().filter_map(|level| level.rules.as_ref());
        let used: u64 = above.map(|rules| rules.bytes).sum();
        let rules = Rules::read(file, RULE_BYTES.saturating_sub(used))?;
        let told = match &rules {
            None => Some(
                "its rules have no effect, since they are, with those above it, larger than 1 MiB",
            ),
            Some(rules) if rules.is_partial => {
                Some("rules of it with more than 8 `**` have no effect")
            }
            Some(_) => None,
        };
        if let Some(reason) = told {
            let path = [&self.path[..], name.to_bytes()].concat();
            self.found.left_out.add(&path, reason);
        }
        Ok(rules)
    }

    /// True if the rules of a folder above exclude the path; the deepest that says something decides.
    fn is_ignored(&self, is_folder: bool) -> Result<bool, Error> {
        let path = match is_folder {
            true => self.path.strip_suffix(b"/").unwrap_or(&self.path),
            false => &self.path,
        };
        for level in self.levels.iter().rev() {
            if let Some(rules) = &level.rules
                && let Some(excludes) =
                    rules.excludes(&path[level.length..], is_folder, self.until)?
            {
                return Ok(excludes);
            }
        }
        Ok(false)
    }

    /// True if a tracked or decided file is in the folder of the path.
    fn is_above_tracked(&self) -> bool {
        let from = (Bound::Included(&*self.path), Bound::Unbounded);
        let decided = self.decided.range::<[u8], _>(from).next();
        let has_decided = decided.is_some_and(|path| path.starts_with(&self.path));
        has_decided || self.first_tracked().is_some()
    }

    fn first_tracked(&self) -> Option<&'a Vec<u8>> {
        let from = (Bound::Included(&*self.path), Bound::Unbounded);
        let first = self.tracked.range::<[u8], _>(from).next();
        first
            .map(|(path, _)| path)
            .filter(|path| path.starts_with(&self.path))
    }

    /// A folder that cannot be read: an error if a tracked file is in it.
    fn refuse_folder(&mut self, reason: &'static str) {
        match self.first_tracked() {
            Some(path) => self
                .faults
                .push((path.clone(), "it is in a folder that cannot be read")),
            None => self.leave_out_folder(reason),
        }
    }

    fn leave_out_folder(&mut self, reason: &'static str) {
        self.found.left_out.add(&self.path, reason);
    }
}

/// True if `.git` in a folder makes it a repository for git.
fn is_repository(folder: &OwnedFd, tree: &Tree) -> Result<bool, Error> {
    let name = c".git".to_owned();
    let kind = |folder: &OwnedFd, name: &CString| {
        let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.map_or(FileType::Unknown, |stat| {
            FileType::from_raw_mode(stat.st_mode)
        })
    };
    match kind(folder, &name) {
        FileType::Directory => {
            let Ok(inside) = openat(folder, &name, READ_FOLDER, Mode::empty()) else {
                return Ok(true);
            };
            Ok(kind(&inside, &c"HEAD".to_owned()) != FileType::Unknown)
        }
        // Git follows it.
        FileType::Symlink => Ok(true),
        kind @ FileType::RegularFile => match tree.entry_at(folder, &name, kind)? {
            Entry::File(file, ..) => {
                let begin = tree::first_bytes(file, GIT_FILE.len())?;
                Ok(begin == GIT_FILE)
            }
            Entry::Link(_) | Entry::Missing | Entry::Refused(_) => Ok(false),
        },
        _ => Ok(false),
    }
}
