//! Write-ahead log: its length, checkpoints, and removal of its uncommitted end after a failure.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::connection::PAGE_BYTES;
use forge_base::failpoint;
use forge_base::folder_lock::{WatchedFiles, sync_name};

const HEADER_BYTES: u64 = 32;
const FRAME_BYTES: u64 = 24 + PAGE_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frames {
    /// Committed frames in the WAL.
    pub(super) in_wal: u64,
    /// Frames of the WAL that were copied into the database file.
    pub(super) in_file: u64,
    /// Another checkpoint was running, a reader was not waited for any longer, or the frames could not be counted.
    pub(super) is_hindered: bool,
}

impl Frames {
    pub(crate) fn bytes(&self) -> u64 {
        self.in_wal * PAGE_BYTES
    }

    /// Another process can copy some while they are counted.
    pub(crate) fn not_in_file(&self) -> u64 {
        self.in_wal.saturating_sub(self.in_file)
    }

    pub(crate) fn is_all_in_file(&self) -> bool {
        !self.is_hindered && self.in_wal == self.in_file
    }
}

/// Mode of a checkpoint, as `PRAGMA wal_checkpoint` calls it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mode {
    /// Copies nothing; only counts the frames.
    Noop,
    /// Copies the frames that no reader still needs from the WAL, without waiting for readers.
    Passive,
    /// Copies everything and truncates the WAL; waits for readers as long as the busy timeout.
    Truncate,
}

pub(crate) fn checkpoint(connection: &Connection, mode: Mode) -> rusqlite::Result<Frames> {
    let mut statement = connection.prepare_cached(&format!("PRAGMA wal_checkpoint({mode:?})"))?;
    let copies = !matches!(mode, Mode::Noop);
    if copies {
        failpoint::point("store.checkpoint.before");
    }
    let frames = statement.query_row([], |row| {
        // Where there is no WAL yet, or another checkpoint runs, both counts are -1.
        let count =
            |column| Ok::<_, rusqlite::Error>(u64::try_from(row.get::<_, i64>(column)?).ok());
        let (in_wal, in_file) = (count(1)?, count(2)?);
        Ok(Frames {
            is_hindered: row.get::<_, bool>(0)? || in_wal.is_none(),
            in_wal: in_wal.unwrap_or(0),
            in_file: in_file.unwrap_or(0),
        })
    })?;
    if copies {
        failpoint::point("store.checkpoint.after");
    }
    Ok(frames)
}

/// Removes everything behind the committed frames, so that a commit that failed in its sync is not found when the
/// file is recovered. Precondition: no open write transaction in this process. A power cut can restore the frames
/// until `sync` has returned.
pub(crate) fn cut(file: &Path, committed_frames: u64) -> io::Result<()> {
    let length = match committed_frames {
        0 => 0,
        frames => HEADER_BYTES + frames * FRAME_BYTES,
    };
    let wal = match OpenOptions::new().write(true).open(wal_file(file)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened?,
    };
    match wal.metadata()?.len() > length {
        true => wal.set_len(length),
        false => Ok(()),
    }
}

/// Syncs the WAL and the names of the files.
pub(crate) fn sync(file: &Path) -> io::Result<()> {
    match File::open(wal_file(file)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        wal => wal?.sync_all()?,
    }
    // SQLite ignores an error there.
    sync_name(file)
}

/// The WAL of a database file.
pub(crate) fn wal_file(file: &Path) -> PathBuf {
    beside(file, "-wal")
}

/// The WAL and its shared memory, which a connection has opened.
pub(super) fn watched(file: &Path) -> io::Result<WatchedFiles> {
    let mut files = WatchedFiles::default();
    files.watch(&wal_file(file))?;
    files.watch(&beside(file, "-shm"))?;
    Ok(files)
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
