//! A disk with a volatile cache: replays recorded operations, knows which of them a sync has made durable, and makes the
//! files that a power cut at this moment could leave.
//!
//! Operations that ended before a sync began are durable once the sync has ended. All others are unsynced: each block of
//! a write is on the disk as it was at any moment since the last sync, independently of the others. Resizes of a file
//! keep their order, as file systems journal them, and so do the names given to one file name.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;

use rand::RngExt;
use rand::rngs::StdRng;

use super::recording::{Files, Operation, Record};

/// Unsynced operations that a power cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    None,
    All,
    /// Operations before a moment of the past.
    Prefix,
    /// Any of them, each whole.
    Reordered,
    /// Any blocks of this size in bytes.
    Torn(usize),
}

impl Mode {
    pub(super) const ALL: [Self; 6] = [
        Self::None,
        Self::All,
        Self::Prefix,
        Self::Reordered,
        Self::Torn(512),
        Self::Torn(4096),
    ];
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("unsynced dropped"),
            Self::All => f.write_str("unsynced kept"),
            Self::Prefix => f.write_str("prefix kept"),
            Self::Reordered => f.write_str("reordered"),
            Self::Torn(bytes) => write!(f, "torn at {bytes} bytes"),
        }
    }
}

/// Name that a sync of the folder has in the records.
pub(super) const FOLDER: &str = "";

/// Numbers an operation by its place among the records.
type Moment = usize;

#[derive(Clone, Copy)]
enum Change<'a> {
    Write { offset: usize, bytes: &'a [u8] },
    Resize { length: usize },
}

#[derive(Default)]
struct Inode<'a> {
    durable: Vec<u8>,
    unsynced: Vec<(Moment, Change<'a>)>,
}

#[derive(Clone, Copy)]
struct NameChange<'a> {
    at: Moment,
    name: &'a str,
    /// `None` removes the name.
    inode: Option<usize>,
    /// Two names change at once.
    is_rename: bool,
}

type Names<'a> = BTreeMap<&'a str, usize>;

/// Files of one folder.
#[derive(Default)]
pub(super) struct Disk<'a> {
    inodes: Vec<Inode<'a>>,
    /// As programs see them.
    names: Names<'a>,
    durable_names: Names<'a>,
    unsynced_names: Vec<NameChange<'a>>,
    /// Syncs that have begun: the moment, and the file or else the folder.
    syncs: HashMap<u64, (Moment, Option<usize>)>,
    /// A file whose syncs do nothing.
    unsyncable: Option<&'a str>,
    now: Moment,
}

impl<'a> Disk<'a> {
    /// A disk that ignores syncs of this file, or of the folder.
    pub(super) fn ignoring_syncs_of(name: &'a str) -> Self {
        Self {
            unsyncable: Some(name),
            ..Self::default()
        }
    }

    pub(super) fn after(records: &[Record<'a>]) -> Self {
        let mut disk = Self::default();
        for record in records {
            disk.replay(record.operation);
        }
        disk
    }

    pub(super) fn replay(&mut self, operation: Operation<'a>) {
        let at = self.now;
        self.now += 1;
        match operation {
            Operation::Create { name } => {
                self.inodes.push(Inode::default());
                let inode = self.inodes.len() - 1;
                self.set_name(name, Some(inode), false);
            }
            Operation::Write {
                name,
                offset,
                bytes,
            } => {
                let inode = self.inode(name);
                inode.unsynced.push((at, Change::Write { offset, bytes }));
            }
            Operation::Resize { name, length } => {
                let inode = self.inode(name);
                inode.unsynced.push((at, Change::Resize { length }));
            }
            Operation::Rename { from, to } => {
                let inode = self.names.get(from).copied();
                self.set_name(to, inode, true);
                self.set_name(from, None, true);
            }
            Operation::Unlink { name } => self.set_name(name, None, false),
            Operation::SyncBegin { sync, name } => {
                if self.unsyncable == Some(name) {
                    return;
                }
                let file = (name != FOLDER).then(|| self.names[name]);
                self.syncs.insert(sync, (at, file));
            }
            Operation::SyncEnd { sync } => match self.syncs.remove(&sync) {
                Some((begun, Some(inode))) => self.inodes[inode].sync(begun),
                Some((begun, None)) => self.sync_names(begun),
                None => {}
            },
        }
    }

    fn inode(&mut self, name: &str) -> &mut Inode<'a> {
        &mut self.inodes[self.names[name]]
    }

    fn set_name(&mut self, name: &'a str, inode: Option<usize>, is_rename: bool) {
        let change = NameChange {
            at: self.now - 1,
            name,
            inode,
            is_rename,
        };
        change.apply(&mut self.names);
        self.unsynced_names.push(change);
    }

    fn sync_names(&mut self, begun: Moment) {
        let synced = self
            .unsynced_names
            .partition_point(|change| change.at < begun);
        for change in self.unsynced_names.drain(..synced) {
            change.apply(&mut self.durable_names);
        }
    }

    /// The files as programs see them.
    pub(super) fn cached(&self) -> Files {
        let content = |inode: usize| self.inodes[inode].kept(|_| true);
        let files = self.names.iter();
        files
            .map(|(name, inode)| ((*name).to_owned(), content(*inode)))
            .collect()
    }

    /// The files that a power cut now leaves in this mode, one of many possibilities.
    pub(super) fn cut(&self, mode: Mode, random: &mut StdRng) -> Files {
        let until = self.moment_of_the_past(random);
        let chance = [0.1, 0.5, 0.9][random.random_range(0..3)];
        let names = match mode {
            Mode::None => self.names_with(|_| false),
            Mode::All => self.names_with(|_| true),
            Mode::Prefix => self.names_with(|change| change.at < until),
            Mode::Reordered | Mode::Torn(_) => self.any_names(random),
        };
        let mut content = |inode: usize| {
            let inode = &self.inodes[inode];
            match mode {
                Mode::None => inode.kept(|_| false),
                Mode::All => inode.kept(|_| true),
                Mode::Prefix => inode.kept(|at| at < until),
                Mode::Reordered => inode.any(None, chance, random),
                Mode::Torn(block) => inode.any(Some(block), chance, random),
            }
        };
        let files = names.into_iter();
        files
            .map(|(name, inode)| (name.to_owned(), content(inode)))
            .collect()
    }

    /// A moment since which something is unsynced.
    fn moment_of_the_past(&self, random: &mut StdRng) -> Moment {
        let in_files = self.inodes.iter().flat_map(|inode| inode.unsynced.first());
        let in_files = in_files.map(|(at, _)| *at);
        let in_names = self.unsynced_names.first().map(|change| change.at);
        let first = in_files.chain(in_names).min().unwrap_or(self.now);
        random.random_range(first..=self.now)
    }

    fn names_with(&self, is_kept: impl Fn(&NameChange<'a>) -> bool) -> Names<'a> {
        let mut names = self.durable_names.clone();
        for change in self.unsynced_names.iter().filter(|change| is_kept(change)) {
            change.apply(&mut names);
        }
        names
    }

    /// The changes of each name up to any moment; those of all names up to the same one if a rename connects them.
    fn any_names(&self, random: &mut StdRng) -> Names<'a> {
        if self.unsynced_names.iter().any(|change| change.is_rename) {
            let until = random.random_range(0..=self.now);
            return self.names_with(|change| change.at < until);
        }
        let mut until = BTreeMap::new();
        for change in &self.unsynced_names {
            if let Entry::Vacant(entry) = until.entry(change.name) {
                entry.insert(random.random_range(change.at..=self.now));
            }
        }
        self.names_with(|change| change.at < until[change.name])
    }
}

impl<'a> NameChange<'a> {
    fn apply(self, names: &mut Names<'a>) {
        match self.inode {
            Some(inode) => names.insert(self.name, inode),
            None => names.remove(self.name),
        };
    }
}

impl Inode<'_> {
    fn sync(&mut self, begun: Moment) {
        let synced = self.unsynced.partition_point(|(at, _)| *at < begun);
        for (_, change) in self.unsynced.drain(..synced) {
            change.apply(&mut self.durable);
        }
    }

    fn kept(&self, is_kept: impl Fn(Moment) -> bool) -> Vec<u8> {
        let mut content = self.durable.clone();
        for (_, change) in self.unsynced.iter().filter(|(at, _)| is_kept(*at)) {
            change.apply(&mut content);
        }
        content
    }

    /// Keeps each write, or each block of one, with this chance.
    fn any(&self, block: Option<usize>, chance: f64, random: &mut StdRng) -> Vec<u8> {
        let mut content = self.durable.clone();
        // Blocks as they were before this place among the changes.
        let mut moments: HashMap<usize, usize> = HashMap::new();
        // A resize that is lost: nothing that was written beyond it later can be there.
        let mut end = usize::MAX;
        for (place, (_, change)) in self.unsynced.iter().enumerate() {
            let (offset, bytes) = match *change {
                Change::Write { offset, bytes } => (offset, bytes),
                Change::Resize { length } => {
                    match end == usize::MAX && random.random_bool(chance) {
                        true => change.apply(&mut content),
                        false => end = end.min(length),
                    }
                    continue;
                }
            };
            let bytes = &bytes[..bytes.len().min(end.saturating_sub(offset))];
            let Some(block) = block else {
                if random.random_bool(chance) {
                    write(&mut content, offset, bytes);
                }
                continue;
            };
            let mut at = offset;
            while at < offset + bytes.len() {
                let next = (at / block + 1) * block;
                let moment =
                    moments
                        .entry(at / block)
                        .or_insert_with(|| match random.random_bool(chance) {
                            true => usize::MAX,
                            false => random.random_range(place..=self.unsynced.len()),
                        });
                if place < *moment {
                    let piece = &bytes[at - offset..bytes.len().min(next - offset)];
                    write(&mut content, at, piece);
                }
                at = next;
            }
        }
        // The length can be on the disk before the blocks are.
        let length = self.kept(|_| true).len();
        if end == usize::MAX && length > content.len() && random.random_bool(0.5) {
            content.resize(length, 0);
        }
        content
    }
}

impl Change<'_> {
    fn apply(&self, content: &mut Vec<u8>) {
        match *self {
            Change::Write { offset, bytes } => write(content, offset, bytes),
            Change::Resize { length } => content.resize(length, 0),
        }
    }
}

fn write(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let end = offset + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    const NAME: &str = "bridge.db";

    fn write(bytes: &[u8]) -> Operation<'_> {
        Operation::Write {
            name: NAME,
            offset: 0,
            bytes,
        }
    }

    fn content(disk: &Disk<'_>, mode: Mode) -> Option<Vec<u8>> {
        disk.cut(mode, &mut StdRng::seed_from_u64(0)).remove(NAME)
    }

    #[test]
    fn a_sync_makes_durable_what_ended_before_it_began() {
        let mut disk = Disk::default();
        let begin = |sync, name| Operation::SyncBegin { sync, name };
        for operation in [
            Operation::Create { name: NAME },
            begin(1, FOLDER),
            Operation::SyncEnd { sync: 1 },
            write(b"before"),
            begin(2, NAME),
            write(b"during"),
        ] {
            disk.replay(operation);
        }
        assert_eq!(content(&disk, Mode::None).unwrap(), b"");
        disk.replay(Operation::SyncEnd { sync: 2 });
        assert_eq!(content(&disk, Mode::None).unwrap(), b"before");
        assert_eq!(content(&disk, Mode::All).unwrap(), b"during");
    }

    #[test]
    fn a_synced_file_has_no_name_until_its_folder_is_synced() {
        let mut disk = Disk::default();
        for (sync, name) in [(1, NAME), (2, FOLDER)] {
            if name == NAME {
                disk.replay(Operation::Create { name });
            }
            assert_eq!(content(&disk, Mode::None), None);
            disk.replay(Operation::SyncBegin { sync, name });
            disk.replay(Operation::SyncEnd { sync });
        }
        assert_eq!(content(&disk, Mode::None).unwrap(), b"");
    }
}
