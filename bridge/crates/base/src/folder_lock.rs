//! One process per folder: an advisory lock on a file in it, checks that the files stay at their paths, and of the kind of
//! file system.

use std::fs::{DirBuilder, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Lock of a folder, held until it is dropped; the kernel releases it when the process dies.
#[derive(Debug)]
pub struct FolderLock {
    _file: File,
    /// The lock file, and those that are looked at besides.
    files: WatchedFiles,
}

/// Open files with their paths, to notice that one is removed or replaced.
#[derive(Debug, Default)]
pub struct WatchedFiles {
    /// With device and inode.
    files: Vec<(PathBuf, (u64, u64))>,
}

/// Reason why a folder cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "cannot use {folder} as the folder of a bridge; set data_dir (BRIDGE_DATA_DIR) to one that can be made"
    )]
    Folder { folder: PathBuf, source: io::Error },
    #[error(
        "{folder} is on {kind}, a network file system, where locks do not hold and a store can be damaged; put it on a local disk"
    )]
    NetworkFileSystem { folder: PathBuf, kind: &'static str },
    #[error(
        "another bridge (process {holder}) uses the folder {folder}; stop it or name another folder"
    )]
    Locked { folder: PathBuf, holder: String },
}

impl FolderLock {
    /// Locks the folder for this process. A missing one is created for its owner only, and its name synced.
    pub fn take(folder: &Path) -> Result<Self, LockError> {
        let failed = |source: io::Error| LockError::Folder {
            folder: folder.to_owned(),
            source,
        };
        create(folder).map_err(failed)?;
        if let Some(kind) = network_file_system(folder).map_err(failed)? {
            return Err(LockError::NetworkFileSystem {
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
                return Err(LockError::Locked {
                    folder: folder.to_owned(),
                    holder,
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        name_holder(&mut file).map_err(failed)?;
        let identity = file.metadata().map(|found| identity(&found));
        Ok(Self {
            files: WatchedFiles {
                files: vec![(path, identity.map_err(failed)?)],
            },
            _file: file,
        })
    }

    /// Makes a file, which exists, one of those that `is_in_place` looks at.
    pub fn watch(&mut self, file: &Path) -> io::Result<()> {
        self.files.watch(file)
    }

    /// False if a watched file or the lock file was removed or replaced.
    pub fn is_in_place(&self) -> bool {
        self.files.is_in_place()
    }
}

impl WatchedFiles {
    /// Adds a file, which exists.
    pub fn watch(&mut self, file: &Path) -> io::Result<()> {
        let found = std::fs::metadata(file)?;
        self.files.push((file.to_owned(), identity(&found)));
        Ok(())
    }

    /// False if a file was removed or replaced: the open ones are then found by no later start, and another process can
    /// lock the path. A path that cannot be looked at is no evidence.
    pub fn is_in_place(&self) -> bool {
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

/// Syncs the folder that a file or folder is in, which makes its name durable.
pub fn sync_name(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}

/// Folder that a file or folder is in.
pub fn parent(path: &Path) -> &Path {
    let above = path.parent().filter(|above| *above != Path::new(""));
    above.unwrap_or(Path::new("."))
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
    missing.into_iter().rev().try_for_each(sync_name)
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
