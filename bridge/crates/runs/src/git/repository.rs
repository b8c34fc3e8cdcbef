//! The bare repository of a run: attached once from the remote, then the place where all branches of the run are.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Mutex;

use super::commit::Listing;
use super::download::Download;
use super::lock::Lock;
use super::name::is_ref;
use super::program::{Input, Output, Step, make_folder};
use super::remote::{Call, Side};
use super::settings::{self, ATTRIBUTES};
use super::trash::{names, remove_folder};
use super::tree::{Entry, Tree, read_up_to};
use super::{Branch, CommitId, Error, Git, Push, Remotes, RepoUrl};

/// Commit that the run begins with. No branch, so that nothing pushes it.
const BASE: &str = "refs/forge/base";
/// Branches and tags of the remote, while a commit is searched in them.
const CONTAINING: &str = "refs/forge/containing";
/// Default branch of a remote whose `HEAD` names none.
const UNNAMED: &str = "unnamed";
/// Beginning of the full name of a branch.
const HEADS: &str = "refs/heads/";
/// Limit of a file with one ref.
const REF_BYTES: u64 = 1024;
pub(super) const FETCH: [&str; 4] = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head"];

/// Repository of a run. Cheap to clone.
#[derive(Clone)]
pub struct Repository {
    inner: Arc<Inner>,
}

struct Inner {
    git: Git,
    url: RepoUrl,
    run: String,
    /// Folder of the run.
    folder: PathBuf,
    bare: PathBuf,
    base: CommitId,
    default_branch: Option<String>,
    /// Held while the objects that copies share are made or removed.
    sharing: Mutex<()>,
    listing: Listing,
}

impl Git {
    /// Fetches a branch, a tag or a commit (default: the default branch of the remote) into the repository of a run, unless that
    /// was done before. The one that is there keeps its base. Removes the locks of steps that were killed, so no other
    /// step of the run may be under way.
    pub async fn attach(
        &self,
        run: &str,
        url: &RepoUrl,
        start: Option<&str>,
    ) -> Result<Repository, Error> {
        let folder = self.run_folder(run)?;
        let bare = folder.join("repository.git");
        if fs::exists(&bare).map_err(|error| Error::file(&bare, error))? {
            let removed = remove_locks(&bare).and_then(|()| remove_partial_packs(&bare));
            removed.map_err(|error| Error::file(&bare, error))?;
        } else {
            let new = folder.join("new.git");
            remove_folder(&new)?;
            make_folder(&folder)?;
            let fetched = self.fetch_all(&new, url, run, start).await;
            if fetched.is_err() {
                self.delete(run, &new).await?;
            }
            fetched?;
            fs::rename(&new, &bare).map_err(|error| Error::file(&bare, error))?;
        }
        let start = ref_file(&bare, BASE)?;
        let start = start.as_deref().and_then(CommitId::parse);
        let start = start.ok_or_else(|| Error::NoRef(BASE.to_owned()))?;
        // A tag is what it names.
        let commit = format!("{start}^{{commit}}");
        let base = self.step(&["rev-parse", "--verify", &commit]);
        let base = base.within(&bare, start.as_str().len()).text().await?;
        let head = ref_file(&bare, "HEAD")?.unwrap_or_default();
        let head = head
            .strip_prefix("ref: refs/heads/")
            .filter(|name| *name != UNNAMED && is_ref(name));
        let inner = Inner {
            git: self.clone(),
            url: url.clone(),
            run: run.to_owned(),
            folder,
            bare,
            base: CommitId::parse(&base).ok_or(Error::Unexpected("rev-parse"))?,
            default_branch: head.map(str::to_owned),
            sharing: Mutex::default(),
            listing: Listing::default(),
        };
        Ok(Repository {
            inner: Arc::new(inner),
        })
    }

    async fn fetch_all(
        &self,
        new: &Path,
        url: &RepoUrl,
        run: &str,
        start: Option<&str>,
    ) -> Result<(), Error> {
        let commit = start.and_then(CommitId::named);
        let wanted: Vec<String> = match start {
            Some(_) if commit.is_some() => Vec::new(),
            None => vec!["HEAD".to_owned()],
            Some(name) if !is_ref(name) => return Err(Error::NoRef(name.to_owned())),
            Some(name) if name.starts_with("refs/") => vec![name.to_owned()],
            Some(name) => vec![format!("refs/heads/{name}"), format!("refs/tags/{name}")],
        };
        let call = self.call(url).await?;
        let mut list = call.apply(self.step(&["ls-remote", "--symref"]), Side::Sends);
        for name in wanted.iter().map(String::as_str).chain(["HEAD"]) {
            list = list.arg(name);
        }
        // Branches that exclude those of the run, so that no agent works for a result that cannot be pushed.
        let needed = Branch::needed(run)?;
        for name in &needed {
            let full = name.full();
            let above = full.match_indices('/').map(|(end, _)| &full[..end]);
            for name in above
                .filter(|name| name.len() > HEADS.len())
                .chain([&*full])
            {
                list = list.arg(name);
            }
            list = list.arg(format!("{full}/*"));
        }
        let listed = listed(list).await?;
        let branches = listed
            .iter()
            .filter_map(|(_, name)| name.strip_prefix(HEADS));
        for found in branches.filter(|_| self.inner.remotes.push == Push::Always) {
            if let Some(wanted) = needed.iter().find(|wanted| wanted.excludes(found)) {
                return Err(Error::NameTaken {
                    found: found.to_owned(),
                    wanted: wanted.to_string(),
                });
            }
        }
        let head = listed.iter().find_map(|(target, name)| {
            let target = target.strip_prefix("ref: refs/heads/")?;
            (name == "HEAD" && is_ref(target)).then_some(target)
        });
        let there = listed
            .iter()
            .filter_map(|(id, name)| Some((CommitId::parse(id)?, name)));
        let found = there
            .filter(|(_, name)| wanted.contains(name))
            .min_by_key(|(_, name)| *name);
        // Ids of the other algorithm name nothing here.
        let has_other_ids = |commit: &&CommitId| {
            let mut ids = listed.iter().filter_map(|(id, _)| CommitId::parse(id));
            ids.any(|id| id.as_str().len() != commit.as_str().len())
        };
        if let Some(commit) = commit.as_ref().filter(has_other_ids) {
            return Err(Error::NoCommit(commit.clone()));
        }
        let (id, source) = match (&commit, found) {
            (Some(commit), _) => (commit.clone(), commit.as_str()),
            (None, Some((id, source))) => (id, &**source),
            (None, None) => return Err(self.nothing_found(&call, start).await),
        };
        make_repository(new, true, head.unwrap_or(UNNAMED), &id)?;
        let digits = id.as_str().len();
        let fetch = call.apply(self.step(&FETCH).within(new, digits), Side::Sends);
        let download = self.first_download(new);
        let fetched = download.run(fetch.arg(format!("+{source}:{BASE}"))).await;
        match (&commit, fetched) {
            (Some(commit), Err(Error::Remote(_))) => {
                self.fetch_containing(&download, new, &call, commit).await?;
            }
            (_, fetched) => drop(fetched?),
        }
        let is_there = async |name: &str| {
            let step = self.step(&["rev-parse", "--verify", "--quiet", name]);
            let step = step.within(new, digits);
            step.run().await.map(|output| output.code == 0)
        };
        // Git reports no failure if it leaves out a branch since the remote lacks its history.
        if !is_there(BASE).await? {
            return Err(Error::Shallow);
        }
        match commit {
            Some(commit) if !is_there(&format!("{BASE}^{{commit}}")).await? => {
                Err(Error::NoCommit(commit))
            }
            _ => Ok(()),
        }
    }

    /// Fetches all branches and tags, for a commit that a server does not give by its id.
    async fn fetch_containing(
        &self,
        download: &Download,
        new: &Path,
        call: &Call,
        commit: &CommitId,
    ) -> Result<(), Error> {
        let step = |args: &[&str]| self.step(args).within(new, commit.as_str().len());
        let fetch = call.apply(step(&FETCH), Side::Sends);
        let all = ["heads", "tags"].map(|kind| format!("+refs/{kind}/*:{CONTAINING}/{kind}/*"));
        let fetch = all.into_iter().fold(fetch, |fetch, refs| fetch.arg(refs));
        download.run(fetch).await?;
        let no_commit = |error| match error {
            Error::Failed { .. } => Error::NoCommit(commit.clone()),
            other => other,
        };
        let base = step(&["update-ref", BASE, commit.as_str()]);
        base.bytes().await.map_err(no_commit)?;
        let format = "--format=delete %(refname)";
        let listed = step(&["for-each-ref", format, CONTAINING]);
        let listed = listed.bytes().await?;
        let delete = step(&["update-ref", "--stdin"]);
        delete.input(Input::Bytes(listed)).bytes().await.map(drop)
    }

    /// Reason why a remote has not what a run begins with.
    async fn nothing_found(&self, call: &Call, start: Option<&str>) -> Error {
        let all = self.step(&["ls-remote", "--refs"]);
        let all = match listed(call.apply(all, Side::Sends)).await {
            Ok(all) => all,
            Err(error) => return error,
        };
        let branch = all
            .iter()
            .find_map(|(_, name)| name.strip_prefix("refs/heads/"));
        match (start, branch) {
            _ if all.is_empty() => Error::Empty,
            (Some(name), _) => Error::NoRef(name.to_owned()),
            (None, Some(branch)) => Error::NoHead(branch.to_owned()),
            (None, None) => Error::NoHead(all[0].1.clone()),
        }
    }
}

impl Repository {
    /// Commit that the run begins with.
    pub fn base(&self) -> &CommitId {
        &self.inner.base
    }

    /// Default branch of the remote when it was attached; `None` if its `HEAD` named none.
    pub fn default_branch(&self) -> Option<&str> {
        self.inner.default_branch.as_deref()
    }

    pub(super) fn git(&self) -> &Git {
        &self.inner.git
    }

    pub(super) fn remotes(&self) -> &Remotes {
        &self.git().inner.remotes
    }

    pub(crate) fn url(&self) -> &RepoUrl {
        &self.inner.url
    }

    pub(super) fn folder(&self) -> &Path {
        &self.inner.folder
    }

    pub(super) fn bare(&self) -> &Path {
        &self.inner.bare
    }

    pub(super) fn step(&self, args: &[&str]) -> Step<'_> {
        let Inner {
            git, bare, base, ..
        } = &*self.inner;
        git.step(args).within(bare, base.as_str().len())
    }

    pub(super) fn run(&self) -> &str {
        &self.inner.run
    }

    pub(super) fn sharing(&self) -> &Mutex<()> {
        &self.inner.sharing
    }

    pub(super) fn listing(&self) -> &Listing {
        &self.inner.listing
    }

    /// Commit of a branch of the run; `None` if there is no such branch.
    pub async fn tip(&self, branch: &Branch) -> Result<Option<CommitId>, Error> {
        self.get_ref(&branch.full()).await
    }

    /// Object of a ref of the run, by its full name.
    pub(super) async fn get_ref(&self, name: &str) -> Result<Option<CommitId>, Error> {
        // Git keeps a ref that it has written in a file, until refs are packed, which nothing does here. Reading it
        // spares a process in each step of an attempt.
        match ref_file(self.bare(), name)? {
            Some(text) => {
                if let Some(commit) = CommitId::parse(&text) {
                    return Ok(Some(commit));
                }
            }
            None if !self.bare().join("packed-refs").exists() => return Ok(None),
            None => {}
        }
        let step = self.step(&["rev-parse", "--verify", "--quiet", name]);
        let output = step.run().await?;
        match output.code {
            0 => Ok(CommitId::parse(
                String::from_utf8_lossy(&output.stdout).trim_end(),
            )),
            1 => Ok(None),
            _ => Err(output.failure()),
        }
    }

    /// Writes a ref that no remote knows, by its full name.
    pub(super) async fn set_ref(&self, name: &str, to: &CommitId) -> Result<(), Error> {
        Lock::take(self.bare().join(name), to).await?.apply()
    }

    /// Creates a branch at a commit, unless it exists. Returns its commit.
    pub async fn start(&self, branch: &Branch, at: &CommitId) -> Result<CommitId, Error> {
        let lock = Lock::take(self.bare().join(branch.full()), at).await?;
        if let Some(found) = self.tip(branch).await? {
            return Ok(found);
        }
        lock.apply().map(|()| at.clone())
    }

    /// Moves a branch in the repository of the run to a commit, if its commit is `expected` (`None`: it does not
    /// exist). Done if it is at the commit already.
    pub async fn advance(
        &self,
        branch: &Branch,
        expected: Option<&CommitId>,
        to: &CommitId,
    ) -> Result<(), Error> {
        let lock = Lock::take(self.bare().join(branch.full()), to).await?;
        match self.tip(branch).await?.as_ref() {
            Some(found) if found == to => Ok(()),
            found if found == expected => lock.apply(),
            found => Err(Error::moved(branch, expected, found)),
        }
    }
}

/// Text of a file of a repository that holds one ref, without its line break; `None` if there is none. By descriptor,
/// so that nothing that an agent puts there is waited for.
fn ref_file(repository: &Path, name: &str) -> Result<Option<String>, Error> {
    let read = || {
        let Entry::File(file, ..) = Tree::open(repository)?.entry(name.as_bytes())? else {
            return Ok(None);
        };
        let text = read_up_to(file, REF_BYTES)?.unwrap_or_default();
        Ok(Some(String::from_utf8_lossy(&text).trim_end().to_owned()))
    };
    read().map_err(|error| Error::file(&repository.join(name), error))
}

/// Makes an empty repository, as `git init` does.
pub(super) fn make_repository(
    path: &Path,
    is_bare: bool,
    branch: &str,
    like: &CommitId,
) -> Result<(), Error> {
    for folder in ["objects", "refs", "info"] {
        make_folder(&path.join(folder))?;
    }
    let head = format!("ref: refs/heads/{branch}\n");
    let config = settings::repository(is_bare, like.as_str().len());
    for (name, text) in [
        ("info/attributes", ATTRIBUTES),
        ("config", &config),
        ("HEAD", &head),
    ] {
        let file = path.join(name);
        fs::write(&file, text).map_err(|error| Error::file(&file, error))?;
    }
    Ok(())
}

/// Runs a step that calls the remote.
pub(super) async fn remote(step: Step<'_>) -> Result<Output, Error> {
    let output = step.run().await?;
    match output.code {
        0 => Ok(output),
        _ => Err(output.remote_failure()),
    }
}

/// Output of `ls-remote`: id or target, and name, of each ref.
pub(super) async fn listed(step: Step<'_>) -> Result<Vec<(String, String)>, Error> {
    let output = remote(step).await?.stdout;
    Ok(refs(&String::from_utf8_lossy(&output)))
}

pub(super) fn refs(printed: &str) -> Vec<(String, String)> {
    let refs = printed.lines().filter_map(|line| line.split_once('\t'));
    refs.map(|(id, name)| (id.to_owned(), name.to_owned()))
        .collect()
}

/// Removes what a download that was ended has written.
fn remove_partial_packs(bare: &Path) -> io::Result<()> {
    let packs = bare.join("objects/pack");
    let names = names(&packs).map_err(io::Error::other)?;
    for name in names.iter().filter(|name| name.starts_with("tmp_")) {
        fs::remove_file(packs.join(name))?;
    }
    Ok(())
}

/// Removes the locks of a git that was killed. No other git uses the repository; one that is being killed may remove
/// its locks itself.
fn remove_locks(folder: &Path) -> io::Result<()> {
    let gone = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    };
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type()?.is_dir() && name != "objects" {
            remove_locks(&entry.path()).or_else(gone)?;
        } else if name.to_string_lossy().ends_with(".lock") {
            fs::remove_file(entry.path()).or_else(gone)?;
        }
    }
    Ok(())
}
