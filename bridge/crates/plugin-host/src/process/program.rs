//! A process of an adapter: started under the supervisor, read and written, waited for, killed. Knows
//! nothing of what is said.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// One line on stderr; the rest is cut off.
const LINE_BYTES: usize = 8 * 1024;
/// What a process that has closed its side gets until it is killed.
const LAST_MOMENT: Duration = Duration::from_millis(20);
/// How long its end is waited for before it is told without its status.
const STATUS_WAIT: Duration = Duration::from_secs(3);
/// How long the last words of an ended process are waited for.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// What is started.
pub(super) struct Start {
    /// The supervisor's command, the program and its arguments.
    pub(super) command: Vec<OsString>,
    /// All of its environment.
    pub(super) environment: BTreeMap<String, String>,
    pub(super) channel: Channel,
}

/// What it is spoken to through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    /// One socket as its stdin, for both ways.
    Socket,
    /// Its stdin and stdout.
    Pipes,
}

/// A process that was started.
pub(super) struct Program {
    child: Mutex<Child>,
    pidfd: OwnedFd,
    /// The last line on stderr, once that is closed.
    last_words: Mutex<Receiver<String>>,
}

/// Starts it. Every line on its stderr goes to `log`.
pub(super) fn start(
    start: &Start,
    log: impl Fn(&[u8]) + Send + 'static,
) -> io::Result<(Program, Reader, File)> {
    let [program, arguments @ ..] = start.command.as_slice() else {
        return Err(io::Error::other("no command"));
    };
    let mut command = Command::new(program);
    // Its path may be a link into /proc, which says nothing in a list of processes.
    command
        .arg0("forge-bridge")
        .args(arguments)
        // Ctrl-C in a terminal is for the bridge, which drains first.
        .process_group(0)
        .env_clear()
        .envs(&start.environment);
    let (stderr, errors) = io::pipe()?;
    let (to, from, mut child) = match start.channel {
        Channel::Socket => {
            let (ours, theirs) = UnixStream::pair()?;
            command
                .stdin(OwnedFd::from(theirs))
                .stdout(errors.try_clone()?)
                .stderr(errors);
            let child = command.spawn()?;
            let ours = OwnedFd::from(ours);
            (File::from(ours.try_clone()?), File::from(ours), child)
        }
        Channel::Pipes => {
            command
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(errors);
            let mut child = command.spawn()?;
            let stdin = child.stdin.take().map(OwnedFd::from);
            let stdout = child.stdout.take().map(OwnedFd::from);
            match (stdin, stdout) {
                (Some(stdin), Some(stdout)) => (File::from(stdin), File::from(stdout), child),
                (_, _) => return Err(io::Error::other("no pipes")),
            }
        }
    };
    // It holds the writing end of stderr, without which that would never end.
    drop(command);
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let pidfds =
        pidfd.and_then(|pidfd| Ok((pidfd.try_clone().map_err(|error| io_errno(&error))?, pidfd)));
    let (pidfd, watched) = match pidfds {
        Ok(pidfds) => pidfds,
        Err(error) => {
            // Without a handle it cannot be watched.
            let _ = child.kill();
            let _ = child.wait();
            return Err(error.into());
        }
    };
    let (said, last_words) = mpsc::sync_channel(1);
    std::thread::Builder::new()
        .name("adapter stderr".to_owned())
        .spawn(move || {
            let last = read_lines(stderr, log);
            // Nobody listens any more when its end was told before.
            let _ = said.send(last);
        })?;
    let program = Program {
        child: Mutex::new(child),
        pidfd,
        last_words: Mutex::new(last_words),
    };
    let reader = Reader {
        from,
        process: watched,
        deadline: None,
    };
    Ok((program, reader, to))
}

fn io_errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::MFILE)
}

/// Tells each line, and gives the last that says anything.
fn read_lines(from: impl Read, log: impl Fn(&[u8])) -> String {
    let mut from = BufReader::new(from);
    let mut last = String::new();
    let mut line = Vec::new();
    loop {
        line.clear();
        let most = LINE_BYTES as u64;
        match (&mut from).take(most).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return last,
        }
        let said = line.trim_ascii();
        if !said.is_empty() {
            log(said);
            last = String::from_utf8_lossy(said).into_owned();
        }
    }
}

impl Program {
    /// Kills it and everything it started: at SIGINT the supervisor does that.
    pub(super) fn kill(&self) {
        // An error says that it has ended.
        let _ = pidfd_send_signal(&self.pidfd, Signal::INT);
    }

    /// Kills it unless it is about to end by itself.
    pub(super) fn end_now(&self) {
        if !self.ends_within(LAST_MOMENT) {
            self.kill();
        }
    }

    /// Whether it ends within this time.
    pub(super) fn ends_within(&self, limit: Duration) -> bool {
        wait_for(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(limit)).unwrap_or(true)
    }

    /// How it ended, and what it said last, as part of a sentence.
    pub(super) fn epitaph(&self) -> String {
        if !self.ends_within(STATUS_WAIT) {
            return "the adapter's process does not end".to_owned();
        }
        let status = {
            let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
            child.try_wait()
        };
        let how = match status {
            Ok(Some(status)) => describe(status),
            Ok(None) | Err(_) => "the adapter's process ended".to_owned(),
        };
        let words = self
            .last_words
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match words.recv_timeout(LAST_WORDS) {
            Ok(words) if !words.is_empty() => {
                let end = words.floor_char_boundary(300);
                format!("{how}; it said: {}", &words[..end])
            }
            Ok(_) | Err(_) => how,
        }
    }

    /// Waits until it is gone, so that no zombie is left.
    pub(super) fn bury(&self) {
        let _ = wait_for(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], None);
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever else waited for it has done it for us.
        let _ = child.wait();
    }
}

/// The supervisor passes the code on, and a signal as 128 and its number.
fn describe(status: ExitStatus) -> String {
    let signal = match (status.code(), status.signal()) {
        (Some(code @ 129..=192), _) => code - 128,
        (Some(code), _) => return format!("the adapter's process ended with exit code {code}"),
        (None, signal) => signal.unwrap_or_default(),
    };
    let name = match signal {
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        15 => " (SIGTERM)",
        _ => "",
    };
    format!("the adapter's process was ended by signal {signal}{name}")
}

/// What it says. At its end, or that of its supervisor, nothing more comes.
pub(super) struct Reader {
    from: File,
    process: OwnedFd,
    /// Reading ends with `TimedOut` then.
    pub(super) deadline: Option<Instant>,
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let from = self.from.as_fd();
        let mut fds = [
            PollFd::from_borrowed_fd(from, PollFlags::IN),
            PollFd::new(&self.process, PollFlags::IN),
        ];
        let limit = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if !wait_for(&mut fds, limit)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        if fds[0].revents().is_empty() {
            // It has ended, and all it said was read.
            return Ok(0);
        }
        match self.from.read(into) {
            // So does a socket end whose other side did not read everything.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(0),
            read => read,
        }
    }
}

/// False when the time is over.
fn wait_for(fds: &mut [PollFd<'_>], limit: Option<Duration>) -> io::Result<bool> {
    let until = limit.map(|limit| Instant::now() + limit);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(fds, left.as_ref()) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_as_a_shell_would() {
        for (raw, wanted) in [
            (3 << 8, "exit code 3"),
            (134 << 8, "signal 6 (SIGABRT)"),
            (9, "signal 9 (SIGKILL)"),
        ] {
            let text = describe(ExitStatus::from_raw(raw));
            assert!(text.contains(wanted), "{text}");
        }
    }
}
