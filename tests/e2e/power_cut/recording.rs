//! The log of the disk recorder, `tests/fixtures/disk-recorder/shim.c`: preloading it, and reading the records of what a
//! bridge did to the files of its store.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::super::harness::library::compile;
use super::super::harness::process::Home;
use super::disk::{Disk, FOLDER};

/// Content of the recorded files by name.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// One operation on a recorded file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operation<'a> {
    Create {
        name: &'a str,
    },
    Write {
        name: &'a str,
        offset: usize,
        bytes: &'a [u8],
    },
    /// Shortens or extends the file.
    Resize {
        name: &'a str,
        length: usize,
    },
    Rename {
        from: &'a str,
        to: &'a str,
    },
    Unlink {
        name: &'a str,
    },
    /// The name is empty when the folder is synced.
    SyncBegin {
        sync: u64,
        name: &'a str,
    },
    /// The sync was successful.
    SyncEnd {
        sync: u64,
    },
}

/// An operation, and the length of the log behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'a> {
    pub(super) operation: Operation<'a>,
    pub(super) end: u64,
}

/// The recorder of a home; every bridge that is started there appends to one log.
#[derive(Clone)]
pub(super) struct Recorder {
    log: PathBuf,
    folder: PathBuf,
}

impl Recorder {
    pub(super) fn preload(home: &mut Home) -> Self {
        // SQLite resolves links in the path of its file.
        let root = home.dir.path().canonicalize().unwrap();
        let shim = root.join("shim.so");
        compile(&shim, "disk-recorder/shim.c", &[]);
        let recorder = Self {
            log: root.join("recording"),
            folder: root.join("data"),
        };
        fs::write(&recorder.log, "").unwrap();
        for (name, path) in [
            ("LD_PRELOAD", &shim),
            ("RECORDER_LOG", &recorder.log),
            ("RECORDER_FOLDER", &recorder.folder),
            ("BRIDGE_DATA_DIR", &recorder.folder),
        ] {
            home.set(name, &path.display().to_string());
        }
        recorder
    }

    /// Length of the log in bytes.
    pub(super) fn length(&self) -> u64 {
        self.log.metadata().unwrap().len()
    }

    pub(super) fn read(&self) -> Vec<u8> {
        fs::read(&self.log).unwrap()
    }

    /// Completes the log after a kill, which can come between an operation and the end of its record: removes half a
    /// record, and records the one operation that is missing.
    pub(super) fn complete_after_kill(&self) {
        let log = self.read();
        let records = parse(&log);
        let whole = records.last().map_or(0, |record| record.end);
        let file = OpenOptions::new().append(true).open(&self.log).unwrap();
        file.set_len(whole).unwrap();
        let missing = differences(&Disk::after(&records).cached(), &self.files());
        assert!(
            missing.len() <= 1,
            "{} operations are missing",
            missing.len()
        );
        (&file).write_all(&missing.concat()).unwrap();
    }

    /// Replaces the files and begins the log with records of them, all synced.
    pub(super) fn begin_with(&self, files: &Files) {
        for name in ["bridge.db-shm"]
            .into_iter()
            .chain(self.files().keys().map(String::as_str))
        {
            // A bridge that was killed early has no shared memory yet.
            let _ = fs::remove_file(self.folder.join(name));
        }
        let mut log = Vec::new();
        let names = files.keys().map(String::as_str).chain([FOLDER]);
        for (sync, name) in names.enumerate() {
            if let Some(content) = files.get(name) {
                fs::write(self.folder.join(name), content).unwrap();
                log.push(record(b'C', 0, name, &[]));
                log.push(record(b'W', 0, name, content));
            }
            log.push(record(b'B', sync, name, &[]));
            log.push(record(b'E', sync, name, &[]));
        }
        fs::write(&self.log, log.concat()).unwrap();
    }

    /// Fails the test if the records do not lead to the files as they are.
    pub(super) fn assert_complete(&self) {
        let log = self.read();
        let missing = differences(&Disk::after(&parse(&log)).cached(), &self.files());
        let missing: Vec<_> = missing.iter().flat_map(|record| parse(record)).collect();
        assert!(missing.is_empty(), "not recorded: {missing:?}");
    }

    fn files(&self) -> Files {
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let paths = fs::read_dir(&self.folder).unwrap();
        paths
            .map(|entry| entry.unwrap().path())
            .map(|path| (name(&path), path))
            .filter(|(name, _)| name.starts_with("bridge.db") && !name.ends_with("-shm"))
            .map(|(name, path)| (name, fs::read(path).unwrap()))
            .collect()
    }
}

/// The whole records of a log.
pub(super) fn parse(log: &[u8]) -> Vec<Record<'_>> {
    let mut records = Vec::new();
    let mut rest = log;
    while let Some((operation, after)) = operation(rest) {
        rest = after;
        let end = (log.len() - rest.len()) as u64;
        records.push(Record { operation, end });
    }
    records
}

/// Number of records, and of syncs and headers of a WAL among them; a WAL that begins again has another header.
pub(super) fn summary(records: &[Record<'_>]) -> String {
    let count = |is_counted: fn(&Operation<'_>) -> bool| {
        let counted = records
            .iter()
            .filter(|record| is_counted(&record.operation));
        counted.count()
    };
    let syncs = count(|operation| matches!(operation, Operation::SyncEnd { .. }));
    let headers = count(
        |operation| matches!(operation, Operation::Write { name, offset: 0, .. } if name.ends_with("-wal")),
    );
    format!(
        "{} records, {syncs} syncs, {headers} WAL headers",
        records.len()
    )
}

fn operation(log: &[u8]) -> Option<(Operation<'_>, &[u8])> {
    let (length, rest) = log.split_first_chunk()?;
    let (record, after) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    let (kind, rest) = record.split_first()?;
    let (number, rest) = rest.split_first_chunk()?;
    let (name_length, rest) = rest.split_first_chunk()?;
    let (name, bytes) = rest.split_at(usize::from(u16::from_le_bytes(*name_length)));
    let text = |bytes| std::str::from_utf8(bytes).unwrap();
    let (name, number) = (text(name), u64::from_le_bytes(*number));
    let position = usize::try_from(number).unwrap();
    let operation = match kind {
        b'C' => Operation::Create { name },
        b'W' => Operation::Write {
            name,
            offset: position,
            bytes,
        },
        b'T' => Operation::Resize {
            name,
            length: position,
        },
        b'R' => Operation::Rename {
            from: name,
            to: text(bytes),
        },
        b'U' => Operation::Unlink { name },
        b'B' => Operation::SyncBegin { sync: number, name },
        b'E' => Operation::SyncEnd { sync: number },
        other => panic!("the log has a record of an unknown kind, {other}"),
    };
    Some((operation, after))
}

/// A record as the shim writes it.
fn record(kind: u8, number: usize, name: &str, bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(1 + 8 + 2 + name.len() + bytes.len()).unwrap();
    [
        &length.to_le_bytes()[..],
        &[kind],
        &(number as u64).to_le_bytes(),
        &u16::try_from(name.len()).unwrap().to_le_bytes(),
        name.as_bytes(),
        bytes,
    ]
    .concat()
}

/// Records of the operations that make the one content of the other.
fn differences(before: &Files, after: &Files) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    let gone = before.keys().filter(|name| !after.contains_key(*name));
    records.extend(gone.map(|name| record(b'U', 0, name, &[])));
    for (name, new) in after {
        let old = before.get(name).map_or(&[][..], |old| old);
        if !before.contains_key(name) {
            records.push(record(b'C', 0, name, &[]));
        }
        if old.len() > new.len() {
            records.push(record(b'T', new.len(), name, &[]));
        }
        let same = |at: &usize| old.get(*at) == new.get(*at);
        if let Some(first) = (0..new.len()).find(|at| !same(at)) {
            let last = (first..new.len()).rfind(|at| !same(at)).unwrap();
            records.push(record(b'W', first, name, &new[first..=last]));
        }
    }
    records
}
