//! Memory of a process tree, by `/proc`.

use std::fs;
use std::path::Path;

/// Most processes of a tree that are counted.
const MOST: usize = 1000;

/// Resident memory of a process and its descendants, in bytes. Pages that they share count for each. `None` if the
/// process has ended, or `/proc` does not show it.
pub fn memory_bytes(pid: u32) -> Option<u64> {
    // A kernel without this list would show the first process only, which is the supervisor.
    if !Path::new("/proc/thread-self/children").exists() {
        return None;
    }
    let mut bytes = resident(pid)?;
    let mut tree = children(pid);
    let mut counted = 1;
    while let Some(pid) = tree.pop().filter(|_| counted < MOST) {
        bytes += resident(pid).unwrap_or_default();
        tree.extend(children(pid));
        counted += 1;
    }
    Some(bytes)
}

fn resident(pid: u32) -> Option<u64> {
    let pages = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = pages.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let lists = tasks.flatten().flatten();
    let lists = lists.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let pids = lists.flat_map(|list| {
        let pids = list.split_ascii_whitespace();
        pids.filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()
    });
    pids.collect()
}
