//! Finds processes by the tags in their environment and kills them, and buries ended children that
//! nobody waits for. Never itself, never an ancestor. A program that clears its environment and outlives
//! its supervisor is not found.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid,
};

use super::{EXECUTION_VARIABLE, STORE_VARIABLE, proc};

/// Who is meant.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tag<'a> {
    pub(super) store: &'a str,
    /// `None`: every execution.
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

/// How many processes carry the tag; what is our own binary is not counted.
pub(super) fn count(tag: Tag<'_>) -> usize {
    let spared = proc::ancestry();
    proc::ours()
        .into_iter()
        .filter(|pid| !spared.contains(pid) && tag.is_on(*pid))
        .filter(|pid| !is_supervisor(*pid) && !holds_adapter(*pid))
        .count()
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub killed: usize,
    /// Still there when the time was over.
    pub left: usize,
}

/// Kills every process with the tag, those that appear meanwhile included, and returns when they are
/// gone or `limit` is over.
pub(super) fn sweep(tag: Tag<'_>, limit: Duration) -> Swept {
    let until = Instant::now() + limit;
    let spared = proc::ancestry();
    let mut killed = 0;
    loop {
        let victims: Vec<OwnedFd> = proc::ours()
            .into_iter()
            .filter(|pid| !spared.contains(pid))
            // The handle first, the look at the tag second: if the pid was given away in between, the
            // signal goes to a process that has ended.
            .filter_map(|pid| Some((pidfd_open(pid, PidfdFlags::empty()).ok()?, pid)))
            .filter(|(_, pid)| tag.is_on(*pid))
            .map(|(pidfd, _)| pidfd)
            .collect();
        if victims.is_empty() {
            return Swept { killed, left: 0 };
        }
        for victim in &victims {
            // It may have ended by itself.
            let _ = pidfd_send_signal(victim, Signal::KILL);
        }
        let left = await_end(&victims, until);
        killed += victims.len() - left;
        if left > 0 {
            return Swept { killed, left };
        }
    }
}

/// How many of them are still there when the time is over.
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

/// Children of this process that need care: as subreaper (and as pid 1) the bridge is given the orphans of
/// supervisors that died.
#[derive(Default)]
pub(super) struct Orphanage {
    /// Ended children that nobody has waited for, with their start and when they were first seen.
    dead: HashMap<i32, (u64, Instant)>,
}

/// An ended child is somebody's to wait for (an adapter's, in process) until nobody has done it for so long.
const UNCLAIMED: Duration = Duration::from_secs(60);

impl Orphanage {
    /// The executions of orphans: programs of ours whose supervisor is gone. Buries old zombies.
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
                    // Whoever waits after all is told that there is no such child.
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
    fn an_ended_child_that_nobody_waits_for_is_buried_after_a_while() {
        #[expect(clippy::zombie_processes, reason = "the test is about one")]
        let child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        // It has ended, and is left as it is.
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
