//! Supervisor: `forge-bridge exec [--bridge=<pid>:<start>] [--store=<id>] [--grace-ms=<n>] [--user=<uid>:<gid>] --
//! program args…`. It runs one program and ends with it or with the bridge, whichever ends first; no descendant
//! outlives the supervisor, in any process group or session. Independent of the program. With `--user` the program
//! runs as that user, which cannot signal the supervisor.
//!
//! SIGTERM is sent to the process group of the program; whatever is left after the grace period is killed. A second
//! SIGTERM, SIGINT or SIGQUIT kills at once. Exit code: that of the program, 128 plus the signal that ended it, 127
//! or 126 if it could not be started, 125 if supervision itself failed.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Gid, Pid, PidfdFlags, Signal, Uid, WaitId, WaitIdOptions, WaitOptions, WaitStatus, getpid,
    getppid, kill_process, kill_process_group, pidfd_open, set_child_subreaper, wait, waitid,
    waitpid,
};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep_until, timeout};

use super::reaper::{self, Executable};
use super::{ORPHANS_EVERY, STORE_VARIABLE, depth, proc, secrecy, user};

/// Longest time that the rest of a process tree can survive SIGKILL (a process stuck in the kernel does) before the
/// supervisor leaves it to the bridge's sweep.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Runs the supervisor until its end. `args` are those after `exec`. Call this before any other thread or runtime
/// exists.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    secrecy::close_supervisor();
    match parse(args).and_then(|order| start(&order)) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            // No channel is left for a failure of stderr.
            let _ = writeln!(io::stderr(), "forge-bridge exec: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Process that the supervisor must not outlive; the start time detects a reused pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bridge {
    pid: Pid,
    start: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Order {
    /// Watched in addition to the parent process.
    bridge: Option<Bridge>,
    store: Option<String>,
    grace: Duration,
    /// Uid and gid of the program.
    user: Option<(u32, u32)>,
    program: OsString,
    args: Vec<OsString>,
}

#[derive(Debug)]
struct Failure {
    code: u8,
    message: String,
}

fn failure(message: impl Into<String>) -> Failure {
    Failure {
        code: 125,
        message: message.into(),
    }
}

fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Order, Failure> {
    let mut args = args.into_iter();
    let (mut bridge, mut store, mut user) = (None, None, None);
    let mut grace = super::Config::default().grace;
    let program = loop {
        let Some(arg) = args.next() else {
            return Err(failure("no program given; usage: exec -- program args…"));
        };
        match arg.to_str().and_then(|text| text.split_once('=')) {
            Some(("--bridge", value)) => bridge = Some(parse_bridge(value)?),
            Some(("--store", value)) => store = Some(value.to_owned()),
            Some(("--grace-ms", value)) => {
                grace = Duration::from_millis(
                    value
                        .parse()
                        .map_err(|_| failure(format!("--grace-ms={value} is not a number")))?,
                );
            }
            Some(("--user", value)) => {
                let numbers = value.split_once(':');
                let numbers = numbers.and_then(|(uid, gid)| user::numbers(uid, gid));
                let wrong = || failure(format!("--user={value} is not <uid>:<gid>"));
                user = Some(numbers.ok_or_else(wrong)?);
            }
            _ if arg == "--" => match args.next() {
                Some(program) => break program,
                None => return Err(failure("no program given after --")),
            },
            _ => break arg,
        }
    };
    Ok(Order {
        bridge,
        store,
        grace,
        user,
        program,
        args: args.collect(),
    })
}

fn parse_bridge(value: &str) -> Result<Bridge, Failure> {
    value
        .split_once(':')
        .and_then(|(pid, start)| {
            Some(Bridge {
                pid: Pid::from_raw(pid.parse().ok()?)?,
                start: start.parse().ok()?,
            })
        })
        .ok_or_else(|| failure(format!("--bridge={value} is not <pid>:<start>")))
}

fn start(order: &Order) -> Result<u8, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failure(format!("cannot start the runtime: {error}")))?
        .block_on(supervise(order))
}

async fn supervise(order: &Order) -> Result<u8, Failure> {
    // Handlers first: a signal between the start of the program and the handlers would kill only the supervisor.
    let mut signals = Inbox::open().map_err(|error| failure(format!("signal setup: {error}")))?;
    set_child_subreaper(Some(getpid()))
        .map_err(|error| failure(format!("cannot become a child subreaper: {error}")))?;
    let mut guardians = vec![open_parent()?];
    guardians.extend(order.bridge.map(open_bridge).transpose()?);
    let mut abandoned = watch(guardians)?;

    // Under a filter of system calls that refuses this, orphans below are found at the end only.
    let _ = depth::descend();
    let leader = spawn(order)?;
    let_go_of_stdio();

    let executable = Executable::running();
    let mut orphans = interval_at(Instant::now() + ORPHANS_EVERY, ORPHANS_EVERY);
    orphans.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut deadline: Option<Instant> = None;
    loop {
        tokio::select! {
            _ = &mut abandoned => break,
            () = at(deadline) => break,
            // Adopted when a supervisor further down was killed, which sends no signal to this process.
            _ = orphans.tick() => reaper::kill_orphans(&executable, None),
            request = signals.next() => match request {
                Request::ChildEnded if has_ended(leader) => break,
                Request::ChildEnded => {
                    bury_others(leader);
                    reaper::kill_orphans(&executable, None);
                }
                Request::End if deadline.is_none() => {
                    // An error means that the group is gone; its SIGCHLD follows.
                    let _ = kill_process_group(leader, Signal::TERM);
                    deadline = Some(Instant::now() + order.grace);
                }
                Request::End | Request::Kill => break,
            },
        }
    }
    let status = kill_all(leader, &mut signals).await?;
    Ok(exit_code(status))
}

fn spawn(order: &Order) -> Result<Pid, Failure> {
    let mut command = Command::new(&order.program);
    command.args(&order.args).process_group(0);
    if let Some(store) = &order.store {
        command.env(STORE_VARIABLE, store);
    }
    if let Some((uid, gid)) = order.user {
        switch(uid, gid)
            .map_err(|error| failure(format!("cannot start a program as user {uid}: {error}")))?;
        command.uid(uid).gid(gid);
    }
    let child = command.spawn().map_err(|error| Failure {
        code: if error.kind() == io::ErrorKind::NotFound {
            127
        } else {
            126
        },
        message: format!("cannot start {}: {error}", order.program.display()),
    })?;
    Ok(Pid::from_child(&child))
}

fn switch(uid: u32, gid: u32) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    user::hand_over_pipes(uid, gid)?;
    user::give_up_rights(gid)
}

/// Closes the pipes: readers must see EOF when the program ends, not when the supervisor does.
fn let_go_of_stdio() {
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        // An open pipe only delays that EOF: the supervisor ends right after its program.
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}

fn open_parent() -> Result<OwnedFd, Failure> {
    let gone = || failure("the parent is gone");
    let parent = getppid().ok_or_else(gone)?;
    let pidfd = pidfd_open(parent, PidfdFlags::empty()).map_err(|_| gone())?;
    // The parent can have ended before the pidfd was opened; this process then has another parent.
    if getppid() != Some(parent) {
        return Err(gone());
    }
    Ok(pidfd)
}

fn open_bridge(bridge: Bridge) -> Result<OwnedFd, Failure> {
    let gone = || failure(format!("the bridge (pid {}) is gone", bridge.pid));
    let pidfd = pidfd_open(bridge.pid, PidfdFlags::empty()).map_err(|_| gone())?;
    // Where `/proc` is mounted with `hidepid`, the bridge is not visible, because its memory is closed. It runs all
    // the same; only a reuse of its pid then goes unnoticed.
    if proc::stat(bridge.pid).is_some_and(|stat| stat.start != bridge.start) {
        return Err(gone());
    }
    Ok(pidfd)
}

/// Resolves when one of these processes has ended. Uses a thread, because the runtime accepts foreign file
/// descriptors only in unsafe code.
fn watch(guardians: Vec<OwnedFd>) -> Result<oneshot::Receiver<()>, Failure> {
    let (ended, watch) = oneshot::channel();
    std::thread::Builder::new()
        .name("guardians".to_owned())
        .spawn(move || {
            let mut fds: Vec<PollFd<'_>> = guardians
                .iter()
                .map(|pidfd| PollFd::new(pidfd, PollFlags::IN))
                .collect();
            while poll(&mut fds, None) == Err(Errno::INTR) {}
            // An error of poll counts as the end: a program must not run unsupervised. The receiver is gone if the
            // program has ended first.
            let _ = ended.send(());
        })
        .map_err(|error| failure(format!("cannot watch the bridge: {error}")))?;
    Ok(watch)
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// True if the leader has ended. Does not reap it: until then, no other process can get its pid and its group.
fn has_ended(leader: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(leader), options), Ok(None))
}

/// Reaps ended orphans that this subreaper adopted.
fn bury_others(leader: Pid) {
    for child in proc::children()
        .into_iter()
        .filter(|child| *child != leader)
    {
        // Most of them are still running, which leaves nothing to reap yet.
        let _ = waitpid(Some(child), WaitOptions::NOHANG);
    }
}

/// Kills until the kernel reports no child. A subreaper adopts all orphans, so no descendant is left then.
async fn kill_all(leader: Pid, signals: &mut Inbox) -> Result<WaitStatus, Failure> {
    // Errors of `kill` mean that the process is gone.
    let _ = kill_process_group(leader, Signal::KILL);
    let _ = kill_process(leader, Signal::KILL);
    let limit = Instant::now() + KILL_LIMIT;
    let mut status = None;
    let mut pause = Duration::from_millis(1);
    loop {
        for child in proc::children() {
            let _ = kill_process(child, Signal::KILL);
            if child != leader {
                let _ = waitpid(Some(child), WaitOptions::NOHANG);
            }
        }
        if status.is_none() && has_ended(leader) {
            // Signals the rest of the group before the leader is reaped, which frees the group's number for reuse.
            let _ = kill_process_group(leader, Signal::KILL);
            status = waitpid(Some(leader), WaitOptions::NOHANG)
                .map_err(|error| failure(format!("cannot wait for the program: {error}")))?
                .map(|(_, status)| status);
        }
        if let Some(status) = status {
            match wait(WaitOptions::NOHANG) {
                Err(Errno::CHILD) => return Ok(status),
                Ok(Some(_)) => continue,
                Ok(None) | Err(_) => {}
            }
        }
        if Instant::now() > limit {
            return Err(failure("a descendant process cannot be killed"));
        }
        // Any signal here is the end of a child or a request to end, which is in progress.
        let _ = timeout(pause, signals.next()).await;
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

fn exit_code(status: WaitStatus) -> u8 {
    let code = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => 125,
    };
    u8::try_from(code).unwrap_or(125)
}

/// Signals that the supervisor handles.
struct Inbox {
    child: Signals,
    terminate: Signals,
    interrupt: Signals,
    quit: Signals,
    hang_up: Signals,
}

enum Request {
    ChildEnded,
    End,
    Kill,
}

impl Inbox {
    fn open() -> io::Result<Self> {
        Ok(Self {
            child: signal(SignalKind::child())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Request {
        loop {
            tokio::select! {
                _ = self.child.recv() => return Request::ChildEnded,
                _ = self.terminate.recv() => return Request::End,
                _ = self.interrupt.recv() => return Request::Kill,
                _ = self.quit.recv() => return Request::Kill,
                // SIGHUP is handled by the bridge.
                _ = self.hang_up.recv() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(args: &[&str]) -> Result<Order, Failure> {
        parse(args.iter().map(OsString::from))
    }

    #[test]
    fn options_end_where_the_program_begins() {
        let parsed = order(&[
            "--bridge=12:900",
            "--store=s",
            "--grace-ms=5",
            "--user=7:8",
            "--",
            "sh",
            "--store=x",
        ])
        .unwrap();
        assert_eq!(
            parsed,
            Order {
                bridge: Some(Bridge {
                    pid: Pid::from_raw(12).unwrap(),
                    start: 900
                }),
                store: Some("s".to_owned()),
                grace: Duration::from_millis(5),
                user: Some((7, 8)),
                program: "sh".into(),
                args: vec!["--store=x".into()],
            }
        );
        assert_eq!(order(&["sh", "-c", "true"]).unwrap().args.len(), 2);
    }

    #[test]
    fn a_wrong_order_says_what_is_wrong() {
        for (args, wanted) in [
            (&[][..], "no program"),
            (&["--"][..], "no program"),
            (&["--bridge=12", "sh"][..], "--bridge=12"),
            (&["--grace-ms=soon", "sh"][..], "--grace-ms=soon"),
            (&["--user=root", "sh"][..], "--user=root"),
            (&["--user=7:-1", "sh"][..], "--user=7:-1"),
        ] {
            let failure = order(args).unwrap_err();
            assert!(failure.message.contains(wanted), "{}", failure.message);
            assert_eq!(failure.code, 125);
        }
    }
}
