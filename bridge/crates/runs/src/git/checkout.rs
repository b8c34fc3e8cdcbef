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

use super::blobs::{Batches, next_blob};
use super::conflict::Version;
use super::made::Made;
use super::program::make_folder;
use super::repository::{FETCH, make_repository, remove_folder};
use super::tree::{READ_FOLDER, SUBMODULE, Tree};
use super::{Branch, CommitId, Error, Input, Repository};

const FILL: &str = r#"git "$@" && exec git reset --quiet --hard"#;

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
            discard(folder.clone()).await?;
            // Two refineries merge into the same branch; the later one contains the earlier one.
            let branches: BTreeMap<_, _> = inputs
                .iter()
                .map(|input| (input.branch.as_str(), input.commit.as_str()))
                .collect();
            let source = branch.full();
            let sources = branches
                .into_iter()
                .map(|(branch, commit)| (commit, branch));
            let sources: Vec<_> = sources.chain([(&*source, branch.as_str())]).collect();
            self.fill(&folder, &sources, given).await?;
            let record = || Made::new(&open_folder(&folder)?.into(), tip)?.write(&folder);
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
        self.folder().join("attempts").join(branch.below_run())
    }

    fn made(&self, folder: &Path) -> Result<Option<Made>, Error> {
        Made::read(folder).map_err(|error| Error::file(folder, error))
    }

    /// Makes a folder with exactly a commit, for checks. One that is there is removed, since checks can change it.
    pub async fn folder_of(&self, commit: &CommitId) -> Result<PathBuf, Error> {
        let folder = self.folder().join("checks").join(commit.as_str());
        discard(folder.clone()).await?;
        self.fill(&folder, &[(commit.as_str(), "checks")], None)
            .await?;
        Ok(folder)
    }

    /// Removes the folder of [`Self::folder_of`].
    pub async fn discard_checks(&self, commit: &CommitId) -> Result<(), Error> {
        discard(self.folder().join("checks").join(commit.as_str())).await
    }

    /// Makes a folder with a repository of its own, which shares no file with another one and has no remote. It has
    /// these commits as branches, and that of the last one is checked out.
    async fn fill(
        &self,
        folder: &Path,
        sources: &[(&str, &str)],
        given: Option<&CommitId>,
    ) -> Result<(), Error> {
        let branch = sources.last().map_or("", |(_, branch)| *branch);
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let new = folder.with_file_name(format!(".new-{name}"));
        discard(new.clone()).await?;
        make_folder(&new)?;
        let own = new.join(".git");
        make_repository(&own, false, branch, self.base())?;
        let fetch = self.git().step(&own, &FETCH).script(FILL);
        // It is made again if the machine fails.
        let fetch = fetch.setting("core.fsync", "none");
        let fetch = fetch.setting("fetch.fsckObjects", "false");
        let fetch = fetch.env("GIT_ALLOW_PROTOCOL", "file");
        let fetch = fetch.env("GIT_WORK_TREE", new.to_string_lossy());
        let fetch = fetch.arg("--update-head-ok");
        let fetch = fetch.arg(self.bare().to_string_lossy());
        let refs = sources.iter();
        let refs = refs.map(|(source, branch)| format!("{source}:refs/heads/{branch}"));
        let fetch = refs.fold(fetch, |fetch, refs| fetch.arg(refs));
        fetch.bytes().await?;
        if let Some(given) = given {
            let head = sources.last().map_or("", |(source, _)| *source);
            let opened = open_folder(&new).map_err(io::Error::from)?;
            let tree = Arc::new(Tree::new(opened, self.git().inner.agent_uid));
            write(self, &tree, head, given).await?;
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

    /// Removes the folder. Its branch stays.
    pub async fn remove(self) -> Result<(), Error> {
        Made::remove(&self.folder).map_err(|error| Error::file(&self.folder, error))?;
        discard(self.folder).await
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
            true => Ok(Tree::new(
                opened.into(),
                self.repository.git().inner.agent_uid,
            )),
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

async fn discard(folder: PathBuf) -> Result<(), Error> {
    let removing = spawn_blocking(move || remove_folder(&folder));
    removing.await.map_err(io::Error::other)?
}

/// Result of work on a folder that blocks.
pub(super) async fn blocking<T>(
    work: JoinHandle<io::Result<T>>,
    folder: &Path,
) -> Result<T, Error> {
    let done = work.await.map_err(io::Error::other).flatten();
    done.map_err(|error| Error::file(folder, error))
}
