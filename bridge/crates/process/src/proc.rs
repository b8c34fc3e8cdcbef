//! Reads `/proc`. Every value is a snapshot: a pid can name another process a moment later, so a caller that sends
//! signals opens a pidfd first and checks again.

use std::fs;
use std::io::Read;
use std::path::PathBuf;

use rustix::process::Pid;

/// Limit for reading an environment; tags beyond it are not found.
const ENVIRON_BYTES: u64 = 4 * 1024 * 1024;

/// Needed fields of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) parent: i32,
    pub(super) zombie: bool,
    /// Start time in clock ticks since boot; identifies a process together with its pid.
    pub(super) start: u64,
}

/// `None` if there is no such process.
pub(super) fn stat(pid: Pid) -> Option<Stat> {
    parse_stat(&fs::read_to_string(path(pid, "stat")).ok()?)
}

/// Environment a process was started with; empty if it cannot be read or the process has ended.
pub(super) fn environ(pid: Pid) -> Variables {
    Variables(read(path(pid, "environ")))
}

/// Arguments a process was started with; none if it is ending or has ended.
pub(super) fn arguments(pid: Pid) -> Vec<String> {
    let line = read(path(pid, "cmdline"));
    line.split_inclusive(|byte| *byte == 0)
        .map(|argument| argument.strip_suffix(b"\0").unwrap_or(argument))
        .map(|argument| String::from_utf8_lossy(argument).into_owned())
        .collect()
}

/// Limits of a process; `None` if it has ended.
pub(super) fn limits(pid: Pid) -> Option<String> {
    fs::read_to_string(path(pid, "limits")).ok()
}

/// Executable file of a process; `None` if it has ended or is closed to this one.
pub(super) fn executable(pid: Pid) -> Option<fs::Metadata> {
    fs::metadata(path(pid, "exe")).ok()
}

/// All processes that are visible here. Those of other users count, since programs can run as another one.
pub(super) fn all() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(parse_pid))
        .collect()
}

/// Direct children of this process, including ended ones that have not been reaped.
pub(super) fn children() -> Vec<Pid> {
    children_by_task().unwrap_or_else(|| {
        let us = rustix::process::getpid().as_raw_nonzero().get();
        all()
            .into_iter()
            .filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == us))
            .collect()
    })
}

/// This process, its parent, and so on up to the first process.
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

/// Environment in the format of `/proc`.
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
            // The thread has ended; another one has taken over its children.
            Err(_) if !task.path().exists() => {}
            Err(_) => return None,
        }
    }
    Some(found)
}

fn parse_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

/// The second field, the name in parentheses, can contain parentheses and spaces.
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
        // A process that ends during the read counts as one without variables.
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
