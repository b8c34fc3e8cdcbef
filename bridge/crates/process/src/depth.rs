//! Depth of supervision: each supervisor lowers a hard limit by one before it starts its program. Every descendant
//! inherits the limit and none can raise it, whatever it does to its environment, group, session or parent; only
//! `CAP_SYS_RESOURCE` can. A child with a lower limit than its parent's was therefore started by a supervisor.
//!
//! The limit is that of CPU time under real-time scheduling: unlimited everywhere, and the values used here are in
//! effect unlimited, too.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, setrlimit};

use super::proc;

/// Limit of the outermost supervisor's program, in microseconds: more than 100,000 years.
const OUTERMOST: u64 = 1 << 62;

/// Limit of this process.
pub(super) fn own() -> u64 {
    getrlimit(Resource::Rttime).maximum.unwrap_or(u64::MAX)
}

/// Limit of a process; `None` if it has ended.
pub(super) fn of(pid: Pid) -> Option<u64> {
    parse(&proc::limits(pid)?)
}

/// Goes one deeper. Fails only under a filter of system calls.
pub(super) fn descend() -> rustix::io::Result<()> {
    let deeper = own().min(OUTERMOST + 1) - 1;
    let limit = Rlimit {
        current: Some(deeper),
        maximum: Some(deeper),
    };
    setrlimit(Resource::Rttime, limit)
}

/// Hard limit in the format of `/proc/<pid>/limits`.
fn parse(limits: &str) -> Option<u64> {
    let mut lines = limits.lines();
    let values = lines.find_map(|line| line.strip_prefix("Max realtime timeout"))?;
    match values.split_ascii_whitespace().nth(1)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hard_limit_is_read() {
        let line = |values| format!("Max core file size 0 0 bytes\nMax realtime timeout {values}");
        assert_eq!(parse(&line("unlimited unlimited us")), Some(u64::MAX));
        assert_eq!(
            parse(&line("7     4611686018427387904  us")),
            Some(OUTERMOST)
        );
        assert_eq!(parse("Max core file size 0 0 bytes"), None);
    }

    #[test]
    fn the_depth_of_this_process_is_the_same_from_both_sides() {
        assert_eq!(of(rustix::process::getpid()), Some(own()));
    }
}
