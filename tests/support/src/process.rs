//! Processes of the machine, by `/proc`.

use std::fs;
use std::path::Path;
use std::process::Command;

/// Ids of the processes with this working directory.
pub fn pids_in(folder: &Path) -> Vec<String> {
    let folder = folder.canonicalize().unwrap();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == folder))
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect()
}

/// True while a process has this id; space around the id is ignored.
pub fn exists(pid: &str) -> bool {
    Path::new("/proc").join(pid.trim()).exists()
}

/// Sends SIGKILL; false if the process has ended.
pub fn kill(pid: &str) -> bool {
    let status = Command::new("kill").args(["-KILL", pid]).status();
    status.unwrap().success()
}

/// Kills the processes with this working directory; panics if there is none.
#[track_caller]
pub fn kill_all_in(folder: &Path) {
    // A process can end together with an earlier one.
    let killed = pids_in(folder).iter().filter(|pid| kill(pid)).count();
    assert!(killed > 0, "no process in {}", folder.display());
}
