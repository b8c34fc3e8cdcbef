//! A process of an adapter: started under the supervisor, read, written, waited for and killed. Knows nothing of the
//! messages.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
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

/// Limit of one line on stderr; a longer line is split.
const LINE_BYTES: usize = 8 * 1024;
/// Time for a process that has closed its end to exit before it is killed.
const LAST_MOMENT: Duration = Duration::from_millis(20);
/// Wait for the exit status before the end is reported without it.
const STATUS_WAIT: Duration = Duration::from_secs(3);
/// Wait for the last stderr line of an ended process.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Parameters for starting a process.
pub(super) struct Start {
    /// The supervisor's command, the program and its arguments.
    pub(super) command: Vec<OsString>,
    /// The complete environment.
    pub(super) environment: BTreeMap<String, String>,
    pub(super) channel: Channel,
}

/// Channel for messages to and from a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    /// One socket as stdin, for both directions.
    Socket,
    /// A pipe each for stdin and stdout.
    Pipes,
}

/// A started process.
pub(super) struct Program {
    child: Mutex<Child>,
    pidfd: OwnedFd,
    /// The last line on stderr, sent once stderr is closed.
    last_words: Mutex<Receiver<String>>,
}

/// Reason why a process ended.
#[derive(Debug)]
pub(super) struct EndReason {
    /// Exit status, as part of a sentence.
    pub(super) how: String,
    /// The last line on stderr, empty if there is none. It can contain anything, so health never shows it.
    words: String,
}

impl From<String> for EndReason {
    fn from(how: String) -> Self {
        let words = String::new();
        Self { how, words }
    }
}

/// The whole reason, for the execution that it ended and for the log.
impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.how)?;
        match self.words.as_str() {
            "" => Ok(()),
            words => write!(f, "; it said: {words}"),
        }
    }
}

/// Starts a process. Every line on its stderr goes to `log`.
pub(super) fn start(
    start: &Start,
    log: impl Fn(&[u8]) + Send + 'static,
) -> io::Result<(Program, Reader, File)> {
    let [program, arguments @ ..] = start.command.as_slice() else {
        return Err(io::Error::other("no command"));
    };
    let mut command = Command::new(program);
    // The path can be a link into /proc, which is meaningless in a list of processes.
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
    // Closes the write end of stderr, which would keep the reader from reaching the end.
    drop(command);
    let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let pidfds =
        pidfd.and_then(|pidfd| Ok((pidfd.try_clone().map_err(|error| io_errno(&error))?, pidfd)));
    let (pidfd, watched) = match pidfds {
        Ok(pidfds) => pidfds,
        Err(error) => {
            // Without a pidfd the process cannot be watched.
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
            // The receiver is gone if the end was reported before.
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

/// Passes each line to `log`; returns the last one that is not blank.
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
    /// Kills the process and everything that it started: the supervisor does that at SIGINT.
    pub(super) fn kill(&self) {
        // An error means that the process has ended.
        let _ = pidfd_send_signal(&self.pidfd, Signal::INT);
    }

    /// Kills the process unless it is about to exit by itself.
    pub(super) fn end_now(&self) {
        if !self.ends_within(LAST_MOMENT) {
            self.kill();
        }
    }

    /// True if the process exits within `limit`.
    pub(super) fn ends_within(&self, limit: Duration) -> bool {
        wait_for(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(limit)).unwrap_or(true)
    }

    /// Reason of the end.
    pub(super) fn epitaph(&self) -> EndReason {
        if !self.ends_within(STATUS_WAIT) {
            return "the adapter's process does not exit".to_owned().into();
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
        let words = words.recv_timeout(LAST_WORDS).unwrap_or_default();
        let end = words.floor_char_boundary(300);
        EndReason {
            how,
            words: words[..end].to_owned(),
        }
    }

    /// Waits until the process has exited and reaps it.
    pub(super) fn bury(&self) {
        let _ = wait_for(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], None);
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // An error means that it was reaped before.
        let _ = child.wait();
    }
}

/// Describes an exit status. The supervisor passes an exit code on, and a signal as 128 plus its number.
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
    format!("the adapter's process was killed by signal {signal}{name}")
}

/// Reader of a process's output. Ends with the output, or with the supervisor.
pub(super) struct Reader {
    from: File,
    process: OwnedFd,
    /// Time at which reading fails with `TimedOut`.
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
            // The process has ended, and all its output was read.
            return Ok(0);
        }
        match self.from.read(into) {
            // A socket ends like this if its other side did not read everything.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(0),
            read => read,
        }
    }
}

/// Waits until a descriptor is ready; false after `limit`.
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
