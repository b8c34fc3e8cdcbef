//! POSIX locks on the store's files. A process loses all of its locks on a file when it closes any descriptor of it; a
//! bridge without them would have its WAL removed by the next process that closes the database.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use rusqlite::Connection;

use super::super::harness::process::{Home, Process};
use super::super::harness::until;
use super::disk::{Disk, Fault, Place};
use super::load::Load;
use super::{Ending, is_whole};

/// The lock that each connection holds on the database as long as it is open, and the one on the shared memory that says
/// that the WAL is in use.
const SHARED_FIRST: u64 = 0x4000_0002;
const IN_USE: u64 = 128;

fn file(home: &Home, name: &str) -> PathBuf {
    home.dir.path().join("data").join(name)
}

/// Kinds and ranges of the locks that a bridge holds for as long as it is open.
fn locks(home: &Home, bridge: &Process) -> BTreeSet<String> {
    let inode = |name| fs::metadata(file(home, name)).unwrap().ino();
    let (database, memory) = (inode("bridge.db"), inode("bridge.db-shm"));
    let mut held = BTreeSet::new();
    for line in fs::read_to_string("/proc/locks").unwrap().lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, "POSIX", _, kind, owner, place, first, last] = words[..] else {
            continue;
        };
        let inode = place.rsplit(':').next().unwrap();
        let first: u64 = first.parse().unwrap();
        let name = match inode.parse::<u64>().unwrap() {
            inode if inode == database && first == SHARED_FIRST => "database",
            inode if inode == memory && first == IN_USE => "shared memory",
            _ => continue,
        };
        if owner == bridge.id().to_string() {
            held.insert(format!("{name}: {kind} {first}-{last}"));
        }
    }
    held
}

/// The locks of a bridge that has lost none.
async fn all_locks(home: &Home, bridge: &Process) -> BTreeSet<String> {
    let both = async || Some(locks(home, bridge)).filter(|held| held.len() == 2);
    until("the locks", both).await
}

/// Waits until these locks are seen. The system's list is read in parts and can leave out a lock while others come and go;
/// one that is lost never comes back.
async fn holds(home: &Home, bridge: &Process, wanted: &BTreeSet<String>, when: &str) {
    until(when, async || {
        (locks(home, bridge) == *wanted).then_some(())
    })
    .await;
}

/// Asserts that the files which the bridge has open are those in the folder.
fn files_are_in_place(home: &Home, bridge: &Process) {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{}/fd", bridge.id())).unwrap() {
        // One that is closed meanwhile is not in use.
        let Ok(path) = entry.and_then(|entry| fs::read_link(entry.path())) else {
            continue;
        };
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if !name.starts_with("bridge.db") {
            continue;
        }
        assert!(!name.contains("(deleted)"), "{name} is in use");
        let inode = |path: PathBuf| fs::metadata(path).unwrap().ino();
        assert_eq!(inode(path), inode(file(home, &name)), "{name}");
        found.insert(name);
    }
    let wanted = ["bridge.db", "bridge.db-shm", "bridge.db-wal"];
    assert!(wanted.iter().all(|name| found.contains(*name)), "{found:?}");
}

async fn keeps_its_locks_until(ending: Ending) {
    let mut home = Home::new(&[("BRIDGE_STORE_BUSY_TIMEOUT", "1s")]);
    let disk = Disk::below(&mut home);
    let mut load = Load::start().await;
    let bridge = home.start();
    load.send(&bridge.api, 6).await;
    let before = all_locks(&home, &bridge).await;

    let outsider = Connection::open(file(&home, "bridge.db")).unwrap();
    outsider.execute_batch("BEGIN IMMEDIATE").unwrap();
    while load.refused() == 0 {
        load.send(&bridge.api, 2).await;
    }
    outsider.execute_batch("ROLLBACK").unwrap();
    load.until_taken(&bridge.api).await;
    holds(&home, &bridge, &before, "after a lock").await;
    drop(outsider);

    for fault in [
        Fault::WriteError,
        Fault::WriteFull,
        Fault::WriteTorn,
        Fault::Sync,
    ] {
        let faults = disk.faults();
        disk.fails_at(Place::Wal, fault, 1);
        while disk.faults() == faults {
            load.send(&bridge.api, 2).await;
        }
        load.until_taken(&bridge.api).await;
        holds(&home, &bridge, &before, &format!("after {fault:?}")).await;
        files_are_in_place(&home, &bridge);
    }
    let faults = disk.faults();
    disk.fails_at(Place::Database, Fault::Sync, 1);
    disk.failed_since(faults).await;
    load.until_taken(&bridge.api).await;
    holds(&home, &bridge, &before, "after a failed checkpoint").await;

    let database = file(&home, "bridge.db");
    let visits = tokio::task::spawn_blocking(move || {
        for _ in 0..30 {
            let visitor = Connection::open(&database).unwrap();
            visitor.busy_timeout(Duration::from_secs(30)).unwrap();
            let read = "SELECT count(*) FROM dispatch";
            visitor
                .query_row(read, [], |row| row.get::<_, u64>(0))
                .unwrap();
            visitor.execute_batch("BEGIN IMMEDIATE; ROLLBACK").unwrap();
            visitor.close().unwrap();
        }
    });
    while !visits.is_finished() {
        load.send(&bridge.api, 6).await;
    }
    visits.await.unwrap();
    holds(&home, &bridge, &before, "after visitors").await;
    files_are_in_place(&home, &bridge);
    load.send(&bridge.api, 30).await;
    ending.come(bridge).await;

    let bridge = home.start();
    load.verify_all(&bridge.api).await;
    bridge.kill();
    is_whole(&home);
}

#[tokio::test]
async fn a_bridge_keeps_its_locks_until_it_is_killed() {
    keeps_its_locks_until(Ending::Killed).await;
}

#[tokio::test]
async fn a_bridge_keeps_its_locks_until_it_is_terminated() {
    keeps_its_locks_until(Ending::Terminated).await;
}

/// A write lock that is held for less than `store.busy_timeout` only delays.
#[tokio::test]
async fn a_short_write_lock_of_another_process_only_delays() {
    let home = Home::new(&[]);
    let mut load = Load::start().await;
    let bridge = home.start();
    load.send(&bridge.api, 6).await;
    let before = all_locks(&home, &bridge).await;
    let outsider = Connection::open(file(&home, "bridge.db")).unwrap();
    outsider.execute_batch("BEGIN IMMEDIATE").unwrap();
    let release = async {
        tokio::time::sleep(Duration::from_millis(6_500)).await;
        outsider.execute_batch("ROLLBACK").unwrap();
    };
    tokio::join!(load.send(&bridge.api, 6), release);
    assert_eq!(load.refused(), 0);
    holds(&home, &bridge, &before, "around a short lock").await;
    drop(outsider);
    holds(&home, &bridge, &before, "around a short lock").await;
    bridge.kill();
    let bridge = home.start();
    load.verify_all(&bridge.api).await;
}
