//! Files of a folder that an agent can change, by descriptor: no link is followed, so nothing outside is read or
//! written, whatever the agent does meanwhile.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, chownat, fchown, fstat, mkdirat, openat, readlinkat, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};

use super::Error;
use super::walk::check_time;

/// Opens a folder, and no link to one.
pub(super) const READ_FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Opening a pipe would otherwise wait for its other end.
const FILE: OFlags = OFlags::NOFOLLOW
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// Kinds of entries that git stores, by their mode there.
pub(super) const REGULAR: &str = "100644";
pub(super) const EXECUTABLE: &str = "100755";
pub(super) const LINK: &str = "120000";
pub(super) const SUBMODULE: &str = "160000";

/// Reasons why an entry is not stored.
const CLOSED: &str = "it cannot be read";
pub(super) const CHANGED: &str = "it changed while it was read";

/// Open folder of an agent.
pub(super) struct Tree {
    root: OwnedFd,
    /// User that the agent works as, and its group: those of the folder, which is given to it before it begins.
    agent: (Uid, Gid),
}

/// Entry as git would store it.
pub(super) enum Entry {
    File(File, u64, &'static str),
    Link(Vec<u8>),
    Missing,
    /// Not stored, and the reason.
    Refused(&'static str),
}

impl Tree {
    pub(super) fn new(root: OwnedFd) -> io::Result<Self> {
        let stat = fstat(&root)?;
        let agent = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        Ok(Self { root, agent })
    }

    /// Opens a folder that is no link.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Self::new(openat(rustix::fs::CWD, path, READ_FOLDER, Mode::empty())?)
    }

    pub(super) fn open_root(&self) -> io::Result<OwnedFd> {
        self.root.try_clone()
    }

    /// Opens the entry at a relative path.
    pub(super) fn entry(&self, path: &[u8]) -> io::Result<Entry> {
        self.entries().open(path)
    }

    pub(super) fn entries(&self) -> Entries<'_> {
        Entries {
            tree: self,
            above: None,
        }
    }

    /// Opens the entry of a folder, if its kind can be stored; opening others can have an effect.
    pub(super) fn entry_at(
        &self,
        above: &OwnedFd,
        name: &CString,
        kind: FileType,
    ) -> io::Result<Entry> {
        match kind {
            FileType::Directory => return Ok(Entry::Missing),
            FileType::RegularFile => {}
            FileType::Symlink => {
                return match readlinkat(above, name, Vec::new()) {
                    Ok(target) => Ok(Entry::Link(target.into_bytes())),
                    Err(Errno::NOENT) => Ok(Entry::Missing),
                    Err(Errno::INVAL) => Ok(Entry::Refused(CHANGED)),
                    Err(error) => Err(error.into()),
                };
            }
            FileType::Unknown => return Ok(Entry::Refused(CLOSED)),
            _ => return Ok(Entry::Refused("it is not a file")),
        }
        let opened = match openat(above, name, OFlags::RDONLY | FILE, Mode::empty()) {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(Entry::Missing),
            Err(Errno::ACCESS | Errno::PERM) => return Ok(Entry::Refused(CLOSED)),
            Err(Errno::LOOP | Errno::NXIO) => return Ok(Entry::Refused(CHANGED)),
            Err(error) => return Err(error.into()),
        };
        let stat = fstat(&opened)?;
        let is_foreign = Uid::from_raw(stat.st_uid) != self.agent.0;
        let is_closed = !Mode::from_raw_mode(stat.st_mode).contains(Mode::ROTH);
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            // Its other name can be in a folder that the agent must not read.
            FileType::RegularFile if stat.st_nlink > 1 && is_foreign => {
                Entry::Refused("it has several names (hard links) and belongs to another user")
            }
            // The agent can have moved it here.
            FileType::RegularFile if is_foreign && is_closed => {
                Entry::Refused("it belongs to another user, and the agent cannot read it")
            }
            FileType::RegularFile => {
                let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
                let mode = match Mode::from_raw_mode(stat.st_mode).contains(Mode::XUSR) {
                    true => EXECUTABLE,
                    false => REGULAR,
                };
                Entry::File(opened.into(), size, mode)
            }
            _ => Entry::Refused(CHANGED),
        })
    }

    /// Replaces the entry at a path, and creates the folders above it.
    pub(super) fn write(&self, path: &[u8], mode: &str, content: &[u8]) -> io::Result<()> {
        self.remove(path)?;
        let (above, name) = split(path)?;
        let above = self.make_folder(above)?;
        if mode == LINK {
            symlinkat(OsStr::from_bytes(content), &above, name)?;
            return Ok(self.give_link(&above, name)?);
        }
        let rights = match mode {
            EXECUTABLE => Mode::from_raw_mode(0o755),
            _ => Mode::from_raw_mode(0o644),
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | FILE;
        let file = openat(above, name, flags, rights)?;
        self.give(&file)?;
        File::from(file).write_all(content)
    }

    /// Gives what was made here to the agent, if that has another user.
    fn give(&self, made: &OwnedFd) -> rustix::io::Result<()> {
        let (uid, gid) = self.agent;
        match uid == geteuid() {
            true => Ok(()),
            false => fchown(made, Some(uid), Some(gid)),
        }
    }

    fn give_link(&self, above: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
        let (uid, gid) = self.agent;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let link = openat(above, name, flags, Mode::empty())?;
        // The agent can have put something else there.
        let is_link = FileType::from_raw_mode(fstat(&link)?.st_mode) == FileType::Symlink;
        match is_link && uid != geteuid() {
            true => chownat(&link, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH),
            false => Ok(()),
        }
    }

    /// Removes the entry at a path, and the folders above it that are empty then. A folder at the path stays.
    pub(super) fn remove(&self, path: &[u8]) -> io::Result<()> {
        let (above, name) = split(path)?;
        let removed = self
            .folder(above)
            .and_then(|folder| unlinkat(folder, name, AtFlags::empty()));
        match removed {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ISDIR) => {}
            Err(error) => return Err(error.into()),
        }
        for folder in above.ancestors() {
            let (Some(name), Some(above)) = (folder.file_name(), folder.parent()) else {
                break;
            };
            // Fails if it is not empty.
            if self
                .folder(above)
                .and_then(|above| unlinkat(above, name, AtFlags::REMOVEDIR))
                .is_err()
            {
                break;
            }
        }
        Ok(())
    }

    fn folder(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let mut folder = openat(&self.root, ".", READ_FOLDER, Mode::empty())?;
        for name in path {
            folder = openat(&folder, name, READ_FOLDER, Mode::empty())?;
        }
        Ok(folder)
    }

    /// Opens a folder and creates what is missing. What is in the way of one is removed.
    fn make_folder(&self, path: &Path) -> rustix::io::Result<OwnedFd> {
        let mut folder = self.folder(Path::new(""))?;
        for name in path {
            let kind = statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW);
            if kind.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) != FileType::Directory) {
                unlinkat(&folder, name, AtFlags::empty())?;
            }
            let is_made = match mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(error),
            };
            folder = openat(&folder, name, READ_FOLDER, Mode::empty())?;
            if is_made {
                self.give(&folder)?;
            }
        }
        Ok(folder)
    }
}

/// Opens entries one after the other, quickly if they are in the same folder.
pub(super) struct Entries<'a> {
    tree: &'a Tree,
    above: Option<(PathBuf, OwnedFd)>,
}

impl Entries<'_> {
    pub(super) fn open(&mut self, path: &[u8]) -> io::Result<Entry> {
        let (above, name) = split(path)?;
        if self.above.as_ref().is_none_or(|(path, _)| path != above) {
            match self.tree.folder(above) {
                Ok(opened) => self.above = Some((above.to_owned(), opened)),
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Entry::Missing),
                Err(error) => return Err(error.into()),
            }
        }
        let Some((_, above)) = &self.above else {
            return Ok(Entry::Missing);
        };
        let name = CString::new(name.as_bytes())?;
        match statat(above, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let kind = FileType::from_raw_mode(stat.st_mode);
                self.tree.entry_at(above, &name, kind)
            }
            Err(Errno::NOENT) => Ok(Entry::Missing),
            Err(error) => Err(error.into()),
        }
    }
}

/// Folder and name of a relative path that leads down.
fn split(path: &[u8]) -> io::Result<(&Path, &OsStr)> {
    let path = Path::new(OsStr::from_bytes(path));
    let is_plain = path
        .components()
        .all(|part| matches!(part, Component::Normal(_)));
    match (path.parent(), path.file_name()) {
        (Some(above), Some(name)) if is_plain => Ok((above, name)),
        _ => Err(io::Error::other("a path in the repository leads out of it")),
    }
}

/// Id that git gives to a content of this size; `None` if the content is longer or shorter.
pub(super) fn blob_id(
    mut content: impl io::Read,
    size: u64,
    digits: usize,
    until: Instant,
) -> Result<Option<String>, Error> {
    let mut context = Context::new(match digits {
        64 => &SHA256,
        _ => &SHA1_FOR_LEGACY_USE_ONLY,
    });
    context.update(format!("blob {size}\0").as_bytes());
    let (mut piece, mut total) = ([0; 64 * 1024], 0);
    loop {
        let read = content.read(&mut piece)?;
        total += read as u64;
        if read == 0 || total > size {
            let bytes = context.finish();
            let id = bytes
                .as_ref()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            return Ok((total == size).then_some(id));
        }
        context.update(&piece[..read]);
        check_time(until)?;
    }
}

/// Reads a whole file of at most this size; `None` if it is larger.
pub(super) fn read_up_to(file: File, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content)?;
    Ok((content.len() as u64 <= limit).then_some(content))
}

/// Beginning of a file.
pub(super) fn first_bytes(file: File, count: usize) -> io::Result<Vec<u8>> {
    let mut begin = Vec::new();
    file.take(count as u64).read_to_end(&mut begin)?;
    Ok(begin)
}
