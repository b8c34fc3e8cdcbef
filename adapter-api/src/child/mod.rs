//! Programs that an adapter starts. They run under the bridge's supervisor and therefore end with the
//! bridge, they see only variables that were named, and their output is bounded. The meaning of the lines
//! is left to the adapter.

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::io::AsyncReadExt;
use tokio::process::{ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep_until, timeout};

use self::streams::{Lines, Outgoing, Tail};
use crate::Host;
use crate::folder::Folder;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod memory;
mod program;
mod streams;

pub use self::memory::memory_bytes;
pub use self::program::{INHERITED, Program, inherited};
pub use self::streams::{Line, Piece};

/// Time limit for the output of a program to end after the program has ended.
const DRAIN: Duration = Duration::from_secs(1);
/// Extra time for the supervisor to end the program before the program is killed.
const KILL_MARGIN: Duration = Duration::from_secs(3);

/// Reason for which a program could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Neither at its path nor in `PATH`, or not executable.
    #[error("there is no program {}", .0.display())]
    Missing(PathBuf),
    /// The system refused to start it, or its working directory is missing.
    #[error("cannot start {}", path.display())]
    Start {
        /// The program.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// A running program. Dropping it kills the program and all its descendants.
#[derive(Debug)]
pub struct Child {
    process: tokio::process::Child,
    pid: Option<Pid>,
    supervised: bool,
    status: Option<ExitStatus>,
    stdin: Option<ChildStdin>,
    outgoing: Outgoing,
    stdout: Option<ChildStdout>,
    lines: Lines,
    stderr: Option<ChildStderr>,
    tail: Tail,
}

impl Child {
    /// Starts the program for an execution (`<dispatch>/<attempt>`), or for none; under the bridge's
    /// supervisor when the host has one.
    pub fn start(
        host: &Host,
        execution: Option<&str>,
        program: &Program,
    ) -> Result<Self, StartError> {
        let path = program
            .locate()
            .ok_or_else(|| StartError::Missing(program.path.clone()))?;
        let mut command = match host.supervisor() {
            [] => Command::new(&path),
            [supervisor, rest @ ..] => {
                let mut command = Command::new(supervisor);
                // The supervisor's path is a descriptor in /proc, which is meaningless in a process list.
                command.arg0("forge-bridge").args(rest).arg(&path);
                command
            }
        };
        command
            .args(&program.args)
            .env_clear()
            .envs(inherited(host.user()))
            .envs(&program.env)
            .env("FORGE_BRIDGE_STORE", host.store_id())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Keeps signals of the bridge's terminal (Ctrl-C) away from the program.
            .process_group(0);
        if let Some(execution) = execution {
            command.env("FORGE_EXECUTION", execution);
            let trace = crate::trace::traceparent();
            if let Some(trace) = trace.filter(|_| !program.env.contains_key("TRACEPARENT")) {
                command.env("TRACEPARENT", trace);
            }
            if let Some(signals) = crate::trace::signals() {
                for (name, value) in [
                    ("FORG_SESSION_ID", signals.session_id),
                    ("FORG_SESSION_KEY", signals.session_key),
                    ("FORG_AGENT_URL", signals.agent_url),
                ] {
                    if !program.env.contains_key(name) {
                        command.env(name, value);
                    }
                }
            }
        }
        let failed = |source| StartError::Start {
            path: path.clone(),
            source,
        };
        // Opened while it is this process's: programs of its next owner could replace its name.
        let own = match (&program.workspace, &program.dir, &program.folder) {
            (None, Some(dir), Some(folder)) => folder.open(dir).transpose().map_err(failed)?,
            _ => None,
        };
        let opened = program.workspace.as_ref().or(own.as_ref());
        let opened = opened.map(Folder::working_dir);
        if let Some(dir) = opened.as_ref().or(program.dir.as_ref()) {
            command.current_dir(dir);
        } else if host.user().is_some() {
            command.current_dir("/");
        }
        if let (Some(user), Some(folder)) = (host.user(), &program.folder) {
            folder.give(user).map_err(failed)?;
        }
        let mut process = command
            .spawn()
            .map_err(|source| StartError::Start { path, source })?;
        Ok(Self {
            pid: process
                .id()
                .and_then(|id| i32::try_from(id).ok())
                .and_then(Pid::from_raw),
            supervised: !host.supervisor().is_empty(),
            status: None,
            stdin: process.stdin.take(),
            outgoing: Outgoing::default(),
            stdout: process.stdout.take(),
            lines: Lines::new(program.line_bytes),
            stderr: process.stderr.take(),
            tail: Tail::new(program.stderr_bytes),
            process,
        })
    }

    /// Queues a line for the program's stdin. It is written while [`next`](Self::next) is awaited, so that
    /// a program that writes before it reads cannot deadlock with the caller.
    pub fn send(&mut self, line: &str) {
        if self.stdin.is_some() {
            self.outgoing.push(line);
        }
    }

    /// Number of sent bytes that the program has not read yet.
    pub fn unwritten(&self) -> usize {
        self.outgoing.len()
    }

    /// Closes the program's stdin after all sent lines are written.
    pub fn close_stdin(&mut self) {
        self.outgoing.closing = true;
        if self.outgoing.is_empty() {
            self.stdin = None;
        }
    }

    /// The next line of output; `None` when no more will come. Cancel-safe.
    pub async fn next(&mut self) -> Option<Line> {
        match self.advance(|_| None).await? {
            Piece::Rest(line) => Some(line),
            Piece::Open(text) => Some(Line::Text(text)),
        }
    }

    /// The next output as it arrives, without waiting for the end of the line. Cancel-safe.
    pub async fn next_piece(&mut self) -> Option<Piece> {
        self.advance(Lines::piece).await
    }

    async fn advance(&mut self, piece: fn(&mut Lines) -> Option<String>) -> Option<Piece> {
        let mut deadline = None;
        loop {
            if let Some(line) = self.lines.pop() {
                return Some(Piece::Rest(line));
            }
            if let Some(text) = piece(&mut self.lines) {
                return Some(Piece::Open(text));
            }
            if self.stdout.is_none() {
                return self.lines.finish().map(Piece::Rest);
            }
            if self.status.is_some() && deadline.is_none() {
                deadline = Some(Instant::now() + DRAIN);
            }
            match self.step(deadline).await {
                Step::Output(0) => self.stdout = None,
                Step::Errors(0) => self.stderr = None,
                Step::Output(_) | Step::Errors(_) | Step::Ended => {}
                Step::Written => {
                    if self.outgoing.is_empty() && self.outgoing.closing {
                        self.stdin = None;
                    }
                }
                Step::Deaf => {
                    self.outgoing = Outgoing::default();
                    self.stdin = None;
                }
                Step::Late => self.stdout = None,
            }
        }
    }

    /// Waits for the program to end and discards its remaining output.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        while self.next().await.is_some() {}
        if let (Some(status), None) = (self.status, &self.stderr) {
            return Ok(status);
        }
        // Keeps reading stderr, so that a full pipe does not block the program. After its end stderr is
        // read for `DRAIN` only, because a process it left behind can hold the pipe open.
        let mut deadline = None;
        loop {
            if self.status.is_some() && deadline.is_none() {
                deadline = Some(Instant::now() + DRAIN);
            }
            tokio::select! {
                ended = self.process.wait(), if self.status.is_none() => self.ended(ended?),
                read = read(&mut self.stderr, self.tail.room()) => match read {
                    Ok(0) | Err(_) => self.stderr = None,
                    Ok(_) => self.tail.trim(),
                },
                () = at(deadline) => self.stderr = None,
            }
            if let (Some(status), None) = (self.status, &self.stderr) {
                return Ok(status);
            }
        }
    }

    /// Stops the program: closes its stdin, sends SIGTERM after `patience`, and then kills it.
    pub async fn stop(&mut self, patience: Duration) -> io::Result<ExitStatus> {
        self.close_stdin();
        if let Ok(status) = timeout(patience, self.wait()).await {
            return status;
        }
        self.terminate();
        if let Ok(status) = timeout(patience + KILL_MARGIN, self.wait()).await {
            return status;
        }
        self.kill();
        self.wait().await
    }

    /// Sends SIGTERM; a supervisor kills what is left after the bridge's grace period.
    pub fn terminate(&self) {
        let Some(pid) = self.pid else {
            return;
        };
        // An error means that the process has already ended.
        let _ = if self.supervised {
            kill_process(pid, Signal::TERM)
        } else {
            kill_process_group(pid, Signal::TERM)
        };
    }

    /// Kills the program and everything it started.
    pub fn kill(&self) {
        let Some(pid) = self.pid else {
            return;
        };
        // An error means that the process has already ended.
        let _ = if self.supervised {
            // SIGINT makes the supervisor kill its tree. Killing the supervisor itself would leave the tree
            // to the bridge's sweep.
            kill_process(pid, Signal::INT)
        } else {
            kill_process_group(pid, Signal::KILL)
        };
    }

    /// Id of the process, which is the supervisor above the program if there is one; `None` after its end.
    pub fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// The exit status, once known.
    pub fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// The tail of stderr, for error texts.
    pub fn stderr_tail(&self) -> String {
        self.tail.text()
    }

    async fn step(&mut self, deadline: Option<Instant>) -> Step {
        let writable = !self.outgoing.is_empty();
        tokio::select! {
            read = read(&mut self.stdout, self.lines.room()) => match read {
                Ok(read) => Step::Output(read),
                Err(_) => Step::Output(0),
            },
            read = read(&mut self.stderr, self.tail.room()) => match read {
                Ok(read) => {
                    self.tail.trim();
                    Step::Errors(read)
                }
                Err(_) => Step::Errors(0),
            },
            written = self.outgoing.write(&mut self.stdin), if writable => match written {
                Ok(()) => Step::Written,
                // Its output or its exit status will show why it no longer reads.
                Err(_) => Step::Deaf,
            },
            ended = self.process.wait(), if self.status.is_none() => {
                if let Ok(status) = ended {
                    self.ended(status);
                }
                Step::Ended
            }
            () = at(deadline) => Step::Late,
        }
    }

    fn ended(&mut self, status: ExitStatus) {
        self.status = Some(status);
        // The pid is free for reuse from here on.
        if let (Some(pid), false) = (self.pid.take(), self.supervised) {
            // The number stays reserved for the group while one of its members lives. An error means that
            // none does.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

enum Step {
    Output(usize),
    Errors(usize),
    Written,
    Deaf,
    Ended,
    Late,
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn read(
    from: &mut Option<impl AsyncReadExt + Unpin>,
    into: &mut Vec<u8>,
) -> io::Result<usize> {
    match from {
        Some(from) => from.read_buf(into).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
