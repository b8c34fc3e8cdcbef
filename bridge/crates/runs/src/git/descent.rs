//! Ways through folders that an agent has made: no link is followed, and their depth costs neither descriptors nor
//! stack.

use std::collections::VecDeque;
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, fchmod, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::tree::READ_FOLDER;

/// Folders on the way that stay open.
const OPEN: usize = 16;

/// Position in a folder. It comes back up by `..`, and checks that it is where it came from.
pub(super) struct Descent {
    /// The last folders of the way; the end is the position.
    open: VecDeque<OwnedFd>,
    /// Device and inode of each folder of the way.
    way: Vec<(u64, u64)>,
}

impl Descent {
    pub(super) fn new(root: OwnedFd) -> io::Result<Self> {
        let way = vec![identity(&root)?];
        let open = [root].into();
        Ok(Self { open, way })
    }

    pub(super) fn here(&self) -> &OwnedFd {
        self.open.back().expect("the position is open")
    }

    pub(super) fn down(&mut self, name: &CString) -> rustix::io::Result<()> {
        let below = openat(self.here(), name, READ_FOLDER, Mode::empty())?;
        self.way.push(identity(&below)?);
        self.open.push_back(below);
        if self.open.len() > OPEN {
            self.open.pop_front();
        }
        Ok(())
    }

    /// Returns false at the beginning of the way.
    pub(super) fn up(&mut self) -> io::Result<bool> {
        let Some([.., above, _]) = self.way.get(..) else {
            return Ok(false);
        };
        if self.open.len() == 1 {
            let found = openat(self.here(), "..", READ_FOLDER, Mode::empty())?;
            if identity(&found)? != *above {
                return Err(io::Error::other("a folder was moved while it was read"));
            }
            self.open.push_front(found);
        }
        self.open.pop_back();
        self.way.pop();
        Ok(true)
    }
}

fn identity(folder: &OwnedFd) -> rustix::io::Result<(u64, u64)> {
    let stat = fstat(folder)?;
    #[allow(
        clippy::unnecessary_cast,
        clippy::cast_sign_loss,
        reason = "the types differ between systems"
    )]
    Ok((stat.st_dev as u64, stat.st_ino as u64))
}

/// Names in a folder with their kinds. `limit` bounds their number; the last one may be above it.
pub(super) fn names(folder: &OwnedFd, limit: usize) -> io::Result<Vec<(CString, FileType)>> {
    let mut names = Vec::new();
    // A copy, since opening `.` would need the right to enter the folder.
    for entry in Dir::new(folder.as_fd().try_clone_to_owned()?)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)
                .map_or(FileType::Unknown, |stat| {
                    FileType::from_raw_mode(stat.st_mode)
                }),
            kind => kind,
        };
        names.push((name.to_owned(), kind));
        if names.len() > limit {
            break;
        }
    }
    Ok(names)
}

/// Removes what is at a path, also a folder that an agent has closed to its owner.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let name = path.file_name().map(OsStr::to_owned);
    let (Some(name), Some(above)) = (name, path.parent()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let above = match openat(CWD, above, READ_FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        above => above?,
    };
    let name = CString::new(name.into_encoded_bytes())?;
    let mut descent = Descent::new(above)?;
    let mut open: Vec<(CString, Vec<CString>)> = Vec::new();
    let mut next = Some(name);
    loop {
        if let Some(name) = next.take() {
            match unlinkat(descent.here(), &name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                // Linux and macOS say differently that it is a folder.
                Err(Errno::ISDIR | Errno::PERM) => {
                    enter(&mut descent, &name)?;
                    let inside = names(descent.here(), usize::MAX)?;
                    open.push((name, inside.into_iter().map(|(name, _)| name).collect()));
                }
                Err(error) => return Err(error.into()),
            }
        }
        let Some((_, inside)) = open.last_mut() else {
            return Ok(());
        };
        next = inside.pop();
        if next.is_none()
            && let Some((name, _)) = open.pop()
        {
            descent.up()?;
            unlinkat(descent.here(), &name, AtFlags::REMOVEDIR)?;
        }
    }
}

/// Goes into a folder that is to be removed, and opens it to its owner.
fn enter(descent: &mut Descent, name: &CString) -> io::Result<()> {
    let whole = Mode::RWXU;
    match descent.down(name) {
        Err(Errno::ACCESS) => {
            let kind = statat(descent.here(), name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(kind.st_mode) == FileType::Directory {
                rustix::fs::chmodat(descent.here(), name, whole, AtFlags::empty())?;
            }
            descent.down(name)?;
        }
        down => down?,
    }
    let stat = fstat(descent.here())?;
    if !Mode::from_raw_mode(stat.st_mode).contains(whole) {
        fchmod(descent.here(), whole)?;
    }
    Ok(())
}
