//! A file beside the tables for what was promised and is not in them yet. Its records are numbered without
//! gaps, over the whole life of a store; the tables know the number of the last one that is in them. Once all are,
//! and synced, the next one is written at the beginning again: where a file need not grow, a sync takes half as long.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

use crate::id::DeliveryId;
use crate::store::record::{Finish, Lease, NewDispatch, Progress, Settlement};

/// The file in the store's folder.
const FILE: &str = "bridge.journal";

/// So many dispatches of 1 KiB are about five hundred.
const BYTES: usize = 2 << 20;

/// What is held for what is not written yet, when nothing is.
const PENDING_BYTES: usize = 64 << 10;

/// Before each record: its length, its checksum, its number.
const HEAD: usize = 4 + 4 + 8;

/// What is promised, as it is written.
#[derive(Debug, Serialize)]
pub(super) enum Promise<'a> {
    Accept(&'a NewDispatch),
    Append(&'a Lease, &'a Progress),
    Finish(&'a Lease, &'a Finish),
    Settle(&'a DeliveryId, &'a Settlement),
}

/// The same, as it is read, perhaps by a later version: what a change of these types adds has a default.
#[derive(Debug, Deserialize)]
pub(super) enum Promised {
    Accept(Box<NewDispatch>),
    Append(Lease, Progress),
    Finish(Lease, Finish),
    Settle(DeliveryId, Settlement),
}

/// Which life of which store the records belong to; those of another do not count.
#[derive(Clone, Debug)]
pub(super) struct Life(Hasher);

impl Life {
    pub(super) fn new(store_id: &str, epoch: u64) -> Self {
        let mut hasher = Hasher::new();
        hasher.update(store_id.as_bytes());
        hasher.update(&epoch.to_le_bytes());
        Self(hasher)
    }

    fn checksum(&self, number: u64, body: &[u8]) -> u32 {
        let mut hasher = self.0.clone();
        hasher.update(&number.to_le_bytes());
        hasher.update(body);
        hasher.finalize()
    }
}

pub(super) struct Journal {
    file: File,
    life: Life,
    /// Where the next record goes, and its number.
    at: usize,
    next: u64,
    /// What is not written yet.
    pending: Vec<u8>,
}

impl Journal {
    pub(super) fn path(folder: &Path) -> PathBuf {
        folder.join(FILE)
    }

    /// Opens the file, or makes one, to begin anew after this number.
    pub(super) fn open(path: &Path, life: Life, last: u64) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        if file.metadata()?.len() < BYTES as u64 {
            file.write_all_at(&vec![0; BYTES], 0)?;
            file.sync_all()?;
            if let Some(folder) = path.parent() {
                File::open(folder)?.sync_all()?;
            }
        }
        Ok(Self {
            file,
            life,
            at: 0,
            next: last + 1,
            pending: Vec::new(),
        })
    }

    /// The number of the last record.
    pub(super) fn last(&self) -> u64 {
        self.next - 1
    }

    /// All that is in the journal is in the tables, and synced.
    pub(super) fn begin_anew(&mut self) {
        self.at = 0;
    }

    /// Takes a record along with the next `sync`, unless there is no room; its number.
    pub(super) fn add(&mut self, promise: &Promise<'_>) -> Option<u64> {
        let start = self.pending.len();
        self.pending.resize(start + HEAD, 0);
        let written = serde_json::to_writer(&mut self.pending, promise);
        if written.is_err() || self.at + self.pending.len() > BYTES {
            self.pending.truncate(start);
            return None;
        }
        let (head, body) = self.pending[start..].split_at_mut(HEAD);
        // It fits the file, which is far smaller than the numbers of 32 bits.
        head[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        head[4..8].copy_from_slice(&self.life.checksum(self.next, body).to_le_bytes());
        head[8..].copy_from_slice(&self.next.to_le_bytes());
        self.next += 1;
        Some(self.next - 1)
    }

    /// Returns when what was added is on disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.pending, self.at as u64)?;
        self.file.sync_data()?;
        self.at += self.pending.len();
        self.pending.clear();
        self.pending.shrink_to(PENDING_BYTES);
        Ok(())
    }
}

/// What stands in the journal of this life after this number, in order. The last one may be cut, when a crash came
/// while it was written: then nobody was promised anything.
pub(super) fn read(path: &Path, life: &Life, after: u64) -> io::Result<Vec<(u64, Promised)>> {
    let mut journal = match File::open(path) {
        // One that is cut goes on with zeros, which are no record.
        Ok(file) => BufReader::new(file).chain(io::repeat(0)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let (mut found, mut follows) = (Vec::new(), None);
    while let Some((number, body)) = record(&mut journal, life)? {
        if follows.is_some_and(|next| next != number) {
            break;
        }
        if number > after {
            found.push((number, serde_json::from_slice(&body)?));
        }
        follows = Some(number + 1);
    }
    Ok(found)
}

/// The number of the next record and its body, if it is sound.
fn record(journal: &mut impl Read, life: &Life) -> io::Result<Option<(u64, Vec<u8>)>> {
    let length = u32::from_le_bytes(chunk(journal)?);
    let checksum = u32::from_le_bytes(chunk(journal)?);
    let number = u64::from_le_bytes(chunk(journal)?);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if !(1..=BYTES).contains(&length) {
        return Ok(None);
    }
    let mut body = vec![0; length];
    journal.read_exact(&mut body)?;
    let sound = life.checksum(number, &body) == checksum;
    Ok(sound.then_some((number, body)))
}

fn chunk<const N: usize>(journal: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    journal.read_exact(&mut bytes)?;
    Ok(bytes)
}
