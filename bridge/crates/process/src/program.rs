//! Programs that the bridge itself starts: MCP servers and external services. They run under the supervisor, so neither
//! the program nor its children outlive the execution or the bridge. Handles processes and streams, not protocols.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use secrecy::{ExposeSecret, SecretString};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use forge_base::tasks::Tasks;

use super::{EXECUTION_VARIABLE, STORE_VARIABLE};

/// Number of bytes kept from the end of stderr, for error texts.
const TAIL_BYTES: usize = 4 * 1024;
/// Wait for the end of stderr after a failure.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Time for a program to exit after its stdin is closed, and again after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(1);

/// Everything that the programs of one bridge have in common. Cheap to clone.
#[derive(Clone)]
pub struct Launcher {
    inner: Arc<LauncherSettings>,
}

/// Settings of a [`Launcher`].
pub struct LauncherSettings {
    /// Command of the supervisor, placed before the program; empty: none.
    pub supervisor: Vec<String>,
    pub store_id: String,
    /// Environment of every program; nothing else is inherited.
    pub environment: Vec<(&'static str, OsString)>,
    /// Working directory; default: that of the bridge.
    pub dir: Option<PathBuf>,
    pub tracker: Tasks,
}

/// Command line of a program, and its own part of the environment.
#[derive(Clone, Debug)]
pub struct Program {
    pub command: PathBuf,
    pub args: Vec<String>,
    pub env: BTreeMap<String, SecretString>,
}

/// Work that a program is started for.
#[derive(Clone, Copy, Debug)]
pub struct Purpose<'a> {
    /// `<dispatch>/<attempt>`, or another tag by which the processes are found; set in their environment.
    pub execution: &'a str,
    /// Trace context, set in the environment.
    pub traceparent: Option<&'a str>,
}

/// Running program. Dropping it kills the program and all its children.
#[derive(Debug)]
pub struct RunningProgram {
    process: Child,
    pid: Option<Pid>,
    tail: Arc<Mutex<Vec<u8>>>,
    stderr: JoinHandle<()>,
}

impl Launcher {
    pub fn new(settings: LauncherSettings) -> Self {
        Self {
            inner: Arc::new(settings),
        }
    }

    /// The same with another working directory.
    pub fn in_folder(&self, folder: &Path) -> Self {
        let LauncherSettings {
            supervisor,
            store_id,
            environment,
            dir: _,
            tracker,
        } = &*self.inner;
        Self::new(LauncherSettings {
            supervisor: supervisor.clone(),
            store_id: store_id.clone(),
            environment: environment.clone(),
            dir: Some(folder.to_owned()),
            tracker: tracker.clone(),
        })
    }

    /// Starts a program with its standard streams as pipes.
    pub fn start(
        &self,
        program: &Program,
        purpose: Purpose<'_>,
    ) -> std::io::Result<(RunningProgram, ChildStdout, ChildStdin)> {
        let (running, stdout, stdin) = self.spawn(program, purpose, Stdio::piped())?;
        let stdin = stdin.expect("the streams were asked for as pipes");
        Ok((running, stdout, stdin))
    }

    /// The same with an open file as its standard input.
    pub fn start_with_input(
        &self,
        program: &Program,
        purpose: Purpose<'_>,
        input: File,
    ) -> std::io::Result<(RunningProgram, ChildStdout)> {
        let (running, stdout, _) = self.spawn(program, purpose, input.into())?;
        Ok((running, stdout))
    }

    fn spawn(
        &self,
        program: &Program,
        purpose: Purpose<'_>,
        input: Stdio,
    ) -> std::io::Result<(RunningProgram, ChildStdout, Option<ChildStdin>)> {
        let mut command = self.command(program);
        let settings = &*self.inner;
        let trace = purpose.traceparent;
        let own = program.env.iter();
        command
            .env_clear()
            .envs(
                settings
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .envs(trace.map(|trace| ("TRACEPARENT", trace)))
            .envs(own.map(|(name, value)| (name, value.expose_secret())))
            .env(STORE_VARIABLE, &settings.store_id)
            .env(EXECUTION_VARIABLE, purpose.execution)
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Own process group, so that signals from the bridge's terminal do not reach it.
            .process_group(0)
            .kill_on_drop(false);
        if let Some(dir) = &settings.dir {
            command.current_dir(dir);
        }
        let mut process = command.spawn()?;
        let pid = process
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        let pipe = "the streams were asked for as pipes";
        let stdin = process.stdin.take();
        let stdout = process.stdout.take().expect(pipe);
        let stderr = process.stderr.take().expect(pipe);
        let tail = Arc::default();
        let stderr = settings.tracker.spawn(keep_tail(stderr, Arc::clone(&tail)));
        Ok((
            RunningProgram {
                process,
                pid,
                tail,
                stderr,
            },
            stdout,
            stdin,
        ))
    }

    fn command(&self, program: &Program) -> Command {
        let path: &Path = &program.command;
        let mut command = match self.inner.supervisor.as_slice() {
            [] => Command::new(path),
            [supervisor, rest @ ..] => {
                let mut command = Command::new(supervisor);
                // The supervisor's path is a descriptor in /proc, which is unreadable in a process list.
                command.arg0("forge-bridge").args(rest).arg(path);
                command
            }
        };
        command.args(program.args.iter().map(OsStr::new));
        command
    }
}

impl RunningProgram {
    /// End of the program's stderr, as the end of a sentence; empty if it wrote nothing.
    pub async fn last_words(&mut self) -> String {
        // Output not read by then is left out.
        let _ = timeout(LAST_WORDS, &mut self.stderr).await;
        let tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        match String::from_utf8_lossy(&tail).trim() {
            "" => String::new(),
            said => format!("; stderr: {said}"),
        }
    }

    /// Waits for the program to exit by itself.
    pub async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.process.wait().await?;
        // The id can be that of another process from now on.
        self.pid = None;
        Ok(status)
    }

    /// Waits for the program to exit after its stdin was closed, then sends SIGTERM; dropping kills it.
    pub async fn end(mut self) {
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

impl Drop for RunningProgram {
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
