//! A dispatch that was refused because the disk failed is in no record, event or callback, also after a restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;

use super::super::harness::process::Home;
use super::disk::{Disk, FULL, Fault, Place, SLOW, SYNCS_FAIL, WELL, WRITES_FAIL};
use super::load::Load;
use super::{is_whole, ready};

/// A failure and how it is brought about.
#[derive(Clone, Copy, Debug)]
enum Failure {
    Once(Fault),
    /// Lasts until the disk is repaired.
    Lasting(&'static str),
}

/// A process that opens the database while the bridge recovers would recover what is in the WAL.
#[tokio::test]
async fn another_process_does_not_bring_a_refused_dispatch_back() {
    let mut home = Home::new(&[]);
    let disk = Disk::below(&mut home);
    let mut load = Load::start().await;
    let bridge = home.start();
    load.send(&bridge.api, 6).await;
    load.verify(&bridge.api).await;
    let (file, is_over) = (
        home.dir.path().join("data/bridge.db"),
        AtomicBool::new(false),
    );
    let is_over = Arc::new(is_over);
    let visits = tokio::task::spawn_blocking({
        let is_over = Arc::clone(&is_over);
        move || {
            while !is_over.load(Ordering::Relaxed) {
                let visitor = Connection::open(&file).unwrap();
                let read = "SELECT count(*) FROM dispatch";
                // The file can be locked for recovery.
                let _ = visitor.query_row(read, [], |row| row.get::<_, u64>(0));
            }
        }
    });
    disk.set_sync_ms(300);
    disk.fails_at(Place::Wal, Fault::SyncKept, 1);
    disk.is(SLOW);
    while load.refused() == 0 {
        load.send(&bridge.api, 6).await;
    }
    disk.is(WELL);
    is_over.store(true, Ordering::Relaxed);
    visits.await.unwrap();
    load.until_taken(&bridge.api).await;
    load.verify_all(&bridge.api).await;
    bridge.kill();
    let bridge = home.start();
    load.verify_all(&bridge.api).await;
    bridge.kill();
    is_whole(&home);
}

#[tokio::test]
async fn a_refused_dispatch_leaves_no_trace() {
    for failure in [
        Failure::Once(Fault::Sync),
        Failure::Once(Fault::SyncKept),
        Failure::Once(Fault::WriteError),
        Failure::Once(Fault::WriteFull),
        Failure::Once(Fault::WriteTorn),
        Failure::Lasting(SYNCS_FAIL),
        Failure::Lasting(WRITES_FAIL),
        Failure::Lasting(FULL),
    ] {
        let mut home = Home::new(&[]);
        let disk = Disk::below(&mut home);
        let mut load = Load::start().await;
        let bridge = home.start();
        load.send(&bridge.api, 6).await;
        load.verify(&bridge.api).await;
        match failure {
            Failure::Once(fault) => disk.fails_at(Place::Wal, fault, 1),
            Failure::Lasting(state) => disk.is(state),
        }
        while load.refused() == 0 {
            load.send(&bridge.api, 6).await;
        }
        // Refused dispatches are not found while the disk fails either.
        load.verify_refused(&bridge.api).await;
        disk.is(WELL);
        ready(&bridge.api).await;
        load.until_taken(&bridge.api).await;
        load.verify_all(&bridge.api).await;
        assert!(load.refused() > 0, "{failure:?}");
        bridge.kill();

        let bridge = home.start();
        load.verify_all(&bridge.api).await;
        bridge.kill();
        is_whole(&home);
    }
}
