//! The real program as a process, which a test may kill at any moment.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Api, settings};

/// A bridge of its own, in a home that outlives it.
pub(crate) struct Process {
    child: Child,
    pub(crate) api: Api,
}

/// What survives the process.
pub(crate) struct Home {
    pub(crate) dir: TempDir,
    pub(crate) variables: BTreeMap<String, String>,
}

impl Home {
    pub(crate) fn new(variables: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        let mut settings = settings(dir.path());
        settings.extend(
            variables
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned())),
        );
        Self {
            dir,
            variables: settings,
        }
    }

    /// Starts a bridge here and waits until it listens.
    pub(crate) fn start(&self) -> Process {
        match self.launch() {
            Ok(process) => process,
            Err(log) => panic!("the bridge did not start:\n{log}"),
        }
    }

    /// Starts a bridge here and waits for its end, which it has to come to by itself.
    pub(crate) fn run_to_its_end(&self) {
        // It may end before it listens or after.
        if let Ok(process) = self.launch() {
            process.wait();
        }
    }

    fn launch(&self) -> Result<Process, String> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forge-bridge"))
            .env_clear()
            .envs(&self.variables)
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (address, addresses) = mpsc::channel();
        std::thread::spawn(move || {
            let mut log = String::new();
            for line in stderr.lines().map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("listening on http://") {
                    let end = rest.find([' ', '\u{1b}']).unwrap_or(rest.len());
                    // The test may have given up already.
                    let _ = address.send(Ok(rest[..end].to_owned()));
                }
                log.push_str(&line);
                log.push('\n');
            }
            let _ = address.send(Err(log));
        });
        let address = addresses.recv_timeout(Duration::from_secs(30)).unwrap()?;
        Ok(Process {
            child,
            api: Api::new(format!("http://{address}")),
        })
    }
}

impl Process {
    /// `kill -9`, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end by itself.
    pub(crate) fn wait(mut self) -> std::process::ExitStatus {
        self.child.wait().unwrap()
    }

    pub(crate) fn terminate(&self) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already ended in most tests.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
