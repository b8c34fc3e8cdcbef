//! Files of a folder that an agent can change, by descriptor: no link is followed, so nothing outside is read or
//! written, whatever the agent does meanwhile.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, fstat, mkdirat, openat, readlinkat, statat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;

const FOLDER: OFlags = OFlags::DIRECTORY
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

/// Open folder.
pub(super) struct Tree(OwnedFd);

/// Entry as git would store it.
pub(super) enum Entry {
    File(File, u64, &'static str),
    Link(Vec<u8>),
    Missing,
    /// Not stored, and the reason.
    Refused(&'static str),
}

impl Tree {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let root = openat(CWD, path, OFlags::RDONLY | FOLDER, Mode::empty())?;
        Ok(Self(root))
    }

    /// Opens the entry at a relative path.
    pub(super) fn entry(&self, path: &[u8]) -> io::Result<Entry> {
        let (above, name) = split(path)?;
        let above = match self.folder(above) {
            Ok(above) => above,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(Entry::Missing),
            Err(error) => return Err(error.into()),
        };
        let opened = openat(&above, name, OFlags::RDONLY | FILE, Mode::empty());
        let opened = match opened {
            Ok(opened) => opened,
            Err(Errno::NOENT) => return Ok(Entry::Missing),
            Err(Errno::LOOP) => {
                let target = readlinkat(&above, name, Vec::new())?;
                return Ok(Entry::Link(target.into_bytes()));
            }
            Err(Errno::ACCESS | Errno::PERM) => return Ok(Entry::Refused("it cannot be read")),
            Err(Errno::NXIO) => return Ok(Entry::Refused("it is not a file")),
            Err(error) => return Err(error.into()),
        };
        let stat = fstat(&opened)?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Entry::Missing,
            FileType::RegularFile if stat.st_nlink != 1 => Entry::Refused(
                "it has several names (hard links), so it can be a file of another folder",
            ),
            FileType::RegularFile => {
                let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
                let mode = match Mode::from_raw_mode(stat.st_mode).contains(Mode::XUSR) {
                    true => EXECUTABLE,
                    false => REGULAR,
                };
                Entry::File(opened.into(), size, mode)
            }
            _ => Entry::Refused("it is not a file"),
        })
    }

    /// Replaces the entry at a path, and creates the folders above it.
    pub(super) fn write(&self, path: &[u8], mode: &str, content: &[u8]) -> io::Result<()> {
        self.remove(path)?;
        let (above, name) = split(path)?;
        let above = self.make_folder(above)?;
        if mode == LINK {
            return Ok(symlinkat(OsStr::from_bytes(content), above, name)?);
        }
        let rights = match mode {
            EXECUTABLE => Mode::from_raw_mode(0o755),
            _ => Mode::from_raw_mode(0o644),
        };
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | FILE;
        File::from(openat(above, name, flags, rights)?).write_all(content)
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
        let mut folder = openat(&self.0, ".", OFlags::RDONLY | FOLDER, Mode::empty())?;
        for name in path {
            folder = openat(&folder, name, OFlags::RDONLY | FOLDER, Mode::empty())?;
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
            match mkdirat(&folder, name, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            folder = openat(&folder, name, OFlags::RDONLY | FOLDER, Mode::empty())?;
        }
        Ok(folder)
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
) -> io::Result<Option<String>> {
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
    }
}

/// Reads a whole file of at most this size; `None` if it is larger.
pub(super) fn read_up_to(file: File, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    file.take(limit + 1).read_to_end(&mut content)?;
    Ok((content.len() as u64 <= limit).then_some(content))
}
