//! The `git` program: found and checked once, then started for each step under the supervisor, with an environment and
//! settings of its own, a time limit and bounded output. Nothing that a repository contains decides what runs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use secrecy::SecretString;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::timeout;

use forge_base::tasks::Tasks;
use forge_process::program::{Launcher, LauncherSettings, Program, Purpose};

use super::confidential::{self, TAKE_INPUT};
use super::private::{GitDirs, STEPS};
use super::settings::{SETTINGS, environment};
use super::trash::Removals;
use super::{DownloadBounds, Error, RefusedUrl, Remotes, RepoUrl};

/// Oldest version that merges without a work tree (`merge-tree --write-tree`).
const OLDEST: (u32, u32) = (2, 38);
/// Limit of what one step prints: about 400,000 paths.
const OUTPUT_BYTES: u64 = 64 * 1024 * 1024;
/// Words of git, curl and ssh, in lower case, for credentials that a remote does not accept.
const CREDENTIALS: [&str; 7] = [
    "authentication failed",
    "could not read username",
    "could not read password",
    "returned error: 401",
    "returned error: 403",
    "permission denied (",
    "access denied",
];
/// The same for a repository that is not there.
const ABSENT: [&str; 6] = [
    "does not appear to be a git repository",
    "repository not found",
    "returned error: 404",
    "returned error: 410",
    "' not found",
    "' does not exist",
];
const PURPOSE: Purpose<'_> = Purpose {
    execution: "run/git",
    traceparent: None,
};

/// Everything that git steps depend on.
pub struct Setup {
    /// Command of the supervisor; empty: none, for tests.
    pub supervisor: Vec<String>,
    pub store_id: String,
    pub tracker: Tasks,
    /// Folders in which `git` is searched, as in the variable `PATH`.
    pub search: OsString,
    /// Folder of all runs, absolute; created with 0700.
    pub folder: PathBuf,
    /// Programs of other users work in checkouts.
    pub has_other_users: bool,
    /// Limit of one step.
    pub timeout: Duration,
    pub download: DownloadBounds,
    pub remotes: Remotes,
}

/// A usable `git`. Cheap to clone.
#[derive(Clone)]
pub struct Git {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    program: PathBuf,
    launcher: Launcher,
    pub(super) timeout: Duration,
    pub(super) download: DownloadBounds,
    has_other_users: bool,
    pub(super) folder: PathBuf,
    pub(super) remotes: Remotes,
    pub(super) removals: Removals,
    git_dirs: GitDirs,
}

impl Git {
    /// Finds the program, checks its version and prepares the folder.
    pub async fn find(setup: Setup) -> Result<Self, Error> {
        let mut folders = std::env::split_paths(&setup.search).filter(|dir| dir.is_absolute());
        let program = folders.find_map(|dir| executable(dir.join("git")));
        let program = program.ok_or_else(|| Error::Missing("no git in PATH".to_owned()))?;
        // No id of a run begins with a dot.
        let home = setup.folder.join(".home");
        make_folder(&home)?;
        let launcher = Launcher::new(LauncherSettings {
            supervisor: setup.supervisor,
            store_id: setup.store_id,
            environment: environment(&program, &home),
            dir: Some(home),
            tracker: setup.tracker,
        });
        let git = Self {
            inner: Arc::new(Inner {
                program,
                launcher,
                timeout: setup.timeout,
                download: setup.download,
                has_other_users: setup.has_other_users,
                folder: setup.folder,
                remotes: setup.remotes,
                removals: Removals::default(),
                git_dirs: GitDirs::default(),
            }),
        };
        let version = git.step(&["version"]).text().await;
        let version = version.map_err(|error| Error::Missing(error.to_string()))?;
        match parse_version(&version) {
            Some(found) if found >= OLDEST => Ok(git),
            _ => Err(Error::Missing(format!("it is {version:?}"))),
        }
    }

    /// Checks the address of a repository, with everything but a look-up of its name. Starts no program.
    pub fn check(&self, address: &str) -> Result<RepoUrl, RefusedUrl> {
        self.inner.remotes.rules.check(address)
    }

    /// Creates a folder of a run that contains checkouts, with those above it. Other users whose programs work in
    /// checkouts can pass through it, and not list it.
    pub(super) fn make_way(&self, folder: &Path) -> Result<(), Error> {
        make_folder(folder)?;
        if self.inner.has_other_users {
            let own = |above: &&Path| above.starts_with(&self.inner.folder);
            for folder in folder.ancestors().take_while(own) {
                fs::set_permissions(folder, Permissions::from_mode(0o711))
                    .map_err(|error| Error::file(folder, error))?;
            }
        }
        Ok(())
    }

    /// A step without a repository. It is named all the same, since git would search for one.
    pub(super) fn step(&self, args: &[&str]) -> Step<'_> {
        Step {
            git: &self.inner,
            repository: None,
            args: args.iter().map(|&arg| arg.to_owned()).collect(),
            env: [("GIT_DIR".to_owned(), "/dev/null".into())].into(),
            settings: SETTINGS
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec(),
            confidential: Vec::new(),
            input: Input::Bytes(Vec::new()),
            script: None,
        }
    }
}

/// One start of git, or of a script that starts it several times, since the start of a supervisor costs more than most
/// commands of git.
pub(super) struct Step<'a> {
    git: &'a Inner,
    /// Repository of a run, and the length of its ids.
    repository: Option<(PathBuf, usize)>,
    args: Vec<String>,
    script: Option<&'static str>,
    env: BTreeMap<String, SecretString>,
    settings: Vec<(String, String)>,
    /// Settings that no other process may read.
    confidential: Vec<(String, SecretString)>,
    input: Input,
}

/// Standard input of a step.
pub(super) enum Input {
    Bytes(Vec<u8>),
    /// Ends with the sender.
    Pieces(mpsc::Receiver<Vec<u8>>),
}

/// End of a step.
pub(super) struct Output {
    /// Command of git.
    step: String,
    pub(super) code: i32,
    pub(super) stdout: Vec<u8>,
    /// End of stderr, as the end of a sentence.
    said: String,
}

impl Step<'_> {
    /// Works in a repository of a run, whose ids have this length. Of its files, refs and objects are used only.
    pub(super) fn within(mut self, repository: &Path, digits: usize) -> Self {
        self.repository = Some((repository.to_owned(), digits));
        self
    }

    pub(super) fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(super) fn env(mut self, name: &str, value: impl Into<String>) -> Self {
        self.env.insert(name.to_owned(), value.into().into());
        self
    }

    pub(super) fn setting(mut self, name: &str, value: impl Into<String>) -> Self {
        self.settings.push((name.to_owned(), value.into()));
        self
    }

    /// A setting that is neither in the environment nor in an argument. The step has no input.
    pub(super) fn confidential(mut self, name: &str, value: SecretString) -> Self {
        self.confidential.push((name.to_owned(), value));
        self
    }

    /// Leaves out a setting of all steps, so that the one of the repository is in effect.
    pub(super) fn without_setting(mut self, name: &str) -> Self {
        self.settings.retain(|(known, _)| known != name);
        self
    }

    /// Has `sh` run this script, with the arguments of the step as its own. It finds `git` in its `PATH`.
    pub(super) fn script(mut self, script: &'static str) -> Self {
        self.script = Some(script);
        self
    }

    pub(super) fn input(mut self, input: Input) -> Self {
        self.input = input;
        self
    }

    /// Runs it and expects success. Returns its output without the last line break.
    pub(super) async fn text(self) -> Result<String, Error> {
        let output = self.bytes().await?;
        Ok(String::from_utf8_lossy(&output)
            .trim_end_matches('\n')
            .to_owned())
    }

    /// Runs it and expects success.
    pub(super) async fn bytes(self) -> Result<Vec<u8>, Error> {
        let output = self.run().await?;
        match output.code {
            0 => Ok(output.stdout),
            _ => Err(output.failure()),
        }
    }

    /// Runs it, whatever its exit code.
    pub(super) async fn run(mut self) -> Result<Output, Error> {
        let step = self.args[0].clone();
        let limit = self.git.timeout;
        let confidential = match self.confidential.as_slice() {
            [] => None,
            settings => Some(confidential::file(settings)?),
        };
        // In the environment, and not as arguments: those can be read by all users of the machine.
        let mut settings = std::mem::take(&mut self.settings);
        settings.extend(confidential.is_some().then(confidential::include));
        self = self.env("GIT_CONFIG_COUNT", settings.len().to_string());
        for (number, (name, value)) in settings.into_iter().enumerate() {
            self = self.env(&format!("GIT_CONFIG_KEY_{number}"), name);
            self = self.env(&format!("GIT_CONFIG_VALUE_{number}"), value);
        }
        let git_dir = match &self.repository {
            Some((repository, digits)) => {
                let steps = self.git.folder.join(STEPS);
                Some(self.git.git_dirs.take(&steps, repository, *digits)?)
            }
            None => None,
        };
        if let Some(git_dir) = &git_dir {
            self = self.env("GIT_DIR", git_dir.path().to_string_lossy());
        }
        let (git, input) = (self.git, self.input);
        let own = git.program.to_string_lossy().into_owned();
        let script = match (self.script, &confidential) {
            (None, None) => None,
            (None, Some(_)) => Some((format!("{TAKE_INPUT}exec \"$0\" \"$@\""), own)),
            (Some(script), None) => Some((script.to_owned(), "git".to_owned())),
            (Some(script), Some(_)) => Some((format!("{TAKE_INPUT}{script}"), "git".to_owned())),
        };
        let (command, before) = match script {
            None => (git.program.clone(), vec![]),
            Some((script, name)) => (
                PathBuf::from("/bin/sh"),
                vec!["-c".to_owned(), script, name],
            ),
        };
        let program = Program {
            command,
            args: before.into_iter().chain(self.args).collect(),
            env: self.env,
        };
        let unusable = |error| Error::file(&git.program, error);
        let started = match confidential {
            None => git
                .launcher
                .start(&program, PURPOSE)
                .map(|(running, stdout, stdin)| (running, stdout, Some(stdin))),
            Some(file) => git
                .launcher
                .start_with_input(&program, PURPOSE, file)
                .map(|(running, stdout)| (running, stdout, None)),
        };
        let (mut running, stdout, stdin) = started.map_err(unusable)?;
        // A git that fails does not read all; its exit code says so.
        let writing = async move {
            let Some(mut stdin) = stdin else {
                return Ok(());
            };
            match input {
                Input::Bytes(bytes) => drop(stdin.write_all(&bytes).await),
                Input::Pieces(mut pieces) => {
                    while let Some(piece) = pieces.recv().await {
                        let _ = stdin.write_all(&piece).await;
                    }
                }
            }
            Ok(())
        };
        let reading = async {
            let mut read = Vec::new();
            let result = stdout.take(OUTPUT_BYTES + 1).read_to_end(&mut read).await;
            match result {
                Ok(_) if read.len() as u64 > OUTPUT_BYTES => {
                    Err(Error::TooLarge(format!("the output of git {step}")))
                }
                result => result.map(|_| read).map_err(unusable),
            }
        };
        let whole = async {
            let ((), stdout) = tokio::try_join!(writing, reading)?;
            let code = running.wait().await.map_err(unusable)?.code();
            Ok::<_, Error>((stdout, code.unwrap_or(-1)))
        };
        let ended = timeout(limit, whole).await;
        let (stdout, code) = ended.map_err(|_| Error::TimedOut {
            step: step.clone(),
            limit,
        })??;
        if let Some(git_dir) = git_dir {
            git.git_dirs.keep(git_dir);
        }
        let said = match code {
            0 => String::new(),
            _ => running.last_words().await,
        };
        Ok(Output {
            step,
            code,
            stdout,
            said,
        })
    }
}

impl Output {
    pub(super) fn failure(self) -> Error {
        let Self {
            step, code, said, ..
        } = self;
        Error::Failed { step, code, said }
    }

    /// End of stderr, as it is.
    pub(super) fn said(&self) -> &str {
        self.said.trim_start_matches("; stderr: ")
    }

    pub(super) fn remote_failure(&self) -> Error {
        let said = self.said().to_owned();
        let text = said.to_ascii_lowercase();
        let says = |phrases: &[&str]| phrases.iter().any(|phrase| text.contains(phrase));
        if says(&CREDENTIALS) {
            Error::Credentials(said)
        } else if says(&ABSENT) {
            Error::NoRepository(said)
        } else {
            Error::Remote(said)
        }
    }
}

/// `git version 2.47.3 (Apple Git-1)`.
fn parse_version(line: &str) -> Option<(u32, u32)> {
    let numbers = line.strip_prefix("git version ")?;
    let mut numbers = numbers.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn executable(path: PathBuf) -> Option<PathBuf> {
    let metadata = fs::metadata(&path).ok()?;
    (metadata.is_file() && metadata.permissions().mode() & 0o111 != 0).then_some(path)
}

/// Creates a folder of the bridge with those above it.
pub(super) fn make_folder(path: &Path) -> Result<(), Error> {
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path);
    made.map_err(|error| Error::file(path, error))
}
