//! Users that can change a file: its owner and mode, and those of every folder on the way to it. Each step is taken from
//! a descriptor of the step before, so that what was checked is what is opened.

mod groups;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use groups::Groups;

/// Symbolic links that are followed on one path, as in the kernel.
const MOST_LINKS: usize = 40;

/// Reason why a file or folder is not trusted: a user besides root and this process's can change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objection {
    pub path: PathBuf,
    mode: u32,
    uid: u32,
    why: &'static str,
}

impl fmt::Display for Objection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            path,
            mode,
            uid,
            why,
        } = self;
        let path = path.display();
        write!(
            f,
            "{path} (mode {mode:04o}, uid {uid}) is not trusted: {why}"
        )
    }
}

impl std::error::Error for Objection {}

/// An opened file with its objections, outermost folder first.
pub struct Checked {
    pub file: File,
    pub metadata: Metadata,
    pub objections: Vec<Objection>,
}

/// Treatment of a symbolic link at the end of a path. Links among the folders before it are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLink {
    Follow,
    /// Opening fails with `FilesystemLoop`.
    Refuse,
}

/// Policy for a file that other users can write, or that is in a folder that they can write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// Refuse it.
    #[default]
    Enforce,
    /// Use it with a warning.
    Warn,
}

/// Opens a file or folder for reading and checks everything on its absolute path.
pub fn open(path: &Path, last_link: LastLink) -> io::Result<Checked> {
    let mut walk = Walk::begin()?;
    let name = walk.go_to_parent(path, last_link)?;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(&walk.at, &name, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    let shown = walk.shown.join(&name);
    walk.note(&metadata, &shown, false);
    Ok(Checked {
        file,
        metadata,
        objections: walk.objections,
    })
}

/// Way from the root folder to a file.
struct Walk {
    at: OwnedFd,
    shown: PathBuf,
    us: u32,
    groups: Groups,
    objections: Vec<Objection>,
}

impl Walk {
    fn begin() -> io::Result<Self> {
        Ok(Self {
            at: root()?,
            shown: PathBuf::from("/"),
            us: rustix::process::geteuid().as_raw(),
            groups: Groups::read(),
            objections: Vec::new(),
        })
    }

    /// Goes to the folder of the file; returns the file's name in it.
    fn go_to_parent(&mut self, path: &Path, last_link: LastLink) -> io::Result<OsString> {
        let mut left = names(path);
        let mut links = 0;
        loop {
            let name = left.pop().ok_or(Errno::INVAL)?;
            let folder = File::from(self.at.try_clone()?).metadata()?;
            let is_last = left.is_empty();
            // In a sticky folder others can add entries, but not replace those of another owner: harmless on the way to
            // an entry that is checked itself.
            self.note(&folder, &self.shown.clone(), !is_last);
            if is_last && last_link == LastLink::Refuse {
                return Ok(name);
            }
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let entry = openat(&self.at, &name, flags, Mode::empty())?;
            let metadata = File::from(entry.try_clone()?).metadata()?;
            if metadata.is_symlink() {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let owner = Owner {
                    mode: 0,
                    ..Owner::of(&metadata)
                };
                self.note_owner(&owner, &self.shown.join(&name));
                let target = readlinkat(&entry, c"", Vec::new())?;
                let target = Path::new(OsStr::from_bytes(target.as_bytes()));
                if target.is_absolute() {
                    self.at = root()?;
                    self.shown = PathBuf::from("/");
                }
                left.extend(names(target));
            } else if is_last {
                return Ok(name);
            } else if metadata.is_dir() {
                self.at = entry;
                match name == ".." {
                    true => drop(self.shown.pop()),
                    false => self.shown.push(&name),
                }
            } else {
                return Err(Errno::NOTDIR.into());
            }
        }
    }

    fn note(&mut self, metadata: &Metadata, path: &Path, sticky_will_do: bool) {
        let mut owner = Owner::of(metadata);
        if sticky_will_do && metadata.is_dir() && owner.mode & 0o1000 != 0 {
            owner.mode &= !0o022;
        }
        self.note_owner(&owner, path);
    }

    fn note_owner(&mut self, owner: &Owner, path: &Path) {
        if let Some(why) = objection(owner, self.us, &self.groups) {
            self.objections.push(Objection {
                path: path.to_owned(),
                mode: owner.mode & 0o7777,
                uid: owner.uid,
                why,
            });
        }
    }
}

fn root() -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/", flags, Mode::empty())?)
}

/// Names of a path, the last one first.
fn names(path: &Path) -> Vec<OsString> {
    let named = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut names: Vec<OsString> = named.collect();
    names.reverse();
    names
}

/// Mode and owners of a file: the users that can change it.
struct Owner {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl Owner {
    fn of(metadata: &Metadata) -> Self {
        Self {
            mode: metadata.mode(),
            uid: metadata.uid(),
            gid: metadata.gid(),
        }
    }
}

/// Reason why the user `us` must not trust a file or folder of this owner; `None` if it is trusted.
fn objection(owner: &Owner, us: u32, groups: &Groups) -> Option<&'static str> {
    if owner.uid != 0 && owner.uid != us {
        return Some("it belongs to another user; give it to root or to the bridge's user (chown)");
    }
    if owner.mode & 0o002 != 0 {
        return Some("it is writable by others; remove that permission (chmod o-w)");
    }
    if owner.mode & 0o020 != 0 && !groups.is_own(owner.gid, owner.uid) {
        return Some("it is writable by a group; remove that permission (chmod g-w)");
    }
    None
}

#[cfg(test)]
mod tests;
