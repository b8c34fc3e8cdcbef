//! Checkouts: folders in which agents and checks work.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tokio::task::{JoinHandle, spawn_blocking};

use super::program::{Input, make_folder};
use super::repository::{FETCH, make_repository, remove_folder};
use super::tree::{SUBMODULE, Tree};
use super::{Branch, CommitId, Error, Repository};

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
        let folder = self.folder().join("attempts").join(branch.below_run());
        if !fs::exists(&folder).map_err(|error| Error::file(&folder, error))? {
            self.fill(&folder, branch.as_str(), &branch.full()).await?;
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
        self.fill(&folder, "checks", commit.as_str()).await?;
        Ok(folder)
    }

    /// Removes the folder of [`Self::folder_of`].
    pub async fn discard_checks(&self, commit: &CommitId) -> Result<(), Error> {
        discard(self.folder().join("checks").join(commit.as_str())).await
    }

    /// Makes a folder with a repository of its own, which shares no file with another one and has no remote.
    async fn fill(&self, folder: &Path, branch: &str, source: &str) -> Result<(), Error> {
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
        let fetch = fetch.arg(format!("{source}:refs/heads/{branch}"));
        fetch.bytes().await?;
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
        let git = |args: &[&str]| self.repository.step(args);
        let trees = [former.as_str(), latter.as_str()];
        let step = ["diff-tree", "-r", "-z", "--no-renames", trees[0], trees[1]];
        let changes = git(&step).bytes().await?;
        let unexpected = || Error::Unexpected("diff-tree");
        let mut parts = parts(&changes);
        let (mut removed, mut written, mut ids) = (Vec::new(), Vec::new(), String::new());
        while let Some(line) = parts.next() {
            let path = parts.next().ok_or_else(unexpected)?.to_vec();
            let line = String::from_utf8_lossy(line);
            let words: Vec<&str> = line.trim_start_matches(':').split(' ').collect();
            match words[..] {
                [_, SUBMODULE, ..] | [SUBMODULE, ..] => {}
                [_, "000000", ..] => removed.push(path),
                [_, mode, _, id, _] => {
                    written.push((path, mode.to_owned()));
                    ids += &format!("{id}\n");
                }
                _ => return Err(unexpected()),
            }
        }
        let blobs = git(&["cat-file", "--batch"]).input(Input::Bytes(ids.into_bytes()));
        let blobs = blobs.bytes().await?;
        let folder = self.folder.clone();
        let writing = spawn_blocking(move || {
            let tree = Tree::open(&folder)?;
            removed.iter().try_for_each(|path| tree.remove(path))?;
            let mut rest = &blobs[..];
            written.iter().try_for_each(|(path, mode)| {
                let content = next_blob(&mut rest).ok_or(io::ErrorKind::UnexpectedEof)?;
                tree.write(path, mode, content)
            })
        });
        blocking(writing, &self.folder).await
    }
}

/// Takes the next object from the output of `cat-file --batch`: `<id> blob <size>`, the content, a line break.
fn next_blob<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let size = str::from_utf8(&rest[..end]).ok()?.rsplit(' ').next()?;
    let begin = end + 1;
    let end = begin.checked_add(size.parse().ok()?)?;
    let content = rest.get(begin..end)?;
    *rest = rest.get(end + 1..)?;
    Some(content)
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
