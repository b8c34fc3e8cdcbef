//! Commits of what agents leave in their folders.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::mpsc;

use super::checkout::parts;
use super::conflict::{Conflict, Conflicted};
use super::merge::{AUTHOR, EMAIL};
use super::path::{quoted, shown};
use super::program::Input;
use super::tree::{self, CHANGED, Entry, LINK, Tree};
use super::walk::{Difference, FILE_BYTES, Large, LeftOuts, Tracked, compare};
use super::{Checkout, CommitId, Error, Repository};

/// Number of files that wait for git while a commit is written.
const WAITING: usize = 2;
/// Longest list of files that is kept, as git prints it.
const LISTING_BYTES: usize = 1 << 20;

/// Message and time of a commit.
#[derive(Clone, Debug)]
pub struct Message {
    pub text: String,
    /// Seconds since 1970.
    pub seconds: i64,
}

/// State of the branch after a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The new commit, or the former one if there was nothing to commit.
    pub commit: CommitId,
    /// Paths that differ from the former commit.
    pub changed: Vec<String>,
    /// Entries of the folder that are not in the commit, besides ignored ones.
    pub left_out: LeftOuts,
    former: CommitId,
}

/// Entry that was not committed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    pub path: String,
    pub reason: &'static str,
}

impl Checkout {
    /// Commits what is in the folder to the branch of the attempt, besides ignored files. `merged` are further parents,
    /// as after a conflict that an agent has resolved. A tracked file that cannot be read back is an error.
    pub async fn commit(&self, message: &Message, merged: &[CommitId]) -> Result<Committed, Error> {
        self.commit_on(message, merged, None).await
    }

    /// [`Self::commit`], with what the folder began with if that is no commit.
    pub(super) async fn commit_on(
        &self,
        message: &Message,
        merged: &[CommitId],
        basis: Option<Basis<'_>>,
    ) -> Result<Committed, Error> {
        let git = |args: &[&str]| self.repository.step(args);
        let tip = self.repository.tip(&self.branch).await?;
        let tip = tip.ok_or_else(|| Error::NoRef(self.branch.to_string()))?;
        let mut parents = Vec::new();
        for parent in merged {
            let step = ["merge-base", "--is-ancestor", parent.as_str(), tip.as_str()];
            if git(&step).run().await?.code != 0 {
                parents.push(parent);
            }
        }
        let conflict = basis.as_ref().and_then(|basis| basis.conflict);
        let former = conflict.map_or(&tip, |conflict| &conflict.given);
        // A path that is absent until it is decided can be an ignored one.
        let decided = conflict.into_iter().flat_map(|conflict| &conflict.paths);
        let decided = decided.map(|path| path.path.clone()).collect();
        let (tracked, mut found) = self.difference(former, decided).await?;
        if let Some(conflict) = conflict {
            found.remove_sides(conflict);
        }
        let mut changed: Vec<&[u8]> = found.paths().collect();
        changed.sort_unstable();
        let mut committed = Committed {
            changed: changed.into_iter().map(shown).collect(),
            left_out: std::mem::take(&mut found.left_out),
            commit: tip.clone(),
            former: tip,
        };
        if committed.changed.is_empty() && parents.is_empty() && conflict.is_none() {
            return Ok(committed);
        }
        let text = message.text.replace('\0', " ");
        let mut head = format!(
            "feature done\ncommit {}\nmark :1\ncommitter {AUTHOR} <{EMAIL}> {} +0000\ndata {}\n{text}\nfrom {}\n",
            basis
                .as_ref()
                .map_or_else(|| self.branch.full(), |basis| basis.name.to_owned()),
            message.seconds,
            text.len(),
            committed.commit,
        );
        for parent in parents {
            head += &format!("merge {parent}\n");
        }
        if let Some(conflict) = conflict {
            head += &format!("M 040000 {} \"\"\n", conflict.given);
        }
        let mut head = head.into_bytes();
        for path in &found.removed {
            head.extend([b"D ", &quoted(path)[..], b"\n"].concat());
        }
        for (path, mode) in &found.moded {
            let (_, id) = &tracked[path];
            head.extend([format!("M {mode} {id} ").as_bytes(), &quoted(path), b"\n"].concat());
        }
        let (sender, pieces) = mpsc::channel(WAITING);
        let written = found.written;
        let sending = self.with_tree(move |tree| send(tree, head, &written, &tracked, &sender));
        // Without its last word, a stream that breaks off changes nothing.
        let step = git(&["fast-import", "--quiet", "--done"]);
        let step = step.input(Input::Pieces(pieces)).text();
        let (sent, printed) = tokio::join!(sending, step);
        for path in sent? {
            committed.changed.retain(|changed| *changed != shown(&path));
            committed.left_out.add(&path, CHANGED);
        }
        let id = CommitId::parse(&printed?);
        committed.commit = id.ok_or(Error::Unexpected("fast-import"))?;
        Ok(committed)
    }

    /// Paths in which a commit of the folder differs from the one with which the attempt began.
    pub async fn changed_since_made(&self, committed: &Committed) -> Result<Vec<String>, Error> {
        if committed.former == self.made.at {
            return Ok(committed.changed.clone());
        }
        let (from, to) = (self.made.at.as_str(), &committed.commit);
        let changes = self.repository.changes(from, to).await?;
        Ok(changes.keys().map(|path| shown(path)).collect())
    }

    /// Entries of the folder that a commit of it does not have.
    pub(super) async fn left_out(&self, commit: &CommitId) -> Result<LeftOuts, Error> {
        let (_, found) = self.difference(commit, BTreeSet::new()).await?;
        Ok(found.left_out)
    }

    /// Difference between the folder and a commit or tree. `decided` are paths that are never ignored.
    async fn difference(
        &self,
        former: &CommitId,
        decided: BTreeSet<Vec<u8>>,
    ) -> Result<(Arc<Tracked>, Difference), Error> {
        let tracked = self.repository.tracked(former).await?;
        let until = Instant::now() + self.repository.git().inner.timeout;
        let known = Arc::clone(&tracked);
        let comparing = self.with_tree(move |tree| compare(tree, &known, &decided, until));
        let mut found = comparing.await?;
        let large = std::mem::take(&mut found.large);
        if large.is_empty() {
            return Ok((tracked, found));
        }
        // Sizes first: a file of another size is not read.
        let ids = large.iter();
        let ids = ids.map(|file| format!("{}\n", tracked[&file.path].1));
        let step = ["cat-file", "--batch-check=%(objectsize)"];
        let step = self.repository.step(&step);
        let step = step.input(Input::Bytes(ids.collect::<String>().into_bytes()));
        let sizes = step.text().await?;
        let sizes: Vec<u64> = sizes.lines().filter_map(|line| line.parse().ok()).collect();
        if sizes.len() != large.len() {
            return Err(Error::Unexpected("cat-file"));
        }
        let known = Arc::clone(&tracked);
        let moded = self.with_tree(move |tree| {
            let mut moded = Vec::new();
            for (file, size) in large.into_iter().zip(sizes) {
                let (mode, id) = &known[&file.path];
                if file.size != size || !is_unchanged(tree, &file, id, until)? {
                    return Err(Error::Unreadable {
                        path: shown(&file.path),
                        reason: "it has changed and is larger than 64 MiB",
                        others: 0,
                    });
                }
                if file.mode != mode {
                    moded.push((file.path, file.mode));
                }
            }
            Ok(moded)
        });
        found.moded.extend(moded.await?);
        Ok((tracked, found))
    }
}

/// Files of the commit or tree that was listed last, if they are few: tasks that begin with the same commit follow each
/// other.
#[derive(Default)]
pub(super) struct Listing(Mutex<Option<(CommitId, Arc<Tracked>)>>);

impl Repository {
    /// Files of a commit or tree.
    async fn tracked(&self, of: &CommitId) -> Result<Arc<Tracked>, Error> {
        let last = || {
            self.listing()
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if let Some((commit, tracked)) = &*last()
            && commit == of
        {
            return Ok(Arc::clone(tracked));
        }
        let step = ["ls-tree", "-r", "-z", "--full-tree", of.as_str()];
        let listed = self.step(&step).bytes().await?;
        let tracked = Arc::new(tracked(&listed)?);
        if listed.len() <= LISTING_BYTES {
            *last() = Some((of.clone(), Arc::clone(&tracked)));
        }
        Ok(tracked)
    }
}

/// Beginning of a commit of an agent that settles a merge.
pub(super) struct Basis<'a> {
    /// The conflict whose tree the folder began with; `None`: it began with the commit of the branch.
    pub(super) conflict: Option<&'a Conflict>,
    /// Ref of the commit, in place of the branch.
    pub(super) name: &'a str,
}

impl Difference {
    /// Removes the files of sides that an agent has left beside a path that it has decided.
    fn remove_sides(&mut self, conflict: &Conflict) {
        let changed: BTreeSet<&[u8]> = self.paths().collect();
        let written: BTreeSet<&Vec<u8>> = self.written.iter().collect();
        let decided = conflict.paths.iter();
        let decided = decided.filter(|path| written.contains(&path.path));
        let files = decided
            .flat_map(Conflicted::side_files)
            .map(|(file, _)| file);
        let files: Vec<_> = files
            .filter(|file| !changed.contains(&***file))
            .cloned()
            .collect();
        self.removed.extend(files);
    }
}

/// Tracked files in the output of `ls-tree`.
fn tracked(listed: &[u8]) -> Result<Tracked, Error> {
    let file = |line: &[u8]| {
        let tab = line.iter().position(|byte| *byte == b'\t')?;
        let mut words = str::from_utf8(&line[..tab]).ok()?.split(' ');
        let (mode, id) = (words.next()?, words.nth(1)?);
        Some((line[tab + 1..].to_vec(), (mode.to_owned(), id.to_owned())))
    };
    let tracked = parts(listed).map(file).collect::<Option<_>>();
    tracked.ok_or(Error::Unexpected("ls-tree"))
}

/// True if the content of a large file is that of the commit.
fn is_unchanged(tree: &Tree, file: &Large, id: &str, until: Instant) -> Result<bool, Error> {
    let Entry::File(content, size, _) = tree.entry(&file.path)? else {
        return Ok(false);
    };
    let found = tree::blob_id(content, size, id.len(), until)?;
    Ok(found.as_deref() == Some(id))
}

/// Sends the commit to `fast-import`. Files are read again, each as a whole, so each is committed as it was at a time.
/// Returns new files that cannot be read any more.
fn send(
    tree: &Tree,
    head: Vec<u8>,
    written: &[Vec<u8>],
    tracked: &Tracked,
    to: &mpsc::Sender<Vec<u8>>,
) -> Result<Vec<Vec<u8>>, Error> {
    let mut lost = Vec::new();
    let mut entries = tree.entries();
    let mut pieces = written.iter().map(|path| {
        let (mode, content) = match entries.open(path)? {
            Entry::Link(target) => (LINK, Some(target)),
            Entry::File(file, _, mode) => (mode, tree::read_up_to(file, FILE_BYTES)?),
            Entry::Missing | Entry::Refused(_) => (LINK, None),
        };
        let Some(content) = content else {
            if tracked.contains_key(path) {
                return Err(Error::Unreadable {
                    path: shown(path),
                    reason: CHANGED,
                    others: 0,
                });
            }
            lost.push(path.clone());
            return Ok(Vec::new());
        };
        let modify = format!("M {mode} inline ").into_bytes();
        let data = format!("\ndata {}\n", content.len()).into_bytes();
        Ok([&modify, &quoted(path), &data, &content, &b"\n"[..]].concat())
    });
    let end = b"get-mark :1\ndone\n".to_vec();
    let mut all = [Ok(head)].into_iter().chain(&mut pieces).chain([Ok(end)]);
    // Without a receiver, git has ended; its exit code is the error.
    while let Some(piece) = all.next().transpose()? {
        if to.blocking_send(piece).is_err() {
            break;
        }
    }
    drop(pieces);
    Ok(lost)
}
