//! `langgraph dev` with the graphs of `langgraph/graph.py`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A running server; stopped on drop and at the end of the process.
pub struct LangGraph {
    wrapper: Child,
    url: String,
    folder: PathBuf,
}

impl LangGraph {
    /// Starts a server, which takes some seconds. The graphs call the model at `model_url`, unless a run's
    /// configuration has its own.
    pub(crate) fn start(folder: &Path, model_url: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/langgraph/serve.py");
        let mut wrapper = Command::new(folder.join("bin/python"))
            .arg(script)
            .env("MODEL_URL", model_url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the installation has a Python");
        let stdout = wrapper.stdout.take().expect("it is piped");
        let mut said = Vec::new();
        let url = BufReader::new(stdout)
            .lines()
            .map_while(Result::ok)
            .find_map(|line| {
                let url = line.strip_prefix("listening on ").map(str::to_owned);
                said.push(line);
                url
            });
        Self {
            wrapper,
            url: url.unwrap_or_else(|| panic!("langgraph dev did not start:\n{}", said.join("\n"))),
            folder: folder.to_owned(),
        }
    }

    /// Address without a trailing slash.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The Python with `langgraph_sdk`, the official client.
    pub fn python(&self) -> PathBuf {
        self.folder.join("bin/python")
    }

    /// Kills the server without a shutdown.
    pub fn kill(&mut self) {
        // The wrapper can have exited already.
        if let Some(mut stdin) = self.wrapper.stdin.take() {
            let _ = stdin.write_all(b"kill\n");
        }
        let _ = self.wrapper.wait();
    }
}

impl Drop for LangGraph {
    fn drop(&mut self) {
        self.kill();
    }
}
