//! Kills what is left without a supervisor: at the start by the store's id in the environment, while running by the
//! depth of adopted children. Reaps ended children that no caller waits for. Never kills itself or an ancestor.

use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

use super::{STORE_VARIABLE, depth, proc};

/// Number of processes of a store, without supervisors and adapter hosts.
pub(super) fn count(store: &str) -> usize {
    let spared = proc::ancestry();
    proc::all()
        .into_iter()
        .filter(|pid| !spared.contains(pid) && belongs(*pid, store))
        .filter(|pid| {
            let arguments = proc::arguments(*pid);
            let mut words = arguments.iter().skip(1).map(String::as_str);
            match (words.next(), words.next()) {
                (Some(SUPERVISOR), Some(next)) => !next.starts_with("--bridge="),
                (Some(ADAPTER_HOST), _) => false,
                (_, _) => true,
            }
        })
        .count()
}

/// True for processes with the id of the store in their environment, and for supervisors and adapter hosts, which close
/// theirs and have it in their arguments.
fn belongs(pid: Pid, store: &str) -> bool {
    let arguments = proc::arguments(pid);
    proc::environ(pid).get(STORE_VARIABLE) == Some(store)
        || [ADAPTER_HOST, SUPERVISOR]
            .iter()
            .any(|own| is_command(&arguments, own))
            && has_store(&arguments, store)
}

fn has_store(arguments: &[String], store: &str) -> bool {
    let mut stores = (arguments.iter()).filter_map(|word| word.strip_prefix("--store="));
    stores.next() == Some(store)
}

const SUPERVISOR: &str = "exec";
const ADAPTER_HOST: &str = "adapter-host";

fn is_command(arguments: &[String], command: &str) -> bool {
    arguments.get(1).map(String::as_str) == Some(command)
}

/// Result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub killed: usize,
    /// Still alive at the time limit.
    pub left: usize,
}

/// Kills every process of a store, including those that start meanwhile. Returns when all are gone, or after
/// `limit`.
pub(super) fn sweep(store: &str, limit: Duration) -> Swept {
    let spared = proc::ancestry();
    kill_until_none(limit, || {
        select(proc::all(), |pid| {
            !spared.contains(&pid) && belongs(pid, store)
        })
    })
}

/// Kills the orphans among the children of this process, and what becomes its child by that. Returns when none is
/// left, or after `limit`.
pub(super) fn sweep_orphans(
    executable: &Executable,
    store: Option<&str>,
    limit: Duration,
) -> Swept {
    kill_until_none(limit, || orphans(executable, store))
}

/// Kills the orphans that are children of this process now; does not wait for their end.
pub(super) fn kill_orphans(executable: &Executable, store: Option<&str>) {
    for orphan in orphans(executable, store) {
        // The process can have ended by itself.
        let _ = pidfd_send_signal(&orphan, Signal::KILL);
    }
}

/// Children of this process that were started by a supervisor further down, and adopted when it was killed. They are
/// recognised by their depth; the supervisors that this process started are spared, except those of `store`.
fn orphans(executable: &Executable, store: Option<&str>) -> Vec<OwnedFd> {
    let own = depth::own();
    select(proc::children(), |pid| {
        let arguments = proc::arguments(pid);
        let is_supervisor = is_command(&arguments, SUPERVISOR) && executable.runs(pid);
        let is_spared = is_supervisor && !store.is_some_and(|store| has_store(&arguments, store));
        // Without arguments it is ending.
        !arguments.is_empty() && !is_spared && depth::of(pid).is_some_and(|depth| depth < own)
    })
}

/// Opens those of the processes that the rule names. The pidfd is opened before the rule is applied: if the pid was
/// reused in between, a signal goes to a process that has ended.
fn select(pids: Vec<Pid>, rule: impl Fn(Pid) -> bool) -> Vec<OwnedFd> {
    pids.into_iter()
        .filter_map(|pid| Some((pidfd_open(pid, PidfdFlags::empty()).ok()?, pid)))
        .filter(|(_, pid)| rule(*pid))
        .map(|(pidfd, _)| pidfd)
        .collect()
}

fn kill_until_none(limit: Duration, find: impl Fn() -> Vec<OwnedFd>) -> Swept {
    let until = Instant::now() + limit;
    let mut killed = 0;
    loop {
        let victims = find();
        if victims.is_empty() {
            return Swept { killed, left: 0 };
        }
        for victim in &victims {
            // The process can have ended by itself.
            let _ = pidfd_send_signal(victim, Signal::KILL);
        }
        let left = await_end(&victims, until);
        killed += victims.len() - left;
        if left > 0 {
            return Swept { killed, left };
        }
    }
}

/// Number of them that are still alive at `until`.
fn await_end(victims: &[OwnedFd], until: Instant) -> usize {
    let mut waiting: Vec<PollFd<'_>> = victims
        .iter()
        .map(|victim| PollFd::new(victim, PollFlags::IN))
        .collect();
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(rest).ok();
        if rest.is_zero() || waiting.is_empty() {
            return waiting.len();
        }
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return waiting.len(),
        }
        waiting.retain(|fd| fd.revents().is_empty());
    }
}

/// File of the program that runs as supervisor, by device and inode.
#[derive(Debug)]
pub(super) struct Executable(Option<(u64, u64)>);

impl Executable {
    /// Of this process.
    pub(super) fn running() -> Self {
        Self::of("/proc/self/exe")
    }

    pub(super) fn of(path: impl AsRef<Path>) -> Self {
        Self(fs::metadata(path).ok().as_ref().map(identity))
    }

    /// True if the process runs this file, and where that cannot be read.
    fn runs(&self, pid: Pid) -> bool {
        match (self.0, proc::executable(pid)) {
            (Some(file), Some(other)) => file == identity(&other),
            (None, _) | (_, None) => true,
        }
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

/// Ended children that have not been reaped: as a subreaper (and as pid 1) the bridge adopts those of dead
/// supervisors.
#[derive(Default)]
pub(super) struct Dead {
    /// Start, and the time it was first seen ended, by pid.
    seen: HashMap<i32, (u64, Instant)>,
}

/// Delay before an ended child is reaped here: its own parent code, such as an in-process adapter, can still wait for
/// it.
const UNCLAIMED: Duration = Duration::from_secs(60);

impl Dead {
    /// Reaps those that were first seen long ago.
    pub(super) fn reap(&mut self, now: Instant) {
        let mut seen = HashMap::new();
        for child in proc::children() {
            let Some(stat) = proc::stat(child).filter(|stat| stat.zombie) else {
                continue;
            };
            let pid = child.as_raw_nonzero().get();
            let since = match self.seen.get(&pid) {
                Some((start, since)) if *start == stat.start => *since,
                Some(_) | None => now,
            };
            if now.saturating_duration_since(since) >= UNCLAIMED {
                // A later wait for it fails with ECHILD.
                let _ = waitpid(Some(child), WaitOptions::NOHANG);
            } else {
                seen.insert(pid, (stat.start, since));
            }
        }
        self.seen = seen;
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{WaitId, WaitIdOptions, waitid};

    use super::*;

    #[test]
    fn an_ended_child_without_a_waiter_is_reaped_after_a_while() {
        #[expect(clippy::zombie_processes, reason = "the test is about one")]
        let child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        // Waits for its end; it stays a zombie.
        waitid(
            WaitId::Pid(pid),
            WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        )
        .unwrap();
        let now = Instant::now();
        let mut dead = Dead::default();

        dead.reap(now);
        dead.reap(now + UNCLAIMED / 2);
        assert!(
            proc::stat(pid).is_some_and(|stat| stat.zombie),
            "it may still be waited for"
        );

        dead.reap(now + UNCLAIMED);
        assert_eq!(proc::stat(pid), None);
    }
}
