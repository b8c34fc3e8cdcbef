//! Commits of what agents leave in their folders.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::checkout::{blocking, parts};
use super::conflict::{Conflict, Conflicted};
use super::merge::{AUTHOR, EMAIL};
use super::program::Input;
use super::tree::{self, Entry, LINK, SUBMODULE, Tree};
use super::{Checkout, CommitId, Error};

/// Largest file that is committed.
const FILE_BYTES: u64 = 64 * 1024 * 1024;
/// Limit of the files that one commit changes.
const CHANGES: usize = 100_000;
/// Limit of the entries that a commit reports as left out.
const REPORTED: usize = 100;
/// Number of files that wait for git while a commit is written.
const WAITING: usize = 2;

/// Lists the files of a commit, a line of its own, and the files of the folder that are not ignored.
const LIST: &str =
    r#"git "$@" && printf '/\0' && exec git ls-files -z --others --exclude-standard"#;
const BETWEEN: &[u8] = b"/";

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
    /// Entries of the folder that are not in the commit, besides ignored files; at most 100.
    pub left_out: Vec<LeftOut>,
}

/// Entry that was not committed. A file that was there before stays as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub path: String,
    pub reason: &'static str,
}

impl Checkout {
    /// Commits what is in the folder to the branch of the attempt, besides ignored files. `merged` are further parents,
    /// as after a conflict that an agent has resolved.
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
        // The index is empty, so all files are listed, and none is looked for in a submodule.
        let index = self.repository.bare().join("no-index");
        let conflict = basis.as_ref().and_then(|basis| basis.conflict);
        let former = conflict.map_or(&tip, |conflict| &conflict.given).as_str();
        let list = git(&["ls-tree", "-r", "-z", "--full-tree", former]).script(LIST);
        let list = list.env("GIT_INDEX_FILE", index.to_string_lossy());
        let list = list.env("GIT_WORK_TREE", self.folder.to_string_lossy());
        let listed = list.bytes().await?;
        let (folder, digits) = (self.folder.clone(), tip.as_str().len());
        let (tracked, mut present) = files(&listed)?;
        // A path that is absent until it is decided can be an ignored one.
        let decided = conflict.into_iter().flat_map(|conflict| &conflict.paths);
        present.extend(decided.map(|path| path.path.clone()));
        let comparing = spawn_blocking(move || compare(&folder, &tracked, &present, digits));
        let mut found = blocking(comparing, &self.folder).await?;
        if let Some(conflict) = conflict {
            found.remove_sides(conflict);
        }
        let changed = found.removed.iter().chain(&found.written);
        let mut committed = Committed {
            changed: changed.map(|path| shown(path)).collect(),
            left_out: found.left_out,
            commit: tip,
        };
        match committed.changed.len() {
            0 if parents.is_empty() && conflict.is_none() => return Ok(committed),
            number if number > CHANGES => {
                return Err(Error::TooLarge(format!("the change of {number} files")));
            }
            _ => {}
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
        let (sender, pieces) = mpsc::channel(WAITING);
        let (folder, written) = (self.folder.clone(), found.written);
        let writing = spawn_blocking(move || send(&folder, head, &written, &sender));
        // Without its last word, a stream that breaks off changes nothing.
        let step = git(&["fast-import", "--quiet", "--done"]);
        let printed = step.input(Input::Pieces(pieces)).text().await;
        blocking(writing, &self.folder).await?;
        let id = CommitId::parse(&printed?);
        committed.commit = id.ok_or(Error::Unexpected("fast-import"))?;
        Ok(committed)
    }
}

/// Beginning of a commit of an agent that settles a merge.
pub(super) struct Basis<'a> {
    /// The conflict whose tree the folder began with; `None`: it began with the commit of the branch.
    pub(super) conflict: Option<&'a Conflict>,
    /// Ref of the commit, in place of the branch.
    pub(super) name: &'a str,
}

/// Difference between a folder and a commit.
#[derive(Default)]
struct Comparison {
    removed: Vec<Vec<u8>>,
    written: Vec<Vec<u8>>,
    left_out: Vec<LeftOut>,
}

impl Comparison {
    /// Removes the files of sides that an agent has left beside a path that it has decided.
    fn remove_sides(&mut self, conflict: &Conflict) {
        let written: BTreeSet<&Vec<u8>> = self.written.iter().collect();
        let removed: BTreeSet<&Vec<u8>> = self.removed.iter().collect();
        let decided = conflict.paths.iter();
        let decided = decided.filter(|path| written.contains(&path.path));
        let files = decided
            .flat_map(Conflicted::side_files)
            .map(|(file, _)| file);
        let files = files.filter(|file| !written.contains(file) && !removed.contains(file));
        let files: Vec<_> = files.cloned().collect();
        self.removed.extend(files);
    }
}

/// Mode and id of each path.
type Tracked = BTreeMap<Vec<u8>, (String, String)>;

/// Tracked files, and all that are present, in the output of [`LIST`].
fn files(listed: &[u8]) -> Result<(Tracked, Vec<Vec<u8>>), Error> {
    let mut lines = parts(listed);
    let file = |line: &[u8]| {
        let tab = line.iter().position(|byte| *byte == b'\t')?;
        let mut words = str::from_utf8(&line[..tab]).ok()?.split(' ');
        let (mode, id) = (words.next()?, words.nth(1)?);
        Some((line[tab + 1..].to_vec(), (mode.to_owned(), id.to_owned())))
    };
    let tracked = lines.by_ref().take_while(|line| *line != BETWEEN);
    let tracked = tracked.map(file).collect::<Option<_>>();
    let tracked = tracked.ok_or(Error::Unexpected("ls-tree"))?;
    Ok((tracked, lines.map(<[u8]>::to_vec).collect()))
}

fn compare(
    folder: &Path,
    tracked: &Tracked,
    present: &[Vec<u8>],
    digits: usize,
) -> io::Result<Comparison> {
    let tree = Tree::open(folder)?;
    let mut found = Comparison::default();
    let tracked_paths = tracked.keys().map(Vec::as_slice);
    let paths: BTreeSet<&[u8]> = tracked_paths
        .chain(present.iter().map(Vec::as_slice))
        .collect();
    for path in paths {
        match difference(&tree, path, tracked, digits)? {
            Difference::None => {}
            Difference::Removed => found.removed.push(path.to_vec()),
            Difference::Written => found.written.push(path.to_vec()),
            Difference::LeftOut(reason) => {
                let path = shown(path);
                found.left_out.push(LeftOut { path, reason });
            }
        }
    }
    found.left_out.truncate(REPORTED);
    Ok(found)
}

enum Difference {
    None,
    Removed,
    Written,
    LeftOut(&'static str),
}

fn difference(
    tree: &Tree,
    path: &[u8],
    tracked: &Tracked,
    digits: usize,
) -> io::Result<Difference> {
    let left_out = |reason| Ok(Difference::LeftOut(reason));
    let former = tracked.get(path);
    let is_submodule = |path: &[u8]| tracked.get(path).is_some_and(|(mode, _)| mode == SUBMODULE);
    let mut above = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
    if is_submodule(path.strip_suffix(b"/").unwrap_or(path)) {
        return Ok(Difference::None);
    }
    if above.any(|(end, _)| is_submodule(&path[..end])) {
        return left_out("it is in a submodule");
    }
    if path.ends_with(b"/") {
        return left_out("it is a repository of its own");
    }
    if former.is_none() && path.split(|byte| *byte == b'/').any(is_git) {
        return left_out("some systems read this name as .git");
    }
    let (mode, id) = match tree.entry(path)? {
        Entry::Missing if former.is_some() => return Ok(Difference::Removed),
        Entry::Missing => return Ok(Difference::None),
        Entry::Refused(reason) => return left_out(reason),
        Entry::File(_, size, _) if size > FILE_BYTES => {
            return left_out("it is larger than 64 MiB");
        }
        Entry::File(file, size, mode) => (mode, tree::blob_id(file, size, digits)?),
        Entry::Link(target) => (
            LINK,
            tree::blob_id(&target[..], target.len() as u64, digits)?,
        ),
    };
    let is_same = former.is_some_and(|(former, blob)| former == mode && Some(blob) == id.as_ref());
    Ok(if is_same {
        Difference::None
    } else {
        Difference::Written
    })
}

/// Names that file systems of other machines take for `.git`: HFS+ leaves characters out, Windows endings.
fn is_git(name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name).to_lowercase();
    let name = name.replace(|c| matches!(c, '\u{200c}'..='\u{206f}' | '\u{feff}'), "");
    let name = name.split(':').next().unwrap_or_default();
    matches!(name.trim_end_matches([' ', '.']), ".git" | "git~1")
}

/// Sends the commit to `fast-import`. Files are read again, each as a whole, so each is committed as it was at a time.
fn send(
    folder: &Path,
    head: Vec<u8>,
    written: &[Vec<u8>],
    to: &mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    // Without a receiver, git has ended; its exit code is the error.
    let send = |piece: Vec<u8>| to.blocking_send(piece).map_err(|_| ());
    let tree = Tree::open(folder)?;
    let mut sent = send(head);
    for path in written {
        let (mode, content) = match tree.entry(path)? {
            Entry::Link(target) => (LINK, Some(target)),
            Entry::File(file, _, mode) => (mode, tree::read_up_to(file, FILE_BYTES)?),
            Entry::Missing | Entry::Refused(_) => continue,
        };
        if let (Some(content), Ok(())) = (content, sent) {
            let modify = format!("M {mode} inline ").into_bytes();
            let data = format!("\ndata {}\n", content.len()).into_bytes();
            sent = send([&modify, &quoted(path), &data, &content, &b"\n"[..]].concat());
        }
    }
    let _ = sent.and_then(|()| send(b"get-mark :1\ndone\n".to_vec()));
    Ok(())
}

/// Path as `fast-import` reads it.
fn quoted(path: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for &byte in path {
        match byte {
            b'"' | b'\\' | 0..b' ' | 0x7f => quoted.extend(format!("\\{byte:03o}").into_bytes()),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'"');
    quoted
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
