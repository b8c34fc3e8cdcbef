//! An OpenClaw gateway in a folder of its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

/// Token of the gateway.
pub const OPENCLAW_TOKEN: &str = "forge-test-token";

/// A running gateway; killed on drop and at the end of the process.
pub struct OpenClaw {
    wrapper: Mutex<Wrapper>,
    url: String,
    folder: PathBuf,
}

struct Wrapper {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl OpenClaw {
    pub(crate) fn start(node: &Path, program: &Path, model: &str, settings: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/openclaw/serve.py");
        let mut process = Command::new("python3")
            .args([script, model, OPENCLAW_TOKEN])
            .args([node, program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 installed the runtime");
        let stdout = process.stdout.take().expect("it is piped");
        let mut wrapper = Wrapper {
            stdin: process.stdin.take(),
            stdout: BufReader::new(stdout),
            process,
        };
        wrapper.write(settings);
        let (url, folder) = wrapper.listening();
        Self {
            wrapper: Mutex::new(wrapper),
            url,
            folder,
        }
    }

    /// Address with the scheme `http`, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Workspace of the default agent.
    pub fn workspace(&self) -> PathBuf {
        self.folder.join("workspace")
    }

    /// Merges this JSON over the settings; the gateway reads them again by itself, soon.
    pub fn set(&self, change: &str) {
        self.wrapper
            .lock()
            .expect("no test panicked in it")
            .write(&format!("set {change}"));
    }

    /// Kills the gateway without a shutdown.
    pub fn kill(&self) {
        self.wrapper
            .lock()
            .expect("no test panicked in it")
            .write("kill");
    }

    /// Starts a killed gateway again at the same address.
    pub fn start_again(&self) {
        let mut wrapper = self.wrapper.lock().expect("no test panicked in it");
        wrapper.write("start");
        wrapper.listening();
    }
}

impl Wrapper {
    fn write(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("it is piped");
        writeln!(stdin, "{line}").expect("the wrapper reads its stdin");
    }

    /// Waits until the gateway listens; returns its address and folder.
    fn listening(&mut self) -> (String, PathBuf) {
        let mut said = String::new();
        loop {
            let mut line = String::new();
            let read = self
                .stdout
                .read_line(&mut line)
                .expect("its output is text");
            assert!(read > 0, "the gateway did not start:\n{said}");
            if let Some((url, folder)) = line
                .trim_end()
                .strip_prefix("listening on ")
                .and_then(|found| found.split_once(" in "))
            {
                return (url.to_owned(), PathBuf::from(folder));
            }
            said.push_str(&line);
        }
    }
}

impl Drop for Wrapper {
    fn drop(&mut self) {
        drop(self.stdin.take());
        // The wrapper can have exited already.
        let _ = self.process.wait();
    }
}
