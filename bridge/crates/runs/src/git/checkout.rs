//! Checkouts: folders in which agents and checks work.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tokio::task::{JoinHandle, spawn_blocking};

use super::blobs::{Batches, next_blob};
use super::conflict::Version;
use super::program::make_folder;
use super::repository::{FETCH, make_repository, remove_folder};
use super::tree::{SUBMODULE, Tree};
use super::{Branch, CommitId, Error, Input, Repository};

const FILL: &str = r#"git "$@" && exec git reset --quiet --hard"#;

/// Folder of an attempt. Cheap to clone.
#[derive(Clone)]
pub struct Checkout {
    pub(super) repository: Repository,
    pub(super) branch: Branch,
    pub(super) folder: PathBuf,
}

impl Repository {
    /// Opens the folder of an attempt; a new one has the commit of its branch.
    pub async fn checkout(&self, branch: &Branch) -> Result<Checkout, Error> {
        self.checkout_with(branch, &[], None).await
    }

    /// Opens the folder of an attempt; a new one has the commit of its branch, the files of the tree that an agent is
    /// given to settle a conflict, and in its own repository the branches of the inputs.
    pub async fn checkout_with(
        &self,
        branch: &Branch,
        inputs: &[Input],
        given: Option<&CommitId>,
    ) -> Result<Checkout, Error> {
        let folder = self.folder().join("attempts").join(branch.below_run());
        if !fs::exists(&folder).map_err(|error| Error::file(&folder, error))? {
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
        }
        Ok(Checkout {
            repository: self.clone(),
            branch: branch.clone(),
            folder,
        })
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
            write(self, &new, head, given).await?;
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
        discard(self.folder).await
    }

    /// Changes the files of the folder by the difference of two commits or trees, as a merge does to a folder that has
    /// the former. Other files stay.
    pub async fn write(&self, former: &CommitId, latter: &CommitId) -> Result<(), Error> {
        write(&self.repository, &self.folder, former.as_str(), latter).await
    }
}

async fn write(
    repository: &Repository,
    folder: &Path,
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
    let root = folder.to_owned();
    let removing = spawn_blocking(move || {
        let tree = Tree::open(&root)?;
        removed.iter().try_for_each(|path| tree.remove(path))
    });
    blocking(removing, folder).await?;
    let mut batches = Batches::new(written, |(_, version)| vec![version.id.clone()]);
    while let Some((written, printed)) = batches.next(repository).await? {
        let root = folder.to_owned();
        let writing = spawn_blocking(move || {
            let tree = Tree::open(&root)?;
            let mut rest = &printed[..];
            written.iter().try_for_each(|(path, version)| {
                let content = next_blob(&mut rest).ok_or(io::ErrorKind::UnexpectedEof)?;
                tree.write(path, &version.mode, content)
            })
        });
        blocking(writing, folder).await?;
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
    let path = folder.clone();
    let removing = spawn_blocking(move || Ok(remove_folder(&path)));
    blocking(removing, &folder).await?
}

/// Result of work on a folder that blocks.
pub(super) async fn blocking<T>(
    work: JoinHandle<io::Result<T>>,
    folder: &Path,
) -> Result<T, Error> {
    let done = work.await.map_err(io::Error::other).flatten();
    done.map_err(|error| Error::file(folder, error))
}
