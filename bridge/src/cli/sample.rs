//! Sample repository for runs, in `dev` and `demo --run`.

use std::fs::DirBuilder;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use url::Url;

use super::Environment;
use crate::config::Config;

/// History of the repository: one commit, as `git fast-import` reads it.
const HISTORY: &str = "\
commit refs/heads/main
committer forge-bridge <forge-bridge@localhost> 1767225600 +0000
data <<END
Begin the site
END
M 100644 inline README.md
data <<END
# Site

A page that greets.
END
M 100644 inline index.html
data <<END
<h1>Hello</h1>
END
";

/// A bare repository with one commit on `main`.
pub(super) struct Sample {
    path: PathBuf,
    search: String,
}

impl Sample {
    /// Creates it below this folder.
    pub(super) fn create(environment: &Environment, folder: &Path) -> anyhow::Result<Self> {
        let folder = folder.join("sample");
        DirBuilder::new().mode(0o700).create(&folder)?;
        let sample = Self {
            // As the bridge compares it.
            path: folder.canonicalize()?.join("site.git"),
            search: environment.get("PATH").cloned().unwrap_or_default(),
        };
        // Private, as everything below the data folder.
        let init = ["init", "--quiet", "--bare", "--initial-branch=main"];
        let private = ["--shared=0600", "--template="];
        sample.git(&[&init[..], &private[..]].concat(), "")?;
        sample.git(&["fast-import", "--quiet"], HISTORY)?;
        Ok(sample)
    }

    /// Allows runs on it. With echo as the only adapter, they need no model.
    pub(super) fn allow(&self, config: &mut Config) {
        let (runs, plugin) = (&mut config.runs, &config.plugin);
        runs.local_roots
            .extend(self.path.parent().map(Path::to_owned));
        let mut adapters = plugin.adapters.iter().chain(&plugin.default_provider);
        if runs.model.is_none() && adapters.all(|id| id == "echo") {
            runs.model = Some("run".to_owned());
        }
    }

    pub(super) fn url(&self) -> anyhow::Result<String> {
        let url = Url::from_file_path(&self.path);
        let url = url
            .ok()
            .context("the temporary folder is not an absolute path")?;
        Ok(url.into())
    }

    /// A file of a branch, as the repository has it.
    pub(super) fn file(&self, branch: &str, path: &str) -> anyhow::Result<String> {
        self.git(&["show", &format!("{branch}:{path}")], "")
    }

    /// Runs git in the repository, without any setting of the user.
    fn git(&self, arguments: &[&str], input: &str) -> anyhow::Result<String> {
        let mut git = Command::new("git");
        git.args(arguments)
            .env_clear()
            .env("PATH", &self.search)
            .env("GIT_DIR", &self.path)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = git.spawn().context("cannot start git, which runs need")?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        let output = child.wait_with_output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "git {}: {said}", arguments[0]);
        Ok(String::from_utf8_lossy(&output.stdout)
            .trim_end()
            .to_owned())
    }
}
