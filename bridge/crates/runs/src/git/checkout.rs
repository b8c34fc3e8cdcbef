//! Checkouts: folders in which agents and checks work.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, openat};
use rustix::io::Errno;
use tokio::task::{JoinHandle, spawn_blocking};

use forge_process::ownership::{self, UserId};

use super::blobs::{Batches, next_blob};
use super::conflict::Version;
use super::made::Made;
use super::program::make_folder;
use super::repository::make_repository;
use super::trash::ATTEMPTS;
use super::tree::{READ_FOLDER, SUBMODULE, Tree};
use super::{Branch, CommitId, Error, Input, Repository};

/// Copies the objects of commits that are not shared, if there are any, and checks the last of them out.
const FILL: &str = r#"[ -z "$NEW" ] || printf '%s\n^%s\n' "$NEW" "$BASE" |
    git pack-objects --quiet --revs --stdout --delta-base-offset |
    GIT_DIR="$OWN" git index-pack --stdin >&2 || exit
GIT_DIR="$OWN" GIT_WORK_TREE="$TREE" exec git "$@""#;

/// Folder of an attempt. Cheap to clone.
#[derive(Clone)]
pub struct Checkout {
    pub(super) repository: Repository,
    pub(super) branch: Branch,
    pub(super) folder: PathBuf,
    pub(super) made: Made,
}

impl Repository {
    /// Makes the folder of an attempt, with the commit of its branch, before its agent begins. Repeated after a kill,
    /// it opens the folder that is there.
    pub async fn make(&self, branch: &Branch) -> Result<Checkout, Error> {
        self.make_with(branch, &[], None).await
    }

    /// [`Self::make`], with the files of the tree that an agent is given to settle a conflict, and in its own
    /// repository the branches of the inputs.
    pub async fn make_with(
        &self,
        branch: &Branch,
        inputs: &[Input],
        given: Option<&CommitId>,
    ) -> Result<Checkout, Error> {
        let folder = self.place(branch);
        // The record is the last step: a folder without one was given to no agent.
        if self.made(&folder)?.is_none() {
            let tip = self.tip(branch).await?;
            let tip = tip.ok_or_else(|| Error::NoRef(branch.to_string()))?;
            self.git().delete(self.run(), &folder).await?;
            // Two refineries merge into the same branch; the later one contains the earlier one.
            let branches: BTreeMap<_, _> = inputs
                .iter()
                .map(|input| (input.branch.as_str(), &input.commit))
                .collect();
            let sources = branches.into_iter().chain([(branch.as_str(), &tip)]);
            self.fill(&folder, &sources.collect::<Vec<_>>(), given)
                .await?;
            let record = || Made::new(&open_folder(&folder)?.into(), tip.clone())?.write(&folder);
            record().map_err(|error| Error::file(&folder, error))?;
        }
        self.open(branch)
    }

    /// Opens the folder in which an agent has worked. One that the agent has removed or replaced is an error.
    pub fn open(&self, branch: &Branch) -> Result<Checkout, Error> {
        let folder = self.place(branch);
        let made = self.made(&folder)?;
        let checkout = Checkout {
            repository: self.clone(),
            branch: branch.clone(),
            made: made.ok_or_else(|| Error::gone(branch))?,
            folder,
        };
        checkout.tree().map(|_| checkout)
    }

    /// Opens a folder whose files are never committed, and makes it again if it was removed or replaced.
    pub async fn renew(&self, branch: &Branch) -> Result<Checkout, Error> {
        match self.open(branch) {
            Err(Error::Lost { .. }) => {
                let folder = self.place(branch);
                Made::remove(&folder).map_err(|error| Error::file(&folder, error))?;
                self.make(branch).await
            }
            opened => opened,
        }
    }

    fn place(&self, branch: &Branch) -> PathBuf {
        self.folder().join(ATTEMPTS).join(branch.below_run())
    }

    fn made(&self, folder: &Path) -> Result<Option<Made>, Error> {
        Made::read(folder).map_err(|error| Error::file(folder, error))
    }

    /// Makes a folder with exactly a commit, for checks. One that is there is removed, since checks can change it.
    pub async fn folder_of(&self, commit: &CommitId) -> Result<PathBuf, Error> {
        let folder = self.folder().join("checks").join(commit.as_str());
        self.git().delete(self.run(), &folder).await?;
        self.fill(&folder, &[("checks", commit)], None).await?;
        Ok(folder)
    }

    /// Removes the folder of [`Self::folder_of`].
    pub async fn discard_checks(&self, commit: &CommitId) -> Result<(), Error> {
        let folder = self.folder().join("checks").join(commit.as_str());
        self.git().delete(self.run(), &folder).await
    }

    /// Makes a folder with a repository of its own, which has no remote. It has these commits as branches, and that of the
    /// last one is checked out. Objects that every copy of the run has are shared; if they are damaged, they are made
    /// again.
    async fn fill(
        &self,
        folder: &Path,
        sources: &[(&str, &CommitId)],
        given: Option<&CommitId>,
    ) -> Result<(), Error> {
        self.git().removed(self.run()).await;
        match self.fill_once(folder, sources, given).await {
            Err(error @ Error::Failed { .. }) => {
                let folder = folder.display();
                tracing::warn!("shared objects are copied again for {folder}: {error}");
            }
            filled => return filled,
        }
        self.discard_shared().await?;
        self.fill_once(folder, sources, given).await
    }

    async fn fill_once(
        &self,
        folder: &Path,
        sources: &[(&str, &CommitId)],
        given: Option<&CommitId>,
    ) -> Result<(), Error> {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let new = folder.with_file_name(format!(".new-{name}"));
        self.git().delete(self.run(), &new).await?;
        let shared = self.shared_objects().await?;
        self.git().make_way(folder.parent().unwrap_or(folder))?;
        make_folder(&new)?;
        let own = new.join(".git");
        let (branch, head) = sources.last().copied().unwrap_or(("", self.base()));
        make_repository(&own, false, branch, self.base())?;
        let refs = sources
            .iter()
            .map(|(branch, commit)| (format!("refs/heads/{branch}"), format!("{commit}\n")));
        let shared = format!("{}\n", shared.display());
        let files = [("objects/info/alternates".to_owned(), shared)];
        for (file, text) in files.into_iter().chain(refs) {
            let file = own.join(file);
            make_folder(file.parent().unwrap_or(&own))?;
            fs::write(&file, text).map_err(|error| Error::file(&file, error))?;
        }
        let commits = sources.iter().map(|(_, commit)| commit.as_str());
        let added: Vec<_> = commits
            .filter(|commit| *commit != self.base().as_str())
            .collect();
        let step = self.step(&["reset", "--quiet", "--hard"]).script(FILL);
        // It is made again if the machine fails.
        let step = step.setting("core.fsync", "none");
        let step = step.env("NEW", added.join("\n"));
        let step = step.env("BASE", self.base().as_str());
        let step = step.env("OWN", own.to_string_lossy());
        let step = step.env("TREE", new.to_string_lossy());
        step.bytes().await?;
        if let Some(given) = given {
            let opened = open_folder(&new).map_err(io::Error::from)?;
            let tree = Arc::new(Tree::new(opened)?);
            write(self, &tree, head.as_str(), given).await?;
        }
        fs::rename(&new, folder).map_err(|error| Error::file(folder, error))
    }
}

impl Checkout {
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn branch(&self) -> &Branch {
        &self.branch
    }

    /// Opens the folder, if it is the one that was made.
    pub(super) fn tree(&self) -> Result<Tree, Error> {
        let lost = |what| Error::Lost {
            branch: self.branch.clone(),
            what,
        };
        let opened = open_folder(&self.folder).map(File::from);
        let opened = opened.map_err(|error| match error {
            Errno::NOENT => Error::gone(&self.branch),
            Errno::NOTDIR | Errno::LOOP => lost("was replaced"),
            error => Error::file(&self.folder, error.into()),
        })?;
        match self.made.is(&opened)? {
            true => Ok(Tree::new(opened.into())?),
            false => Err(lost("was replaced")),
        }
    }

    /// Works on the files of the folder, in a thread that may block.
    pub(super) async fn with_tree<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tree) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let checkout = self.clone();
        let working = spawn_blocking(move || work(&checkout.tree()?));
        working.await.map_err(io::Error::other)?
    }

    /// Changes the files of the folder by the difference of two commits or trees, as a merge does to a folder that has
    /// the former. Other files stay.
    pub async fn write(&self, former: &CommitId, latter: &CommitId) -> Result<(), Error> {
        let tree = Arc::new(self.tree()?);
        write(&self.repository, &tree, former.as_str(), latter).await
    }

    /// Counts the changes of the attempt from this commit on.
    pub fn count_from(&self, commit: &CommitId) -> Result<(), Error> {
        let made = self.made.from(commit);
        let written = made.write(&self.folder);
        written.map_err(|error| Error::file(&self.folder, error))
    }
}

/// Opens a folder, and no link to one.
fn open_folder(path: &Path) -> rustix::io::Result<OwnedFd> {
    openat(CWD, path, READ_FOLDER, Mode::empty())
}

async fn write(
    repository: &Repository,
    tree: &Arc<Tree>,
    former: &str,
    latter: &CommitId,
) -> Result<(), Error> {
    let changes = repository.changes(former, latter).await?;
    let is_file = |version: &Version| version.mode != SUBMODULE;
    let (mut removed, mut written) = (Vec::new(), Vec::new());
    for (path, change) in changes {
        match (change.former, change.latter) {
            (Some(former), _) if !is_file(&former) => {}
            (_, None) => removed.push(path),
            (_, Some(latter)) if is_file(&latter) => written.push((path, latter)),
            (_, Some(_)) => {}
        }
    }
    let root = Arc::clone(tree);
    let removing = spawn_blocking(move || removed.iter().try_for_each(|path| root.remove(path)));
    removing.await.map_err(io::Error::other)??;
    let mut batches = Batches::new(written, |(_, version)| vec![version.id.clone()]);
    while let Some((written, printed)) = batches.next(repository).await? {
        let root = Arc::clone(tree);
        let writing = spawn_blocking(move || {
            let mut rest = &printed[..];
            written.iter().try_for_each(|(path, version)| {
                let content = next_blob(&mut rest).ok_or(io::ErrorKind::UnexpectedEof)?;
                root.write(path, &version.mode, content)
            })
        });
        writing.await.map_err(io::Error::other)??;
    }
    Ok(())
}

/// Splits an output of git that was asked for with `-z`.
pub(super) fn parts(output: &[u8]) -> impl Iterator<Item = &[u8]> {
    output
        .split(|byte| *byte == 0)
        .filter(|part| !part.is_empty())
}

/// Gives a folder to the user of the programs that work in it.
pub async fn give(folder: &Path, user: UserId) -> Result<(), Error> {
    let path = folder.to_owned();
    let giving = spawn_blocking(move || ownership::give(&path, user));
    blocking(giving, folder).await
}

/// Result of work on a folder that blocks.
pub(super) async fn blocking<T>(
    work: JoinHandle<io::Result<T>>,
    folder: &Path,
) -> Result<T, Error> {
    let done = work.await.map_err(io::Error::other).flatten();
    done.map_err(|error| Error::file(folder, error))
}
