//! Repositories of runs, with the real git under the supervisor, in temporary folders.

mod begin;
mod conflict;
mod disk;
pub(crate) mod hostile;
mod killed;
mod local;
mod merge;
mod private;
mod remote;
mod run;
mod unruly;
mod walk;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forge_base::tasks::Tasks;
use forge_net::guard::Guard;
use forge_process::{Children, Config};
use forge_runs::git::*;
use tempfile::TempDir;

use super::harness::until;

/// Remote repository with one commit on `main`, checked out, and the git steps of a bridge beside it.
struct Bed {
    folder: TempDir,
    git: Git,
}

impl Bed {
    async fn new(push: Push) -> Self {
        Self::with(push, LocalHooks::Refuse).await
    }

    async fn with(push: Push, hooks: LocalHooks) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let origin = folder.path().join("origin");
        fs::create_dir(&origin).unwrap();
        run(&origin, &["init", "-q", "-b", "main"]);
        write(&origin, "shared.txt", "one\ntwo\nthree\n");
        write(&origin, ".gitignore", "ignored/\n");
        run(&origin, &["add", "-A"]);
        run(&origin, &["commit", "-qm", "Begin"]);
        let git = Git::find(setup(folder.path(), push, hooks)).await.unwrap();
        Self { folder, git }
    }

    /// Repository of the run, as an administrator would look into it.
    fn bare(&self) -> PathBuf {
        self.folder.path().join("runs/run_1/repository.git")
    }

    /// A file at a commit of the run.
    fn show(&self, commit: &CommitId, file: &str) -> String {
        run(&self.bare(), &["show", &format!("{commit}:{file}")])
    }

    fn files(&self, commit: &CommitId) -> Vec<String> {
        let listed = run(
            &self.bare(),
            &["ls-tree", "-r", "--name-only", commit.as_str()],
        );
        listed.lines().map(str::to_owned).collect()
    }

    fn origin(&self) -> PathBuf {
        self.folder.path().join("origin")
    }

    fn url(&self) -> RepoUrl {
        let origin = self.origin();
        self.git.check(origin.to_str().unwrap()).unwrap()
    }

    async fn attach(&self) -> Repository {
        self.git.attach("run_1", &self.url(), None).await.unwrap()
    }

    /// Checkout of the first attempt of a task, which begins at the base.
    async fn checkout(&self, repository: &Repository, task: &str) -> Checkout {
        let branch = Branch::of_attempt("run_1", task, 1).unwrap();
        repository.start(&branch, repository.base()).await.unwrap();
        repository.make(&branch).await.unwrap()
    }

    /// Commit of a task that writes one file.
    async fn work(&self, repository: &Repository, task: &str, file: &str, text: &str) -> Input {
        let checkout = self.checkout(repository, task).await;
        write(checkout.folder(), file, text);
        let commit = commit(&checkout).await.commit;
        let branch = checkout.branch().clone();
        Input { branch, commit }
    }
}

/// Processes of the steps of one bed.
fn children(folder: &Path) -> Children {
    let config = Config {
        supervisor: Some(env!("CARGO_BIN_EXE_forge-bridge").into()),
        grace: Duration::from_millis(200),
        ..Config::default()
    };
    Children::new(&config, folder.to_str().unwrap()).unwrap()
}

fn setup(folder: &Path, push: Push, hooks: LocalHooks) -> Setup {
    let root = [folder.to_owned()];
    let rules = UrlRules::new(&[], &root, Guard::new(&[]).unwrap()).unwrap();
    Setup {
        supervisor: children(folder).supervisor().to_vec(),
        store_id: folder.display().to_string(),
        tracker: Tasks::here(),
        search: std::env::var_os("PATH").unwrap(),
        folder: folder.join("runs"),
        has_other_users: false,
        timeout: Duration::from_secs(60),
        download: DownloadBounds {
            repository_bytes: 1 << 30,
            free_bytes: 0,
        },
        remotes: Remotes::new(rules, &BTreeMap::new(), None, push, hooks).unwrap(),
    }
}

/// Removes a checkout, and waits until it is deleted.
async fn remove(bed: &Bed, checkout: &Checkout) {
    bed.git.discard("run_1", checkout.branch()).unwrap();
    let trash = bed.folder.path().join("runs/.trash");
    until("the trash to be empty", async || {
        (fs::read_dir(&trash).unwrap().count() == 0).then_some(())
    })
    .await;
}

async fn commit(checkout: &Checkout) -> Committed {
    checkout.commit(&message(), &[]).await.unwrap()
}

fn message() -> Message {
    Message {
        text: "Do the task\n\nWith \"quotes\"".to_owned(),
        seconds: 1_700_000_000,
    }
}

fn write(folder: &Path, file: &str, text: &str) {
    let path = folder.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Runs git as a user would, and returns its output.
fn run(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(args);
    for variable in [
        "AUTHOR_NAME",
        "AUTHOR_EMAIL",
        "COMMITTER_NAME",
        "COMMITTER_EMAIL",
    ] {
        command.env(format!("GIT_{variable}"), "user");
    }
    let none = [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ];
    let output = command.envs(none).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {args:?}: {said}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim_end().to_owned()
}

fn done(merge: Result<Merge, Error>) -> CommitId {
    match merge.unwrap() {
        Merge::Done(commit) => commit,
        Merge::Conflict(conflict) => panic!("{conflict:?}"),
    }
}
