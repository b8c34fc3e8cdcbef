//! What `/proc` tells about processes. Everything here is a snapshot: a pid may mean another process
//! a moment later, so whoever signals opens a pidfd first and looks again.

use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::process::{Pid, geteuid};

/// The longest environment that is read; what lies behind it is not searched for tags.
const ENVIRON_BYTES: u64 = 4 * 1024 * 1024;

/// The members of `/proc/<pid>/stat` that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) parent: i32,
    pub(super) zombie: bool,
    /// Clock ticks since boot; with the pid it names one process for good.
    pub(super) start: u64,
}

/// `None` when there is no such process.
pub(super) fn stat(pid: Pid) -> Option<Stat> {
    parse_stat(&fs::read_to_string(path(pid, "stat")).ok()?)
}

/// The variables a process was started with, empty when they may not be read or it has ended.
pub(super) fn environ(pid: Pid) -> Variables {
    Variables(read(path(pid, "environ")))
}

/// The arguments a process was started with.
pub(super) fn arguments(pid: Pid) -> Vec<String> {
    read(path(pid, "cmdline"))
        .split(|byte| *byte == 0)
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect()
}

/// All processes of our user.
pub(super) fn ours() -> Vec<Pid> {
    let user = geteuid().as_raw();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str().and_then(parse_pid)?;
            (entry.metadata().ok()?.uid() == user).then_some(pid)
        })
        .collect()
}

/// The direct children of this process, ended ones that nobody has waited for included.
pub(super) fn children() -> Vec<Pid> {
    children_by_task().unwrap_or_else(|| {
        let us = rustix::process::getpid().as_raw_nonzero().get();
        ours()
            .into_iter()
            .filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == us))
            .collect()
    })
}

/// This process, its parent, and so on up to the first one.
pub(super) fn ancestry() -> Vec<Pid> {
    let mut line = vec![rustix::process::getpid()];
    while let Some(parent) = line
        .last()
        .and_then(|pid| stat(*pid))
        .and_then(|stat| Pid::from_raw(stat.parent))
        .filter(|parent| !line.contains(parent))
    {
        line.push(parent);
    }
    line
}

/// An environment as `/proc` shows it.
pub(super) struct Variables(Vec<u8>);

impl Variables {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.split(|byte| *byte == 0).find_map(|variable| {
            let value = variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            std::str::from_utf8(value).ok()
        })
    }
}

/// `None` on kernels without `CONFIG_PROC_CHILDREN`.
fn children_by_task() -> Option<Vec<Pid>> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(line) => found.extend(line.split_ascii_whitespace().filter_map(parse_pid)),
            // A thread that ended meanwhile has handed its children to another one.
            Err(_) if !task.path().exists() => {}
            Err(_) => return None,
        }
    }
    Some(found)
}

fn parse_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

/// The second member, the name in parentheses, may hold anything, parentheses and spaces included.
fn parse_stat(line: &str) -> Option<Stat> {
    let mut fields = line.get(line.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some(Stat {
        parent,
        zombie: matches!(state, "Z" | "X"),
        start,
    })
}

fn path(pid: Pid, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/{file}", pid.as_raw_nonzero()))
}

fn read(path: PathBuf) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(path) {
        // A process that ends while it is read shows as one without variables, which is what it is.
        let _ = file.take(ENVIRON_BYTES).read_to_end(&mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_behind_the_name() {
        let cases = [
            (
                "7 (sh) S 3 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4242 1 1",
                Some(Stat {
                    parent: 3,
                    zombie: false,
                    start: 4242,
                }),
            ),
            (
                "7 (a ) Z (b) Z 1 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 99 1 1",
                Some(Stat {
                    parent: 1,
                    zombie: true,
                    start: 99,
                }),
            ),
            ("7 (sh", None),
            ("", None),
        ];
        for (line, wanted) in cases {
            assert_eq!(parse_stat(line), wanted, "{line}");
        }
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let variables = Variables(b"AXB=1\0XB=2\0XBC=3\0".to_vec());
        assert_eq!(variables.get("XB"), Some("2"));
        assert_eq!(variables.get("X"), None);
    }

    #[test]
    fn the_ancestry_begins_with_this_process() {
        let line = ancestry();
        assert_eq!(line[0], rustix::process::getpid());
        assert!(line.len() > 1, "a test runs below something");
    }
}
