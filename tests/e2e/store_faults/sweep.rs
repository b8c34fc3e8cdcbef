//! The n-th operation on a file fails once, for each n: a bridge that stays up takes work again after each fault, and
//! restarts after `kill -9` find all that was answered and nothing that was refused. `FORGE_FAULT_STEPS` is the largest
//! n; without it a selection runs.

use super::super::harness::process::{Home, Process};
use super::disk::{Disk, Fault, Place, WELL, WRITES_FAIL};
use super::is_whole;
use super::load::Load;

const SELECTION: [u32; 5] = [1, 2, 5, 13, 34];
/// The bridge syncs the database once per checkpoint, and each needs a load of its own; of many, a part runs.
const SYNCS: [u32; 3] = [1, 2, 4];
/// Faults between two restarts.
const RESTART: u32 = 20;
/// Dispatches that are sent at the same time.
const DISPATCHES: usize = 6;

/// Each folder sync needs a failure of its own before it, so more of them prove nothing.
const FOLDER_STEPS: u32 = 3;

fn steps(place: Place, fault: Fault) -> Vec<u32> {
    let last = std::env::var("FORGE_FAULT_STEPS").map(|last| last.parse().unwrap());
    let is_sync = matches!(fault, Fault::Sync | Fault::SyncOnce | Fault::SyncKept);
    match (place, last) {
        (Place::Folder, _) => (1..=FOLDER_STEPS).collect(),
        (Place::Database, Ok(last)) if is_sync => {
            (1..=last).filter(|n| *n <= 12 || n % 6 == 0).collect()
        }
        (Place::Database, Err(_)) if is_sync => SYNCS.to_vec(),
        (Place::Database | Place::Wal, Ok(last)) => (1..=last).collect(),
        (Place::Database | Place::Wal, Err(_)) => SELECTION.to_vec(),
    }
}

struct Sweep {
    home: Home,
    disk: Disk,
    load: Load,
    place: Place,
}

impl Sweep {
    /// Returns what was counted.
    async fn run(place: Place, faults: &[Fault]) -> String {
        // The WAL is checkpointed as often as its length is checked.
        let mut home = Home::new(&[("BRIDGE_STORE_WAL_LIMIT_BYTES", "4096")]);
        let disk = Disk::below(&mut home);
        let load = Load::start().await;
        let mut sweep = Self {
            home,
            disk,
            load,
            place,
        };
        let mut bridge = sweep.home.start();
        let mut since_restart = 0;
        for fault in faults {
            for countdown in steps(place, *fault) {
                sweep.step(&bridge, *fault, countdown).await;
                since_restart += 1;
                if since_restart == RESTART {
                    since_restart = 0;
                    bridge = sweep.restart(bridge).await;
                }
            }
        }
        let bridge = sweep.restart(bridge).await;
        sweep.load.verify_all(&bridge.api).await;
        bridge.kill();
        is_whole(&sweep.home);
        format!(
            "{place:?} {faults:?}: {} faults, {} answered, {} refused",
            sweep.disk.faults(),
            sweep.load.answered(),
            sweep.load.refused(),
        )
    }

    /// Sends work until the fault has happened and the bridge takes work again.
    async fn step(&mut self, bridge: &Process, fault: Fault, countdown: u32) {
        let before = self.disk.faults();
        self.disk.fails_at(self.place, fault, countdown);
        while self.disk.faults() == before {
            match self.place {
                Place::Database | Place::Wal => self.load.send(&bridge.api, DISPATCHES).await,
                // The bridge syncs the folder when it recovers.
                Place::Folder => {
                    self.disk.is(WRITES_FAIL);
                    self.load.send(&bridge.api, DISPATCHES).await;
                    self.disk.is(WELL);
                    self.load.until_taken(&bridge.api).await;
                }
            }
        }
        self.load.until_taken(&bridge.api).await;
    }

    /// Kills the bridge while it works, and looks at what the next one finds.
    async fn restart(&mut self, bridge: Process) -> Process {
        self.load.send(&bridge.api, DISPATCHES).await;
        bridge.kill();
        let bridge = self.home.start();
        self.load.verify(&bridge.api).await;
        is_whole(&self.home);
        bridge
    }
}

const WRITES: [Fault; 3] = [Fault::WriteError, Fault::WriteFull, Fault::WriteTorn];

#[tokio::test]
async fn each_write_of_the_wal_can_fail() {
    println!("{}", Sweep::run(Place::Wal, &WRITES).await);
}

#[tokio::test]
async fn each_sync_of_the_wal_can_fail() {
    println!(
        "{}",
        Sweep::run(Place::Wal, &[Fault::Sync, Fault::SyncKept]).await
    );
}

#[tokio::test]
async fn each_write_of_the_database_can_fail() {
    println!("{}", Sweep::run(Place::Database, &WRITES).await);
}

#[tokio::test]
async fn each_sync_of_the_database_can_fail() {
    println!(
        "{}",
        Sweep::run(Place::Database, &[Fault::Sync, Fault::SyncOnce]).await
    );
}

#[tokio::test]
async fn each_sync_of_the_folder_can_fail() {
    println!("{}", Sweep::run(Place::Folder, &[Fault::Sync]).await);
}
