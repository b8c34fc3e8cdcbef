//! Gives a folder of this process to the user of a program, before the program starts: by descriptors only, so that no
//! name in it is looked up twice.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, fchown, fstat, openat};
use rustix::process::geteuid;

use super::{FOLDER, SAFE};
use crate::User;

/// Depth down to which a folder is given; a deeper one is an error, since this process made no such folder.
const MAX_DEPTH: usize = 64;
const READABLE_FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(SAFE);
/// A descriptor that cannot be read from, and waits for nothing.
const ENTRY: OFlags = OFlags::PATH.union(SAFE);

/// Gives the folder and everything in it to the user, the folder itself last: until then no other user can enter it. Does
/// nothing if another user has the folder already. An entry of another user, or a file with a second name, is an error:
/// this process puts neither into such a folder.
pub(super) fn give(folder: &File, user: &User) -> io::Result<()> {
    let us = Uid::from_raw(fstat(folder)?.st_uid);
    if us != geteuid() {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    Giver { us, uid, gid }.give_folder(openat(folder, ".", FOLDER, Mode::empty())?, MAX_DEPTH)
}

struct Giver {
    us: Uid,
    uid: Uid,
    gid: Gid,
}

impl Giver {
    fn give_folder(&self, folder: OwnedFd, depth: usize) -> io::Result<()> {
        if depth == 0 {
            return Err(io::Error::other("it has too many folders in folders"));
        }
        let folder = openat(folder, ".", READABLE_FOLDER, Mode::empty())?;
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let opened = openat(&folder, name, ENTRY, Mode::empty())?;
            let stat = fstat(&opened)?;
            let kind = FileType::from_raw_mode(stat.st_mode);
            let refused = |why: &str| {
                let text = format!("{} {why}", name.to_string_lossy());
                io::Error::other(text)
            };
            if Uid::from_raw(stat.st_uid) != self.us {
                return Err(refused("belongs to another user"));
            }
            if kind == FileType::Directory {
                self.give_folder(opened, depth - 1)?;
            } else if stat.st_nlink > 1 {
                return Err(refused("has a second name (hard link)"));
            } else {
                self.give_entry(&opened)?;
            }
        }
        fchown(&folder, Some(self.uid), Some(self.gid))?;
        Ok(())
    }

    /// Gives what a descriptor of [`ENTRY`] names: a file, a socket, or a link itself.
    fn give_entry(&self, entry: &impl AsFd) -> io::Result<()> {
        let (uid, gid) = (Some(self.uid), Some(self.gid));
        chownat(entry, "", uid, gid, AtFlags::EMPTY_PATH)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, chown, symlink};
    use std::path::Path;

    use super::*;

    const OTHER: u32 = 65534;

    fn other() -> User {
        User {
            uid: OTHER,
            gid: OTHER,
            ..User::default()
        }
    }

    fn opened(path: &Path) -> File {
        File::open(path).unwrap()
    }

    fn owner(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().uid()
    }

    fn is_root() -> bool {
        let is_root = geteuid().is_root();
        if !is_root {
            println!("not run: only root can give files away");
        }
        is_root
    }

    #[test]
    fn everything_below_is_given_and_nothing_that_a_link_names() {
        if !is_root() {
            return;
        }
        let held = tempfile::tempdir().unwrap();
        let [own, outside] = ["own", "outside"].map(|name| held.path().join(name));
        fs::create_dir_all(own.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(own.join("a/b/file"), "").unwrap();
        fs::write(outside.join("file"), "").unwrap();
        symlink(&outside, own.join("a/out")).unwrap();
        symlink(outside.join("file"), own.join("link")).unwrap();
        give(&opened(&own), &other()).unwrap();
        for given in ["", "a", "a/b", "a/b/file", "a/out", "link"] {
            assert_eq!(owner(&own.join(given)), OTHER, "{given}");
        }
        for kept in ["", "file"] {
            assert_eq!(owner(&outside.join(kept)), 0, "{kept}");
        }
    }

    #[test]
    fn what_this_process_cannot_have_made_is_refused_and_the_folder_stays_closed() {
        if !is_root() {
            return;
        }
        let held = tempfile::tempdir().unwrap();
        let secret = held.path().join("secret");
        fs::write(&secret, "").unwrap();
        for (case, wanted) in [("name", "second name"), ("foreign", "another user")] {
            let own = held.path().join(case);
            fs::create_dir(&own).unwrap();
            match case {
                "name" => fs::hard_link(&secret, own.join("entry")).unwrap(),
                _ => {
                    fs::write(own.join("entry"), "").unwrap();
                    chown(own.join("entry"), Some(1), Some(1)).unwrap();
                }
            }
            let refused = give(&opened(&own), &other()).unwrap_err().to_string();
            assert!(refused.contains(wanted), "{refused}");
            assert_eq!(owner(&own), 0, "{case}");
        }
        assert_eq!(owner(&secret), 0);
    }

    #[test]
    fn a_folder_that_another_user_has_is_left_alone() {
        if !is_root() {
            return;
        }
        let held = tempfile::tempdir().unwrap();
        fs::write(held.path().join("file"), "").unwrap();
        chown(held.path(), Some(1), Some(1)).unwrap();
        give(&opened(held.path()), &other()).unwrap();
        assert_eq!(owner(held.path()), 1);
        assert_eq!(owner(&held.path().join("file")), 0);
        chown(held.path(), Some(0), Some(0)).unwrap();
    }
}
