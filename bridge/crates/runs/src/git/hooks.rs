//! Hooks of repositories on this machine. A server would run them; here a push is made by the bridge itself, so the
//! operator decides: `runs.local_hooks`.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::remote::Call;
use super::url::Place;
use super::{Error, Git, Push, RepoUrl};

/// Treatment of hooks of repositories on this machine: `runs.local_hooks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LocalHooks {
    /// A repository with an active hook is not used.
    #[default]
    Refuse,
    /// Hooks are run, as the user of the bridge.
    Run,
    /// Hooks are not run.
    Ignore,
}

/// Hooks that git runs in a repository that is pushed to.
const HOOKS: [&str; 7] = [
    "pre-receive",
    "update",
    "post-receive",
    "reference-transaction",
    "post-update",
    "proc-receive",
    "push-to-checkout",
];

/// Words without which a configuration names neither hooks nor a folder of hooks: those of a section or a variable
/// cannot be written in another way than by upper case.
const NAMING: [&str; 3] = ["hookspath", "[include", "[hook"];
/// Longest configuration that is searched for them.
const CONFIG_BYTES: u64 = 1 << 20;

/// An active hook, and its file; none for one that is set in the configuration.
struct Hook {
    name: String,
    file: Option<PathBuf>,
}

impl Git {
    /// Refuses a repository on this machine whose hooks would not be asked.
    pub async fn check_hooks(&self, url: &RepoUrl) -> Result<(), Error> {
        let Place::Local(folder) = &url.0 else {
            return Ok(());
        };
        let remotes = &self.inner.remotes;
        if remotes.hooks == LocalHooks::Ignore || remotes.push == Push::Never {
            return Ok(());
        }
        let Some(Hook { name, file }) = self.active_hook(folder).await? else {
            return Ok(());
        };
        if remotes.hooks == LocalHooks::Refuse {
            return Err(Error::Hook(name));
        }
        let user = rustix::process::geteuid().as_raw();
        let is_ours = |path: &Path| fs::metadata(path).is_ok_and(|found| found.uid() == user);
        match is_ours(folder) && file.is_none_or(|file| is_ours(&file)) {
            true => Ok(()),
            false => Err(Error::ForeignHook(name)),
        }
    }

    /// Prepares a call of a remote, after its hooks are checked again: they can have changed.
    pub(super) async fn call(&self, url: &RepoUrl) -> Result<Call, Error> {
        self.check_hooks(url).await?;
        self.inner.remotes.call(url).await
    }

    async fn active_hook(&self, folder: &Path) -> Result<Option<Hook>, Error> {
        let inner = folder.join(".git");
        let git_dir = if inner.is_dir() {
            inner
        } else {
            folder.to_owned()
        };
        let mut hooks = git_dir.join("hooks");
        if names_hooks(&git_dir).map_err(|error| Error::file(&git_dir, error))? {
            for (name, value) in self.hook_settings(&git_dir).await? {
                if name == "core.hookspath" {
                    // Relative to the folder in which git runs them.
                    hooks = git_dir.join(value);
                } else {
                    return Ok(Some(Hook { name, file: None }));
                }
            }
        }
        let files = HOOKS.iter().map(|name| (name, hooks.join(name)));
        let mut active = files.filter(|(_, file)| is_program(file));
        Ok(active.next().map(|(name, file)| Hook {
            name: (*name).to_owned(),
            file: Some(file),
        }))
    }

    /// Settings of a repository that name hooks, as git reads them there.
    async fn hook_settings(&self, git_dir: &Path) -> Result<Vec<(String, String)>, Error> {
        let step = self.step(&["config", "--includes", "--type=path", "-z"]);
        let step = step.env("GIT_DIR", git_dir.to_string_lossy());
        let step = step.without_setting("core.hooksPath");
        let step = step.arg("--get-regexp");
        let step = step.arg(r"^(core\.hookspath|hook\..*\.command)$");
        let output = step.run().await?;
        match output.code {
            0 => {}
            1 => return Ok(Vec::new()),
            _ => return Err(output.failure()),
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let lines = text.split_terminator('\0');
        Ok(lines
            .map(|line| line.split_once('\n').unwrap_or((line, "")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect())
    }
}

/// False if the configuration of a repository names neither hooks nor other files, so that git need not be asked.
fn names_hooks(git_dir: &Path) -> io::Result<bool> {
    for name in ["config", "config.worktree"] {
        // A pipe in its place is read as if it were empty.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut text = Vec::new();
        match rustix::fs::open(git_dir.join(name), flags, Mode::empty()) {
            Ok(file) => fs::File::from(file)
                .take(CONFIG_BYTES + 1)
                .read_to_end(&mut text)?,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        let is_long = text.len() as u64 > CONFIG_BYTES;
        let text = String::from_utf8_lossy(&text).to_ascii_lowercase();
        let text: String = text.split_ascii_whitespace().collect();
        if is_long || NAMING.iter().any(|word| text.contains(word)) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_program(file: &Path) -> bool {
    let found = fs::metadata(file);
    found.is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}
