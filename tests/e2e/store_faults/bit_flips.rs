//! Single bits that changed on the disk: damage that `forge-bridge store check` finds, and damage that it cannot find.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;

use forge_store_sqlite::Sqlite;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use rusqlite::Connection;

use super::super::harness::process::Home;
use super::Ending;
use super::load::Load;
use super::pages::{Part, parts};

/// Bytes of each part that are tried; FORGE_FAULT_STEPS makes it more.
const SAMPLE: usize = 40;
const LARGE_SAMPLE: usize = 600;

/// Parts in which a wrong bit always contradicts another byte of the file. In the others it can be a different value
/// that is as good: most of the text of rows and all of it on overflow pages is not checked by anything, and unused
/// bytes mean nothing.
const CHECKED: [Part; 5] = [
    Part::PageHeader,
    Part::CellPointer,
    Part::IndexValue,
    Part::OverflowPointer,
    Part::FreeList,
];

/// Flips one bit of the file, checks the store, and flips it back.
fn is_found(folder: &Path, at: usize, bit: u8) -> bool {
    let file = folder.join("bridge.db");
    let file = fs::OpenOptions::new().read(true).write(true).open(file);
    let file = file.unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << bit], at as u64).unwrap();
    let found = match Sqlite::check(folder) {
        Ok(checked) => !checked.problems.is_empty(),
        Err(_) => true,
    };
    file.write_all_at(&byte, at as u64).unwrap();
    found
}

#[tokio::test]
async fn a_flipped_bit_is_found_where_sqlite_can_know() {
    let home = Home::new(&[]);
    let mut load = Load::start().await;
    let bridge = home.start();
    load.send(&bridge.api, 60).await;
    load.send_bytes(&bridge.api, 6, 9_000).await;
    load.verify(&bridge.api).await;
    Ending::Terminated.come(bridge).await;
    let folder = home.dir.path().join("data");
    let file = folder.join("bridge.db");
    leave_free_pages(&file);
    assert!(Sqlite::check(&folder).unwrap().problems.is_empty());
    let parts = parts(&file);

    let sample = match std::env::var_os("FORGE_FAULT_STEPS") {
        Some(_) => LARGE_SAMPLE,
        None => SAMPLE,
    };
    let mut places = BTreeMap::<Part, Vec<usize>>::new();
    for (at, part) in parts.iter().enumerate() {
        places.entry(*part).or_default().push(at);
    }
    let mut random = StdRng::seed_from_u64(1);
    for (part, mut places) in places {
        let of = places.len();
        places.shuffle(&mut random);
        places.truncate(sample);
        let tried = places.len();
        let missed: Vec<_> = places
            .into_iter()
            .map(|at| (at, random.random_range(0..8)))
            .filter(|(at, bit)| !is_found(&folder, *at, *bit))
            .collect();
        println!(
            "{part:?}: {} of {tried} found, {of} bytes",
            tried - missed.len()
        );
        if CHECKED.contains(&part) {
            assert!(missed.is_empty(), "{part:?}: {missed:?} of {tried}");
        }
    }
}

/// Leaves pages that are not in use, as retention does.
fn leave_free_pages(file: &Path) {
    let connection = Connection::open(file).unwrap();
    let fill = "CREATE TABLE t (bytes); INSERT INTO t VALUES (zeroblob(100000)); DROP TABLE t;
        PRAGMA wal_checkpoint(TRUNCATE)";
    connection.execute_batch(fill).unwrap();
}

/// Another tool opens the folder of a killed bridge.
#[tokio::test]
async fn another_tool_finds_what_a_killed_bridge_has_answered() {
    const COUNT: &str = "
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute('PRAGMA integrity_check').fetchone()[0])
for row in connection.execute('SELECT lower(hex(id)) FROM dispatch'):
    print(row[0])
";
    let home = Home::new(&[]);
    let mut load = Load::start().await;
    let bridge = home.start();
    load.send(&bridge.api, 40).await;
    bridge.kill();
    let mut python = Command::new("python3");
    let file = home.dir.path().join("data/bridge.db");
    let output = python.args(["-c", COUNT]).arg(&file).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut lines = printed.lines();
    assert_eq!(lines.next(), Some("ok"));
    let found: BTreeSet<_> = lines.map(|id| format!("dsp_{id}")).collect();
    for id in load.ids() {
        assert!(found.contains(id), "{id} is missing");
    }
    // It has checkpointed the WAL and removed it, which the next start does not mind.
    let bridge = home.start();
    load.verify_all(&bridge.api).await;
}
