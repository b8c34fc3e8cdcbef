//! Description of the test machine: processor, kernel, and the time to sync 4 KiB to disk.

use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;

const WRITES: usize = 300;

pub(crate) fn describe(folder: &Path) -> anyhow::Result<String> {
    let cpu = fs::read_to_string("/proc/cpuinfo")?;
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown", |rest| rest.trim_start_matches(['\t', ' ', ':']));
    let cores = std::thread::available_parallelism()?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let sync = sync_times(folder).context("measuring the disk")?;
    Ok(format!(
        "machine: {cores} x {model}, Linux {}\ndisk: 4 KiB synced in p50 {:?}, p99 {:?}\n\
         settings: echo adapter, defaults except callback.allow = [\"loopback\"] and log.level = \"warn\"",
        kernel.trim(),
        sync[WRITES / 2],
        sync[WRITES * 99 / 100],
    ))
}

/// Sorted times of `fdatasync` after a write into a preallocated file.
fn sync_times(folder: &Path) -> anyhow::Result<Vec<Duration>> {
    let path = folder.join("bench-sync");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .open(&path)?;
    let block = [7_u8; 4096];
    for _ in 0..WRITES {
        file.write_all(&block)?;
    }
    file.sync_all()?;
    file.seek(SeekFrom::Start(0))?;
    let mut times = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        file.write_all(&block)?;
        let begun = Instant::now();
        file.sync_data()?;
        times.push(begun.elapsed());
    }
    fs::remove_file(path)?;
    times.sort_unstable();
    Ok(times)
}
