//! The real program as a process, which a test can kill at any moment.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Api, settings, until};

/// A running bridge; its home outlives it.
pub(crate) struct Process {
    child: Child,
    pub(crate) api: Api,
}

/// A bridge that ended before it listened.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) log: String,
}

/// Files and settings of a bridge, which outlive its process.
pub(crate) struct Home {
    pub(crate) dir: TempDir,
    pub(crate) variables: BTreeMap<String, String>,
    /// Command that runs the bridge, whose path is appended to it; empty to run the bridge directly.
    pub(crate) wrapper: Vec<String>,
}

impl Home {
    pub(crate) fn new(variables: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        // Temporary files of a killed bridge are removed with the home.
        let temporary = dir.path().join("tmp");
        std::fs::create_dir(&temporary).unwrap();
        let mut settings = settings(dir.path());
        settings.insert("TMPDIR".to_owned(), temporary.display().to_string());
        settings.extend(
            variables
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned())),
        );
        Self {
            dir,
            variables: settings,
            wrapper: Vec::new(),
        }
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    /// Starts a bridge and waits until it listens.
    pub(crate) fn start(&self) -> Process {
        match self.launch() {
            Ok(process) => process,
            Err(log) => panic!("the bridge did not start:\n{log}"),
        }
    }

    /// Starts a bridge and waits until it ends by itself.
    pub(crate) fn run_to_its_end(&self) {
        // It can end before it listens or after.
        if let Ok(process) = self.launch() {
            process.wait();
        }
    }

    /// The program with the settings and the working directory of this home.
    pub(crate) fn command(&self) -> Command {
        let bridge = env!("CARGO_BIN_EXE_forge-bridge").to_owned();
        let mut words = self.wrapper.iter().chain([&bridge]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words);
        command
            .env_clear()
            .envs(&self.variables)
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// Starts a bridge without waiting for it; its client has no address.
    pub(crate) fn begin(&self) -> Process {
        self.spawn(Stdio::null())
    }

    /// Starts a bridge that logs to `stderr`, without waiting for it; its client has no address.
    pub(crate) fn spawn(&self, stderr: Stdio) -> Process {
        let child = self.command().stdout(Stdio::null()).stderr(stderr).spawn();
        Process {
            child: child.unwrap(),
            api: Api::new("http://127.0.0.1:0".to_owned()),
        }
    }

    /// Log of all bridges in this home.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.log_file()).unwrap()
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Starts a bridge and waits until it listens. Error: its log, if it ended before.
    pub(crate) fn launch(&self) -> Result<Process, String> {
        self.try_start().map_err(|ended| ended.log)
    }

    /// Starts a bridge and waits until it listens. Error: its exit status and log, if it ended before.
    pub(crate) fn try_start(&self) -> Result<Process, Ended> {
        let log_file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_file());
        let mut log_file = log_file.unwrap();
        let mut process = self.spawn(Stdio::piped());
        let stderr = BufReader::new(process.child.stderr.take().unwrap());
        let (url, urls) = mpsc::channel();
        std::thread::spawn(move || {
            let mut log = String::new();
            for line in stderr.lines().map_while(Result::ok) {
                if let Some(found) = listening(&line) {
                    // The test might have stopped waiting.
                    let _ = url.send(Ok(found));
                }
                writeln!(log_file, "{line}").unwrap();
                log.push_str(&line);
                log.push('\n');
            }
            let _ = url.send(Err(log));
        });
        match urls.recv_timeout(Duration::from_secs(30)).unwrap() {
            Ok(url) => {
                process.api = Api::new(url);
                Ok(process)
            }
            Err(log) => {
                let status = process.wait();
                Err(Ended { status, log })
            }
        }
    }
}

/// URL of the bridge, if it is what this line of its log says.
pub(crate) fn listening(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("listening on http")?;
    let end = rest.find([' ', '\u{1b}', '"']).unwrap_or(rest.len());
    Some(format!("http{}", &rest[..end]))
}

impl Process {
    /// Kills the process with SIGKILL and waits for its end.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Exit status; `None` while it runs.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits until the process ends by itself.
    pub(crate) fn wait(mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }

    /// Waits until the process ends by itself; fails the test if it does not.
    pub(crate) async fn ended(mut self) -> ExitStatus {
        let child = RefCell::new(&mut self.child);
        until("the end of the process", || async {
            child.borrow_mut().try_wait().unwrap()
        })
        .await
    }

    /// Resident memory of the process in bytes.
    pub(crate) fn memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.unwrap().trim().trim_end_matches(" kB");
        kib.parse::<usize>().unwrap() * 1024
    }

    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGHUP, which reloads the settings.
    pub(crate) fn hang_up(&self) {
        self.signal(Signal::HUP);
    }

    /// Stops the process as a debugger or a machine that sleeps does.
    pub(crate) fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Has already ended in most tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
