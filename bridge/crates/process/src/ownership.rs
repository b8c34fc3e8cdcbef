//! Folders that programs of another user work in: given to that user before a program starts.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RawMode, chownat, fstat, openat};
use rustix::process::{Gid, Uid};

/// Depth down to which a folder is given. What is deeper was made by a program of the user, or stays as it is.
const MAX_DEPTH: usize = 128;

/// Numbers of a user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserId {
    pub uid: u32,
    pub gid: u32,
}

/// Gives a folder and what is in it to a user: entries that belong to the owner of the folder, who had it before. Does
/// nothing if the user has it already: a program can have moved a file of another user into it, even one of this process.
/// By descriptor and without a link, so that nothing outside changes hands whatever a program of the user does meanwhile; a
/// file with several names stays as it is, since it can be a file of another user. Blocks.
pub fn give(folder: &Path, to: UserId) -> io::Result<()> {
    let root = openat(CWD, folder, FOLDER, Mode::empty())?;
    let before = fstat(&root)?.st_uid;
    match before == to.uid {
        true => Ok(()),
        false => Giver { before, to }.give_below(&root, MAX_DEPTH),
    }
}

const FOLDER: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// A descriptor that cannot be read from, and waits for nothing.
const ENTRY: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct Giver {
    before: u32,
    to: UserId,
}

impl Giver {
    fn give_below(&self, folder: &OwnedFd, depth: usize) -> io::Result<()> {
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            // It can be gone, or be something else by now.
            let Ok(opened) = openat(folder, name, ENTRY, Mode::empty()) else {
                continue;
            };
            if is_folder(fstat(&opened)?.st_mode) && depth > 0 {
                if let Ok(below) = openat(folder, name, FOLDER, Mode::empty()) {
                    self.give_below(&below, depth - 1)?;
                }
            } else {
                self.give_one(&opened)?;
            }
        }
        self.give_one(folder)
    }

    fn give_one(&self, entry: &impl AsFd) -> io::Result<()> {
        let stat = fstat(entry)?;
        let is_alone = is_folder(stat.st_mode) || stat.st_nlink == 1;
        if is_alone && stat.st_uid == self.before {
            let (uid, gid) = (Uid::from_raw(self.to.uid), Gid::from_raw(self.to.gid));
            chownat(entry, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
        }
        Ok(())
    }
}

fn is_folder(mode: RawMode) -> bool {
    FileType::from_raw_mode(mode) == FileType::Directory
}

/// First folder on the way to an absolute path that a user cannot pass; `None` if there is none, or it does not exist.
/// Groups besides the given one do not count.
pub fn first_closed(path: &Path, user: UserId) -> Option<PathBuf> {
    let mut above: Vec<&Path> = path.ancestors().collect();
    above.reverse();
    let closed = above.into_iter().find(|folder| {
        let Ok(metadata) = folder.metadata() else {
            return false;
        };
        let searchable = if metadata.uid() == user.uid {
            Mode::XUSR
        } else if metadata.gid() == user.gid {
            Mode::XGRP
        } else {
            Mode::XOTH
        };
        !Mode::from_raw_mode(metadata.mode()).contains(searchable)
    });
    closed.map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use rustix::process::geteuid;

    use super::*;

    const OTHER: UserId = UserId {
        uid: 65534,
        gid: 65534,
    };

    #[test]
    fn the_first_folder_that_is_closed_is_named() {
        let home = tempfile::tempdir().unwrap();
        let below = home.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        for (mode, expected) in [(0o700, Some(home.path().to_owned())), (0o711, None)] {
            fs::set_permissions(home.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(
                first_closed(&below.join("new"), OTHER),
                expected,
                "{mode:o}"
            );
        }
    }

    #[test]
    fn only_own_entries_with_one_name_are_given() {
        if !geteuid().is_root() {
            println!("skipped: only root can give files away");
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let [folder, outside] = ["folder", "outside"].map(|name| home.path().join(name));
        fs::create_dir_all(folder.join("deep/er")).unwrap();
        fs::create_dir(&outside).unwrap();
        for file in [
            "folder/deep/er/file",
            "outside/linked",
            "outside/file",
            "folder/foreign",
        ] {
            fs::write(home.path().join(file), "").unwrap();
        }
        fs::hard_link(outside.join("linked"), folder.join("linked")).unwrap();
        symlink(outside.join("file"), folder.join("link")).unwrap();
        symlink(&outside, folder.join("way-out")).unwrap();
        chown(folder.join("foreign"), Some(1), Some(1)).unwrap();
        give(&folder, OTHER).unwrap();
        let owner = |path: &str| fs::symlink_metadata(home.path().join(path)).unwrap().uid();
        for (path, expected) in [
            ("folder", OTHER.uid),
            ("folder/deep", OTHER.uid),
            ("folder/deep/er/file", OTHER.uid),
            ("folder/link", OTHER.uid),
            ("folder/way-out", OTHER.uid),
            ("folder/linked", 0),
            ("folder/foreign", 1),
            ("outside", 0),
            ("outside/file", 0),
        ] {
            assert_eq!(owner(path), expected, "{path}");
        }
    }

    /// As an agent leaves a file that it could move, and not open.
    #[test]
    fn an_own_file_in_a_folder_of_the_user_is_not_given() {
        if !geteuid().is_root() {
            println!("skipped: only root can give files away");
            return;
        }
        let home = tempfile::tempdir().unwrap();
        let moved = home.path().join("moved");
        fs::write(&moved, "").unwrap();
        let owner = || moved.metadata().unwrap().uid();
        chown(home.path(), Some(OTHER.uid), Some(OTHER.gid)).unwrap();
        give(home.path(), OTHER).unwrap();
        assert_eq!(owner(), 0);
        let next = UserId { uid: 1, gid: 1 };
        give(home.path(), next).unwrap();
        assert_eq!((home.path().metadata().unwrap().uid(), owner()), (1, 0));
    }
}
