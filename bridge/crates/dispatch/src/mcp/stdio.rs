//! MCP server run as a program. It starts under the supervisor, so neither the program nor its children
//! outlive the execution or the bridge. Handles processes and streams, not the protocol.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forge_adapter_api::child::inherited;
use rustix::process::{Pid, Signal, kill_process};
use secrecy::{ExposeSecret, SecretString};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use forge_process::{EXECUTION_VARIABLE, STORE_VARIABLE};

use super::{Caller, Setup};

/// Number of bytes kept from the end of stderr, for error texts.
const TAIL_BYTES: usize = 4 * 1024;
/// Wait for the end of stderr after a failure.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Time for a program to exit after its stdin is closed, and again after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(1);

/// Command line and environment of a server.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) command: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, SecretString>,
}

/// Running server. Dropping it kills the program and all its children.
pub(super) struct Running {
    process: Child,
    pid: Option<Pid>,
    tail: Arc<Mutex<Vec<u8>>>,
    stderr: JoinHandle<()>,
}

impl Program {
    /// Starts the program. `caller.execution` is set in its environment, so its processes can be identified.
    pub(super) fn start(
        &self,
        setup: &Setup,
        caller: Caller<'_>,
    ) -> std::io::Result<(Running, ChildStdout, ChildStdin)> {
        let mut command = self.command(&setup.supervisor);
        let trace = caller.traceparent;
        command
            .env_clear()
            .envs(inherited(setup.user.as_ref()))
            .envs(trace.map(|trace| ("TRACEPARENT", trace)))
            .envs(
                self.env
                    .iter()
                    .map(|(name, value)| (name, value.expose_secret())),
            )
            .env(STORE_VARIABLE, &setup.store_id)
            .env(EXECUTION_VARIABLE, caller.execution)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Own process group, so that signals from the bridge's terminal do not reach it.
            .process_group(0)
            .kill_on_drop(false);
        if setup.user.is_some() {
            // That of the bridge can be closed to the user.
            command.current_dir("/");
        }
        let mut process = command.spawn()?;
        let pid = process
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        let pipe = "the streams were asked for as pipes";
        let stdin = process.stdin.take().expect(pipe);
        let stdout = process.stdout.take().expect(pipe);
        let stderr = process.stderr.take().expect(pipe);
        let tail = Arc::default();
        let stderr = setup.tracker.spawn(keep_tail(stderr, Arc::clone(&tail)));
        Ok((
            Running {
                process,
                pid,
                tail,
                stderr,
            },
            stdout,
            stdin,
        ))
    }

    fn command(&self, supervisor: &[String]) -> Command {
        let program: &Path = &self.command;
        let mut command = match supervisor {
            [] => Command::new(program),
            [supervisor, rest @ ..] => {
                let mut command = Command::new(supervisor);
                // The supervisor's path is a descriptor in /proc, which is unreadable in a process list.
                command.arg0("forge-bridge").args(rest).arg(program);
                command
            }
        };
        command.args(self.args.iter().map(OsStr::new));
        command
    }
}

impl Running {
    /// End of the program's stderr, as the end of a sentence; empty if it wrote nothing.
    pub(super) async fn last_words(&mut self) -> String {
        // Output not read by then is left out.
        let _ = timeout(LAST_WORDS, &mut self.stderr).await;
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        match String::from_utf8_lossy(&tail).trim() {
            "" => String::new(),
            said => format!("; stderr: {said}"),
        }
    }

    /// Waits for the program to exit after its stdin was closed, then sends SIGTERM; dropping kills it.
    pub(super) async fn end(mut self) {
        if timeout(PATIENCE, self.process.wait()).await.is_ok() {
            self.pid = None;
            return;
        }
        self.signal(Signal::TERM);
        if timeout(PATIENCE, self.process.wait()).await.is_ok() {
            self.pid = None;
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            // An error means that it has already exited.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGINT makes the supervisor kill the whole process tree; killing the supervisor would leave that to
        // the sweep.
        self.signal(Signal::INT);
    }
}

async fn keep_tail(mut stderr: ChildStderr, tail: Arc<Mutex<Vec<u8>>>) {
    let mut piece = [0; 1024];
    while let Ok(read @ 1..) = stderr.read(&mut piece).await {
        let mut tail = tail.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend_from_slice(&piece[..read]);
        let surplus = tail.len().saturating_sub(TAIL_BYTES);
        tail.drain(..surplus);
    }
}
