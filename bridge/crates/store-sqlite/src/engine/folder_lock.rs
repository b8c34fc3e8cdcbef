//! One process per store: an advisory lock on a file beside the database, checks that both files stay at their paths,
//! and of the kind of file system.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::wal;
use crate::open_error::OpenError;

/// Held as long as the database is open; the kernel releases it when the process dies.
#[derive(Debug)]
pub(crate) struct FolderLock {
    _file: File,
    /// The lock file and the database, with device and inode.
    files: Vec<(PathBuf, (u64, u64))>,
}

impl FolderLock {
    /// Locks the folder for this process. A missing one is created for its owner only, and its name synced.
    pub(crate) fn take(folder: &Path) -> Result<Self, OpenError> {
        let failed = |source: io::Error| OpenError::Folder {
            folder: folder.to_owned(),
            source,
        };
        create(folder).map_err(failed)?;
        if let Some(kind) = network_file_system(folder).map_err(failed)? {
            return Err(OpenError::NetworkFileSystem {
                folder: folder.to_owned(),
                kind,
            });
        }
        let path = folder.join("bridge.lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = io::read_to_string(&file).map_err(failed)?;
                let holder = match holder.trim() {
                    "" => "unknown".to_owned(),
                    pid => pid.to_owned(),
                };
                return Err(OpenError::Locked {
                    folder: folder.to_owned(),
                    holder,
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        name_holder(&mut file).map_err(failed)?;
        let identity = file.metadata().map(|found| identity(&found));
        Ok(Self {
            files: vec![(path, identity.map_err(failed)?)],
            _file: file,
        })
    }

    /// Makes the database, which exists, one of the files that `is_in_place` looks at.
    pub(crate) fn watch(&mut self, database: &Path) -> io::Result<()> {
        let found = std::fs::metadata(database)?;
        self.files.push((database.to_owned(), identity(&found)));
        Ok(())
    }

    /// False if a file was removed or replaced: the open ones are then found by no later start, and another process can
    /// lock the path. A path that cannot be looked at is no evidence.
    pub(crate) fn is_in_place(&self) -> bool {
        let mut files = self.files.iter();
        files.all(|(path, open)| match std::fs::metadata(path) {
            Ok(found) => identity(&found) == *open,
            Err(error) => !matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ),
        })
    }
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Creates the folder and those above it that are missing, and syncs each one's name.
fn create(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|f| !f.exists()).collect();
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    missing.into_iter().rev().try_for_each(wal::sync_folder)
}

fn name_holder(file: &mut File) -> io::Result<()> {
    file.rewind()?;
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())
}

/// The name of the network file system that the folder is on. A WAL needs shared memory and `flock` needs
/// one kernel: neither works across machines.
fn network_file_system(folder: &Path) -> io::Result<Option<&'static str>> {
    let kind = rustix::fs::statfs(folder)?.f_type;
    // The constants are 32 bits wide whatever the width of the field.
    Ok(match kind as u32 {
        0x0000_6969 => Some("NFS"),
        0x0000_517b | 0xff53_4d42 | 0xfe53_4d42 => Some("SMB"),
        0x0102_1997 => Some("9P"),
        0x00c3_6400 => Some("CephFS"),
        0x5346_414f => Some("AFS"),
        0x7375_7245 => Some("Coda"),
        0x0bd0_0bd0 => Some("Lustre"),
        0x0116_1970 => Some("GFS2"),
        0x7461_636f => Some("OCFS2"),
        _ => None,
    })
}
