//! A repository with one commit, and the program git.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

const HISTORY: &str = "commit refs/heads/main
committer bench <bench@localhost> 1767225600 +0000
data 6
first
M 100644 inline README.md
data 8
# Bench

";

pub(crate) struct Origin(TempDir);

impl Origin {
    pub(crate) fn create(folder: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bench-runs-")
            .tempdir_in(folder)?;
        let origin = Self(folder);
        fs::create_dir(origin.path())?;
        let init = ["init", "--quiet", "--bare", "--initial-branch=main"];
        git(&origin.path(), &init, "")?;
        git(&origin.path(), &["fast-import", "--quiet"], HISTORY)?;
        Ok(origin)
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.root().join("origin.git")
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.path().display())
    }
}

/// Runs git in a folder, as durably as the bridge does; returns its output.
pub(crate) fn git(folder: &Path, arguments: &[&str], input: &str) -> anyhow::Result<String> {
    run(
        Command::new("git").args(arguments).current_dir(folder),
        input,
    )
}

/// Runs a program that starts git, with the settings of [`git`].
pub(crate) fn run(program: &mut Command, input: &str) -> anyhow::Result<String> {
    program
        .env_clear()
        .envs(env::var_os("PATH").map(|path| ("PATH", path)))
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "core.fsync")
        .env("GIT_CONFIG_VALUE_0", "committed,loose-object,reference")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for who in ["AUTHOR", "COMMITTER"] {
        program.env(format!("GIT_{who}_NAME"), "bench");
        program.env(format!("GIT_{who}_EMAIL"), "bench@localhost");
    }
    let started = program.spawn();
    let mut child = started.with_context(|| format!("starting {program:?}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program:?}: {said}");
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.trim_end().to_owned())
}
