//! Folders and files by descriptor. A path that is checked first and opened afterwards can lead elsewhere in
//! between; a descriptor cannot.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

mod ownership;
mod rights;
mod temporary;
#[cfg(test)]
mod tests;

use self::rights::Rights;
pub use self::temporary::TempFolder;

// O_PATH also opens folders with search but no read permission; not every system has it.
#[cfg(target_os = "linux")]
const PASS: OFlags = OFlags::PATH;
#[cfg(not(target_os = "linux"))]
const PASS: OFlags = OFlags::RDONLY;
const FOLDER: OFlags = PASS.union(OFlags::DIRECTORY);
const SAFE: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);
/// Opening a pipe would otherwise block until another process opens its other end.
const NO_WAIT: OFlags = OFlags::NONBLOCK.union(OFlags::NOCTTY);

/// Identity of a folder on this machine. Another folder at the same path has another identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderId {
    /// Number of the file system.
    pub device: u64,
    /// Number of the folder in it.
    pub inode: u64,
}

/// An open folder. It stays the same folder when its path is renamed or replaced. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Folder {
    path: Arc<Path>,
    descriptor: Arc<OwnedFd>,
    rights: Option<Rights>,
}

impl Folder {
    /// Opens the folder at an absolute path without `..`. Fails if any part of the path is a symbolic link.
    pub fn open(path: &Path) -> io::Result<Self> {
        let below_root = path.strip_prefix("/").map_err(|_| not_plain())?;
        let root = openat(CWD, "/", FOLDER | SAFE, Mode::empty())?;
        let descriptor = match plain(below_root)? {
            names if names.as_os_str().is_empty() => root,
            names => open_at(&root, &names, FOLDER)?,
        };
        Ok(Self {
            path: path.into(),
            descriptor: Arc::new(descriptor),
            rights: None,
        })
    }

    /// Opens the folder that is at `below` in an open one, and at `path` by its name.
    fn open_from(above: &File, below: &Path, path: &Path) -> io::Result<Self> {
        let above = openat(above, ".", FOLDER | SAFE, Mode::empty())?;
        let descriptor = match plain(below)? {
            names if names.as_os_str().is_empty() => above,
            names => open_at(&above, &names, FOLDER)?,
        };
        Ok(Self {
            path: path.into(),
            descriptor: Arc::new(descriptor),
            rights: None,
        })
    }

    /// The same folder, in which files are opened, written and removed with the rights of this user and its group alone:
    /// the user of the programs for which it is done. This process needs the right to switch to that user.
    #[must_use]
    pub fn as_user(mut self, uid: u32, gid: u32) -> Self {
        self.rights = Some(Rights { uid, gid });
        self
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Identity of the folder.
    pub fn id(&self) -> io::Result<FolderId> {
        let stat = fstat(&*self.descriptor)?;
        Ok(FolderId {
            #[allow(
                clippy::useless_conversion,
                reason = "its type differs between systems"
            )]
            device: u64::try_from(stat.st_dev).map_err(io::Error::other)?,
            inode: stat.st_ino,
        })
    }

    /// Opens a file for reading. `file` is relative, without `..`. Fails if any part of it is a symbolic link,
    /// and for everything but a regular file with one name: a hard link can lead out of the folder too. Never
    /// blocks on a pipe.
    pub fn open_below(&self, file: &Path) -> io::Result<File> {
        let file = plain(file)?;
        rights::with(self.rights, || {
            let opened = open_at(&self.descriptor, &file, OFlags::RDONLY | NO_WAIT)?;
            regular(opened.into())
        })
    }

    /// Replaces the content of a file, which is created with its folders if missing. The same rules as for
    /// [`open_below`](Self::open_below). What is created is no more accessible to others than this folder is,
    /// if the folder belongs to this user.
    pub fn write_below(&self, file: &Path, content: &[u8]) -> io::Result<()> {
        let file = plain(file)?;
        rights::with(self.rights, || self.write_now(&file, content))
    }

    fn write_now(&self, file: &Path, content: &[u8]) -> io::Result<()> {
        let name = file.file_name().ok_or_else(not_plain)?;
        let stat = fstat(&*self.descriptor)?;
        let others = match stat.st_uid == geteuid().as_raw() {
            true => Mode::from_raw_mode(stat.st_mode),
            // The folder's owner must be able to read what is created here.
            false => Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH,
        };
        let folder_mode = Mode::RWXU | (others & (Mode::RWXG | Mode::RWXO));
        let file_mode = folder_mode - (Mode::XUSR | Mode::XGRP | Mode::XOTH);
        let above = file.parent().unwrap_or(Path::new(""));
        let above = self.make_folders(above, folder_mode)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | NO_WAIT | SAFE;
        // One name: no part of it can be a link that is followed.
        let mut file = regular(openat(&above, name, flags, file_mode)?.into())?;
        file.set_len(0)?;
        file.write_all(content)
    }

    /// Removes a file, or a link itself. `file` is relative, without `..`. Fails if a folder above it is a symbolic link.
    pub fn remove_below(&self, file: &Path) -> io::Result<()> {
        let file = plain(file)?;
        rights::with(self.rights, || self.remove_now(&file))
    }

    fn remove_now(&self, file: &Path) -> io::Result<()> {
        let name = file.file_name().ok_or_else(not_plain)?;
        let above = match file.parent() {
            Some(above) if !above.as_os_str().is_empty() => {
                open_at(&self.descriptor, above, FOLDER)?
            }
            Some(_) | None => self.descriptor.try_clone()?,
        };
        Ok(unlinkat(above, name, AtFlags::empty())?)
    }

    /// Opens the folder at this plain path, and creates what is missing.
    fn make_folders(&self, path: &Path, mode: Mode) -> io::Result<OwnedFd> {
        let mut folder = self.descriptor.try_clone()?;
        for name in path {
            let open = || openat(&folder, name, FOLDER | SAFE, Mode::empty());
            folder = match open() {
                Err(Errno::NOENT) => {
                    match mkdirat(&folder, name, mode) {
                        // The latter: another process was faster.
                        Ok(()) | Err(Errno::EXIST) => open()?,
                        Err(error) => return Err(error.into()),
                    }
                }
                opened => opened?,
            };
        }
        Ok(folder)
    }

    /// A path that leads a child process into this folder.
    pub(crate) fn working_dir(&self) -> PathBuf {
        // The child enters it between fork and exec, while it has the descriptors of this process.
        if cfg!(target_os = "linux") {
            format!("/proc/self/fd/{}", self.descriptor.as_raw_fd()).into()
        } else {
            self.path.to_path_buf()
        }
    }
}

/// The names in a relative path; an error if it could lead anywhere but down.
fn plain(path: &Path) -> io::Result<PathBuf> {
    path.components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| match part {
            Component::Normal(name) => Ok(name),
            Component::CurDir
            | Component::Prefix(_)
            | Component::RootDir
            | Component::ParentDir => Err(not_plain()),
        })
        .collect()
}

fn not_plain() -> io::Error {
    let text = "the path does not lead down from the folder, or names no file";
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

/// Opens a plain path below a folder and follows no link in it.
fn open_at(folder: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    if path.as_os_str().is_empty() {
        return Err(not_plain());
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{ResolveFlags, openat2};
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(folder, path, flags | SAFE, Mode::empty(), resolve) {
            // Kernels before 5.6, and sandboxes that refuse calls they do not know.
            Err(Errno::NOSYS | Errno::PERM) => {}
            opened => return opened.map_err(refused),
        }
    }
    walk(folder, path, flags)
}

/// [`open_at`] with one call for each name.
fn walk(folder: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let mut names = path.iter();
    let last = names.next_back().ok_or_else(not_plain)?;
    let mut above = None;
    for name in names {
        let from = above.as_ref().unwrap_or(folder).as_fd();
        above = Some(openat(from, name, FOLDER | SAFE, Mode::empty()).map_err(refused)?);
    }
    let from = above.as_ref().unwrap_or(folder);
    openat(from, last, flags | SAFE, Mode::empty()).map_err(refused)
}

fn refused(error: Errno) -> io::Error {
    match error {
        Errno::LOOP => io::Error::other("a part of the path is a symbolic link"),
        other => other.into(),
    }
}

fn regular(file: File) -> io::Result<File> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.nlink() != 1 {
        let text = format!("it is a file with {} names (hard links)", metadata.nlink());
        return Err(io::Error::other(text));
    }
    Ok(file)
}
