//! The disk below a bridge's store, as `tests/fixtures/faulty-disk/shim.c` makes it fail.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;

use super::super::harness::library::compile;
use super::super::harness::process::Home;
use super::super::harness::until;

/// States of the disk; the shim knows these letters.
pub(crate) const WELL: &str = "0";
pub(crate) const FULL: &str = "w";
pub(crate) const WRITES_FAIL: &str = "e";
pub(super) const SYNCS_FAIL: &str = "s";
pub(crate) const SLOW: &str = "l";
pub(crate) const HUNG: &str = "h";
pub(super) const READS_FAIL: &str = "r";

/// A file that a fault concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Database,
    Wal,
    Folder,
}

/// A fault of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    WriteError,
    WriteFull,
    /// Half of a write, then no space for the rest.
    WriteTorn,
    /// A sync that fails and loses what was written since the last one.
    Sync,
    /// The same, on a system that reports it to one descriptor of the file only.
    SyncOnce,
    /// A sync that fails although all is written.
    SyncKept,
}

/// Offsets of fields of the shim's `struct control`.
const PLACE: u64 = 1;
const COUNTDOWN: u64 = 4;
const FAULTS: u64 = 8;
const SYNCS_BEGUN: u64 = 12;
const SYNCS_ENDED: u64 = 16;
const SYNC_MS: u64 = 20;
const CONTROL_BYTES: usize = 64;

pub(crate) struct Disk {
    control: File,
}

impl Disk {
    pub(crate) fn below(home: &mut Home) -> Self {
        let shim = home.dir.path().join("shim.so");
        compile(&shim, "faulty-disk/shim.c", &[]);
        let path = home.dir.path().join("disk");
        let mut control = vec![0; CONTROL_BYTES];
        control[..1].copy_from_slice(WELL.as_bytes());
        std::fs::write(&path, control).unwrap();
        for (name, path) in [("LD_PRELOAD", &shim), ("FAULTY_DISK", &path)] {
            home.set(name, &path.display().to_string());
        }
        let control = OpenOptions::new().read(true).write(true).open(&path);
        Self {
            control: control.unwrap(),
        }
    }

    pub(crate) fn is(&self, state: &str) {
        self.control.write_all_at(state.as_bytes(), 0).unwrap();
    }

    /// The `countdown`-th operation from now on fails, once.
    pub(super) fn fails_at(&self, place: Place, fault: Fault, countdown: u32) {
        self.set(COUNTDOWN, 0);
        let place = match place {
            Place::Database => b'd',
            Place::Wal => b'w',
            Place::Folder => b'f',
        };
        let fault = match fault {
            Fault::WriteError => b'e',
            Fault::WriteFull => b'w',
            Fault::WriteTorn => b't',
            Fault::Sync => b's',
            Fault::SyncOnce => b'S',
            Fault::SyncKept => b'k',
        };
        self.control.write_all_at(&[place, fault], PLACE).unwrap();
        self.set(COUNTDOWN, countdown);
    }

    /// Takes back a fault that has not happened.
    pub(super) fn disarm(&self) {
        self.set(COUNTDOWN, 0);
    }

    pub(crate) fn set_sync_ms(&self, ms: u32) {
        self.set(SYNC_MS, ms);
    }

    /// Faults so far that a countdown made.
    pub(super) fn faults(&self) -> u32 {
        self.get(FAULTS)
    }

    /// Syncs of the WAL that have begun.
    pub(super) fn syncs_begun(&self) -> u32 {
        self.get(SYNCS_BEGUN)
    }

    pub(super) fn syncs_ended(&self) -> u32 {
        self.get(SYNCS_ENDED)
    }

    /// Waits for a fault after the first `before`.
    pub(super) async fn failed_since(&self, before: u32) {
        let failed = async || (self.faults() > before).then_some(());
        until("the fault", failed).await;
    }

    fn get(&self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.control.read_exact_at(&mut bytes, offset).unwrap();
        u32::from_ne_bytes(bytes)
    }

    fn set(&self, offset: u64, number: u32) {
        let bytes = number.to_ne_bytes();
        self.control.write_all_at(&bytes, offset).unwrap();
    }
}
