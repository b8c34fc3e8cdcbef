//! Finds processes by the tags in their environment and kills them; reaps ended children that no caller waits for.
//! Never kills itself or an ancestor. A program that clears its environment and outlives its supervisor is not found.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

use super::{EXECUTION_VARIABLE, STORE_VARIABLE, proc};

/// Processes to find.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tag<'a> {
    pub(super) store: &'a str,
    /// `None` matches every execution.
    pub(super) execution: Option<&'a str>,
}

impl Tag<'_> {
    fn is_on(&self, pid: Pid) -> bool {
        let variables = proc::environ(pid);
        variables.get(STORE_VARIABLE) == Some(self.store)
            && self
                .execution
                .is_none_or(|execution| variables.get(EXECUTION_VARIABLE) == Some(execution))
    }
}

/// Number of tagged processes, without supervisors and adapter hosts.
pub(super) fn count(tag: Tag<'_>) -> usize {
    let spared = proc::ancestry();
    proc::ours()
        .into_iter()
        .filter(|pid| !spared.contains(pid) && tag.is_on(*pid))
        .filter(|pid| !is_supervisor(*pid) && !holds_adapter(*pid))
        .count()
}

/// Result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub killed: usize,
    /// Still alive at the time limit.
    pub left: usize,
}

/// Kills every process with the tag, including those that start meanwhile. Returns when all are gone, or after
/// `limit`.
pub(super) fn sweep(tag: Tag<'_>, limit: Duration) -> Swept {
    let until = Instant::now() + limit;
    let spared = proc::ancestry();
    let mut killed = 0;
    loop {
        let victims: Vec<OwnedFd> = proc::ours()
            .into_iter()
            .filter(|pid| !spared.contains(pid))
            // The pidfd is opened before the tag is read: if the pid was reused in between, the signal goes to a
            // process that has ended.
            .filter_map(|pid| Some((pidfd_open(pid, PidfdFlags::empty()).ok()?, pid)))
            .filter(|(_, pid)| tag.is_on(*pid))
            .map(|(pidfd, _)| pidfd)
            .collect();
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

/// Orphans among the children of this process: as a subreaper (and as pid 1) the bridge adopts those of dead
/// supervisors.
#[derive(Default)]
pub(super) struct Orphanage {
    /// Ended children that have not been reaped, with their start and the time they were first seen.
    dead: HashMap<i32, (u64, Instant)>,
}

/// Delay before an ended child is reaped here: its own parent code, such as an in-process adapter, can still wait for
/// it.
const UNCLAIMED: Duration = Duration::from_secs(60);

impl Orphanage {
    /// Executions of orphaned programs whose supervisor is gone. Reaps old zombies.
    pub(super) fn round(&mut self, store: &str, now: Instant) -> Vec<String> {
        let mut executions = Vec::new();
        let mut dead = HashMap::new();
        for child in proc::children() {
            let Some(stat) = proc::stat(child) else {
                continue;
            };
            if stat.zombie {
                let pid = child.as_raw_nonzero().get();
                let since = match self.dead.get(&pid) {
                    Some((start, since)) if *start == stat.start => *since,
                    Some(_) | None => now,
                };
                if now.duration_since(since) >= UNCLAIMED {
                    // A later wait for it fails with ECHILD.
                    let _ = waitpid(Some(child), WaitOptions::NOHANG);
                } else {
                    dead.insert(pid, (stat.start, since));
                }
                continue;
            }
            let variables = proc::environ(child);
            if variables.get(STORE_VARIABLE) == Some(store)
                && let Some(execution) = variables.get(EXECUTION_VARIABLE)
                && !is_supervisor(child)
                && !executions.iter().any(|known| known == execution)
            {
                executions.push(execution.to_owned());
            }
        }
        self.dead = dead;
        executions
    }
}

fn is_supervisor(pid: Pid) -> bool {
    matches!(
        proc::arguments(pid).get(1..3),
        Some([exec, bridge]) if exec == "exec" && bridge.starts_with("--bridge=")
    )
}

fn holds_adapter(pid: Pid) -> bool {
    proc::arguments(pid).get(1).map(String::as_str) == Some("adapter-host")
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
        let mut orphanage = Orphanage::default();

        orphanage.round("store", now);
        orphanage.round("store", now + UNCLAIMED / 2);
        assert!(
            proc::stat(pid).is_some_and(|stat| stat.zombie),
            "it may still be waited for"
        );

        orphanage.round("store", now + UNCLAIMED);
        assert_eq!(proc::stat(pid), None);
    }
}
