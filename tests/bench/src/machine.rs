//! Description of the test machine: processor, kernel, and the time to sync 4 KiB to disk; CPU time of the machine
//! and of processes.

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

/// CPU seconds of the whole machine.
pub(crate) struct Host {
    pub(crate) busy: f64,
    pub(crate) all: f64,
}

impl Host {
    pub(crate) fn now() -> anyhow::Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        let line = stat.lines().next().context("/proc/stat is empty")?;
        let ticks: Vec<f64> = line
            .split_whitespace()
            .skip(1)
            .take(8)
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let second = rustix::param::clock_ticks_per_second() as f64;
        let all = ticks.iter().sum::<f64>() / second;
        Ok(Self {
            busy: all - (ticks[3] + ticks[4]) / second,
            all,
        })
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            busy: self.busy - before.busy,
            all: self.all - before.all,
        }
    }
}

/// CPU seconds of a process so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    pub(crate) own: f64,
    /// Of its children that have ended, and of theirs.
    pub(crate) children: f64,
}

/// `process` is a process id, or `self`.
pub(crate) fn cpu(process: &str) -> anyhow::Result<Cpu> {
    let stat = stat(process)?;
    let second = rustix::param::clock_ticks_per_second() as f64;
    let seconds = |field: usize| anyhow::Ok(stat[field].parse::<f64>()? / second);
    Ok(Cpu {
        own: seconds(11)? + seconds(12)?,
        children: seconds(13)? + seconds(14)?,
    })
}

/// Start of this process, in ticks since the machine's.
pub(crate) fn started() -> anyhow::Result<String> {
    Ok(stat("self")?.swap_remove(19))
}

/// Fields of `/proc/…/stat` after the name, beginning with the state.
fn stat(process: &str) -> anyhow::Result<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, rest) = stat.rsplit_once(')').context("/proc/…/stat has no name")?;
    Ok(rest.split_whitespace().map(str::to_owned).collect())
}
