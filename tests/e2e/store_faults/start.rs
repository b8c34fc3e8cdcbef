//! Starts on a disk that fails: they succeed, or fail with one line, and the next start finds everything.

use super::super::harness::api::quiet;
use super::super::harness::process::{Ended, Home};
use super::disk::{Disk, FULL, Fault, Place, WELL};
use super::is_whole;
use super::load::Load;

/// Faults of each place.
const FAULTS: [(Place, &[Fault]); 3] = [
    (Place::Database, &ALL),
    (Place::Wal, &ALL),
    (Place::Folder, &[Fault::Sync]),
];
const ALL: [Fault; 4] = [
    Fault::WriteError,
    Fault::WriteFull,
    Fault::WriteTorn,
    Fault::Sync,
];

/// Countdowns that are tried: all up to FORGE_FAULT_STEPS, or a selection.
fn countdowns() -> Vec<u32> {
    match std::env::var("FORGE_FAULT_STEPS") {
        Ok(last) => (1..=last.parse().unwrap()).collect(),
        Err(_) => vec![1, 6],
    }
}

/// Asserts that a start failed with one line about the store.
fn failed_clearly(ended: &Ended, case: &str) {
    let Ended { status, log } = ended;
    assert_eq!(status.code(), Some(1), "{case}: {log}");
    let errors: Vec<_> = log
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    assert_eq!(errors.len(), 1, "{case}: {log}");
    let names = ["/data", "the store", "secret.key"];
    let is_named = names.iter().any(|name| errors[0].contains(name));
    assert!(is_named, "{case}: {log}");
    assert!(!log.contains("panicked"), "{case}: {log}");
}

#[tokio::test]
async fn each_operation_of_a_first_start_can_fail() {
    let (mut failed, mut succeeded) = (0, 0);
    for (place, faults) in FAULTS {
        for fault in faults {
            for countdown in countdowns() {
                let case = format!("{place:?} {fault:?} {countdown}");
                let mut home = Home::new(&[]);
                let disk = Disk::below(&mut home);
                let mut load = Load::start().await;
                disk.fails_at(place, *fault, countdown);
                let started = home.try_start();
                let is_over = disk.faults() == 0;
                disk.disarm();
                match &started {
                    Ok(_) => succeeded += 1,
                    Err(ended) => {
                        failed_clearly(ended, &case);
                        failed += 1;
                    }
                }
                let bridge = started.unwrap_or_else(|_| home.start());
                load.until_taken(&bridge.api).await;
                load.send(&bridge.api, 3).await;
                bridge.kill();
                let bridge = home.start();
                load.verify_all(&bridge.api).await;
                bridge.kill();
                is_whole(&home);
                if is_over {
                    break;
                }
            }
        }
    }
    println!("first start: {failed} failed, {succeeded} succeeded");
}

#[tokio::test]
async fn each_operation_of_a_later_start_can_fail() {
    let mut home = Home::new(&[]);
    let disk = Disk::below(&mut home);
    let mut load = Load::start().await;
    let (mut failed, mut succeeded) = (0, 0);
    for (place, faults) in FAULTS {
        for fault in faults {
            for countdown in countdowns() {
                // A killed bridge leaves a WAL for the next start.
                let bridge = home.start();
                load.verify(&bridge.api).await;
                load.send(&bridge.api, 3).await;
                bridge.kill();
                let before = disk.faults();
                disk.fails_at(place, *fault, countdown);
                let started = home.try_start();
                let is_over = disk.faults() == before;
                disk.disarm();
                let case = format!("{place:?} {fault:?} {countdown}");
                match started {
                    Ok(bridge) => {
                        load.until_taken(&bridge.api).await;
                        load.verify(&bridge.api).await;
                        bridge.kill();
                        succeeded += 1;
                    }
                    Err(ended) => {
                        failed_clearly(&ended, &case);
                        failed += 1;
                    }
                }
                if is_over {
                    break;
                }
            }
            let bridge = home.start();
            load.verify(&bridge.api).await;
            bridge.kill();
            is_whole(&home);
        }
    }
    let bridge = home.start();
    load.verify_all(&bridge.api).await;
    println!("later start: {failed} failed, {succeeded} succeeded");
}

#[tokio::test]
async fn on_a_full_disk_a_start_fails_with_one_line() {
    let mut home = Home::new(&[]);
    let disk = Disk::below(&mut home);
    let bridge = home.start();
    let id = bridge.api.dispatch(quiet("t", "ok")).await;
    bridge.api.finished(&id).await;
    bridge.kill();
    disk.is(FULL);
    let Err(log) = home.launch() else {
        panic!("it started on a full disk");
    };
    let errors: Vec<_> = log.lines().filter(|line| line.contains("error")).collect();
    assert_eq!(errors.len(), 1, "{log}");
    assert!(errors[0].contains("bridge.db"), "{log}");
    assert!(errors[0].contains("full"), "{log}");
    disk.is(WELL);
    let bridge = home.start();
    let record = bridge.api.finished(&id).await;
    assert_eq!(record["result"]["status"], "ok", "{record}");
}
