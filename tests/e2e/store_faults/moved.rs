//! The files of a store are removed or replaced under the running bridge, which then accepts nothing more.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::StatusCode;

use super::super::harness::process::{Home, Process};
use super::super::harness::until;
use super::disk::{Disk, WELL, WRITES_FAIL};
use super::is_whole;
use super::load::Load;

const REASON: &str = "its files were removed or replaced while the bridge was running";

fn data(home: &Home) -> PathBuf {
    home.dir.path().join("data")
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// Waits for the end of a bridge that is strict, and asserts that it is explained.
async fn ends_by_itself(home: &Home, bridge: Process) {
    let status = bridge.ended().await;
    assert_eq!(status.code(), Some(1));
    // Its last lines are copied to the log when it has ended.
    until("the reason in the log", async || {
        let log = home.log();
        let is_said = log.contains(REASON) && log.contains("`strict` is set");
        is_said.then_some(())
    })
    .await;
}

/// A bridge that has worked, in a home that outlives it.
async fn working(load: &mut Load) -> (Home, Process) {
    let home = Home::new(&[]);
    let bridge = home.start();
    load.send(&bridge.api, 6).await;
    load.verify(&bridge.api).await;
    (home, bridge)
}

/// Sends work until it is refused, and asserts that this lasts and is said.
async fn stops_accepting(home: &Home, bridge: &Process, load: &mut Load) {
    while load.refused() == 0 {
        load.send(&bridge.api, 1).await;
    }
    let answered = load.answered();
    load.send(&bridge.api, 3).await;
    assert_eq!(load.answered(), answered, "it accepted work again");
    let (status, health) = bridge.api.get("/api/health").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{health}");
    assert_eq!(health["store"]["status"], "offline", "{health}");
    // Its lines are copied to the log a little later.
    let log = until("the reason in the log", async || {
        Some(home.log()).filter(|log| log.contains(REASON))
    })
    .await;
    assert_eq!(log.matches("the store failed").count(), 1, "{log}");
}

#[tokio::test]
async fn a_bridge_whose_folder_is_removed_accepts_nothing_more() {
    let mut load = Load::start().await;
    let (home, bridge) = working(&mut load).await;
    fs::remove_dir_all(data(&home)).unwrap();
    let second = home.start();
    stops_accepting(&home, &bridge, &mut load).await;
    // The new bridge is not disturbed by the end of the one without a folder.
    bridge.terminate();
    assert!(bridge.ended().await.success());
    load.until_taken(&second.api).await;
    second.kill();
    is_whole(&home);
}

#[tokio::test]
async fn a_bridge_whose_folder_is_replaced_by_a_copy_keeps_what_it_answered_in_the_old_one() {
    let mut load = Load::start().await;
    let (home, bridge) = working(&mut load).await;
    let (data, moved) = (data(&home), home.dir.path().join("moved"));
    fs::rename(&data, &moved).unwrap();
    copy(&moved, &data);
    stops_accepting(&home, &bridge, &mut load).await;
    bridge.kill();
    fs::remove_dir_all(&data).unwrap();
    fs::rename(&moved, &data).unwrap();
    let bridge = home.start();
    load.verify_all(&bridge.api).await;
    bridge.kill();
    is_whole(&home);
}

#[tokio::test]
async fn a_bridge_whose_database_is_replaced_accepts_nothing_more() {
    let mut load = Load::start().await;
    let (home, bridge) = working(&mut load).await;
    let (file, copy) = (data(&home).join("bridge.db"), home.dir.path().join("copy"));
    fs::copy(&file, &copy).unwrap();
    fs::rename(&copy, &file).unwrap();
    stops_accepting(&home, &bridge, &mut load).await;
}

#[tokio::test]
async fn with_strict_a_bridge_whose_folder_is_removed_ends() {
    let home = Home::new(&[("BRIDGE_STRICT", "true")]);
    let bridge = home.start();
    fs::remove_dir_all(data(&home)).unwrap();
    ends_by_itself(&home, bridge).await;
}

/// The files are looked at before they are opened again, too.
#[tokio::test]
async fn with_strict_a_bridge_ends_whose_folder_is_removed_while_the_disk_fails() {
    let mut home = Home::new(&[("BRIDGE_STRICT", "true")]);
    let disk = Disk::below(&mut home);
    let mut load = Load::start().await;
    let bridge = home.start();
    load.send(&bridge.api, 6).await;
    load.verify(&bridge.api).await;
    disk.is(WRITES_FAIL);
    while load.refused() == 0 {
        load.send(&bridge.api, 1).await;
    }
    fs::remove_dir_all(data(&home)).unwrap();
    disk.is(WELL);
    ends_by_itself(&home, bridge).await;
}

/// Answers before the removal is noticed are kept: the WAL is copied into the database file.
#[tokio::test]
async fn what_was_answered_survives_the_removal_of_the_wal_and_a_kill() {
    for name in ["bridge.db-wal", "bridge.db-shm"] {
        let mut load = Load::start().await;
        let (home, bridge) = working(&mut load).await;
        fs::remove_file(data(&home).join(name)).unwrap();
        let refusing = async {
            while load.refused() == 0 {
                load.send(&bridge.api, 4).await;
            }
        };
        let limit = Duration::from_secs(60);
        let refused = tokio::time::timeout(limit, refusing).await;
        refused.unwrap_or_else(|_| panic!("the removal of {name} was not noticed"));
        until("the reason in health", async || {
            let (_, health) = bridge.api.get("/api/health").await;
            let reason = health["store"]["message"].as_str()?;
            reason
                .contains("its write-ahead log was removed")
                .then_some(())
        })
        .await;
        let log = home.log();
        let saved = "all that were answered are in the database file";
        assert!(log.contains(saved), "{name}: {log}");
        bridge.kill();
        let bridge = home.start();
        load.verify_all(&bridge.api).await;
        bridge.kill();
        is_whole(&home);
    }
}
