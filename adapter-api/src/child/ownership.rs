//! Gives a folder to the user of a program, before the program starts.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Uid, chownat};

use crate::User;

/// Gives the folder and everything in it to the user. No other user has had access to it so far, so nothing in it
/// changes meanwhile. Links are not followed.
pub(super) fn hand_over(folder: &Path, user: &User) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => hand_over(&entry.path(), user)?,
            false => give(&entry.path(), user)?,
        }
    }
    give(folder, user)
}

fn give(path: &Path, user: &User) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    chownat(CWD, path, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}
