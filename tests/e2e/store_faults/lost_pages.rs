//! A sync that fails loses what was written since the last one, as on a system that drops the pages it could not write.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use rusqlite::Connection;

use super::super::harness::process::{Home, Process};
use super::super::harness::until;
use super::disk::{Disk, Fault, Place, SLOW, WELL, WRITES_FAIL};
use super::load::Load;
use super::{Ending, is_whole};

const ENDINGS: [Ending; 2] = [Ending::Killed, Ending::Terminated];

struct Scene {
    home: Home,
    disk: Disk,
    load: Load,
}

impl Scene {
    async fn new() -> Self {
        let mut home = Home::new(&[]);
        let disk = Disk::below(&mut home);
        let load = Load::start().await;
        Self { home, disk, load }
    }

    /// Waits until all of the WAL is in the database, or the store has recovered.
    async fn is_checkpointed_or_failed(&self, bridge: &Process) {
        until("the idle checkpoint", async || {
            let metrics = bridge.api.request(Method::GET, "/metrics").send().await;
            let metrics = metrics.unwrap().text().await.unwrap();
            let is_empty = metrics
                .lines()
                .any(|line| line == "forge_bridge_store_wal_bytes 0");
            (is_empty || self.home.log().contains("the store is back")).then_some(())
        })
        .await;
    }

    /// Frames in the WAL, and those that a checkpoint has copied, as the shared memory has them.
    fn frames(&self) -> (u32, u32) {
        let memory = std::fs::read(self.home.dir.path().join("data/bridge.db-shm")).unwrap();
        let number = |at: usize| {
            let bytes = memory[at..].first_chunk().unwrap();
            u32::from_ne_bytes(*bytes)
        };
        (number(16), number(96))
    }

    fn is_half_copied(&self) -> bool {
        let (in_wal, in_file) = self.frames();
        0 < in_file && in_file < in_wal
    }

    /// Ends the bridge and asserts that the next one finds everything.
    async fn ends(mut self, bridge: Process, ending: Ending) {
        ending.come(bridge).await;
        is_whole(&self.home);
        let bridge = self.home.start();
        self.load.verify_all(&bridge.api).await;
        bridge.kill();
        is_whole(&self.home);
    }
}

#[tokio::test]
async fn a_failed_sync_of_the_wal_loses_nothing_that_was_answered() {
    for ending in ENDINGS {
        let mut scene = Scene::new().await;
        let bridge = scene.home.start();
        scene.load.send(&bridge.api, 12).await;
        scene.disk.fails_at(Place::Wal, Fault::Sync, 1);
        while scene.disk.faults() == 0 {
            scene.load.send(&bridge.api, 12).await;
        }
        scene.load.until_taken(&bridge.api).await;
        scene.load.send(&bridge.api, 12).await;
        scene.ends(bridge, ending).await;
    }
}

#[tokio::test]
async fn a_failed_sync_of_the_database_loses_nothing() {
    for fault in [Fault::Sync, Fault::SyncOnce] {
        for ending in ENDINGS {
            let mut scene = Scene::new().await;
            let bridge = scene.home.start();
            scene.load.send(&bridge.api, 12).await;
            // The bridge checkpoints when it is idle.
            scene.disk.fails_at(Place::Database, fault, 1);
            scene.disk.failed_since(0).await;
            scene.load.until_taken(&bridge.api).await;
            scene.load.send(&bridge.api, 12).await;
            scene.ends(bridge, ending).await;
        }
    }
}

/// The checkpointer thread has copied frames without a sync, since more were written meanwhile. Then its sync fails,
/// and the writer thread makes the next checkpoint: when it is idle, or when it closes the file.
#[tokio::test]
async fn a_failed_sync_of_the_checkpointer_loses_nothing() {
    for ending in ENDINGS {
        let mut scene = Scene::new().await;
        let bridge = scene.home.start();
        scene.load.send(&bridge.api, 6).await;
        scene.disk.set_sync_ms(30);
        scene.disk.is(SLOW);
        // Counts the syncs of the database, each of which restarts the WAL.
        scene
            .disk
            .fails_at(Place::Database, Fault::SyncOnce, u32::MAX);
        while !scene.is_half_copied() {
            scene.load.send_bytes(&bridge.api, 6, 200_000).await;
        }
        scene.disk.is(WELL);
        scene.disk.fails_at(Place::Database, Fault::SyncOnce, 1);
        while scene.disk.faults() == 0 {
            scene.load.send_bytes(&bridge.api, 1, 400_000).await;
            // The checkpointer copies everything and syncs if the writer has nothing to do meanwhile.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        match ending {
            Ending::Killed => {
                scene.is_checkpointed_or_failed(&bridge).await;
                scene.load.until_taken(&bridge.api).await;
                scene.load.send(&bridge.api, 12).await;
            }
            Ending::Terminated => {}
        }
        scene.ends(bridge, ending).await;
    }
}

/// The beginning of the shared memory is unreadable for a moment, as while another process writes it, when the bridge
/// asks for the length of the WAL to cut what was not committed.
#[tokio::test]
async fn a_wal_of_unknown_length_is_not_cut() {
    let mut scene = Scene::new().await;
    let bridge = scene.home.start();
    let folder = scene.home.dir.path().join("data");
    scene.load.send(&bridge.api, 12).await;
    scene.load.verify(&bridge.api).await;
    let outsider = Connection::open(folder.join("bridge.db")).unwrap();
    outsider.execute_batch("BEGIN IMMEDIATE").unwrap();
    let memory = OpenOptions::new()
        .read(true)
        .write(true)
        .open(folder.join("bridge.db-shm"));
    let memory = memory.unwrap();

    scene.disk.set_sync_ms(1_000);
    scene.disk.fails_at(Place::Database, Fault::Sync, 1);
    scene.disk.is(SLOW);
    // The idle checkpoint has begun to sync the database, which will fail.
    scene.disk.failed_since(0).await;
    let mut byte = [0];
    memory.read_exact_at(&mut byte, 8).unwrap();
    memory.write_all_at(&[!byte[0]], 8).unwrap();
    let recovers = async || {
        let (status, _) = bridge.api.get("/api/health/ready").await;
        (status == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    };
    until("the failure", recovers).await;
    scene.load.send(&bridge.api, 3).await;
    assert_eq!(scene.load.refused(), 3);
    memory.write_all_at(&byte, 8).unwrap();
    outsider.execute_batch("ROLLBACK").unwrap();
    drop(outsider);
    scene.disk.is(WELL);
    scene.load.until_taken(&bridge.api).await;
    scene.ends(bridge, Ending::Killed).await;
}

#[tokio::test]
async fn a_failed_sync_of_the_folder_is_tried_again() {
    let mut scene = Scene::new().await;
    let bridge = scene.home.start();
    scene.load.send(&bridge.api, 12).await;
    scene.disk.is(WRITES_FAIL);
    while scene.load.refused() == 0 {
        scene.load.send(&bridge.api, 1).await;
    }
    // The folder is synced when the store recovers.
    scene.disk.fails_at(Place::Folder, Fault::Sync, 1);
    scene.disk.is(WELL);
    scene.disk.failed_since(0).await;
    scene.load.until_taken(&bridge.api).await;
    scene.ends(bridge, Ending::Killed).await;
}
