//! Conflict of a merge, path by path, and the tree that an agent is given to decide it.
//!
//! Git marks what it can between markers that name the full ids of both commits, so no line of a document is one. Each
//! side of anything else is a file of its own, `NAME.ours` and `NAME.theirs`, and NAME is absent until it is decided.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::blobs::{Batches, next_blob};
use super::checkout::parts;
use super::merge::MERGE_TREE;
use super::path::shown;
use super::program;
use super::tree::{LINK, SUBMODULE};
use super::{CommitId, Error, Input, Repository};

/// Paths of one conflict, at most. Each is in events of the run.
const MAX_PATHS: usize = 10_000;
/// Longest name of a file.
const NAME_BYTES: usize = 255;

/// Replaces entries of a tree by those of the input, and prints the id of the result.
const EDIT_TREE: &str = r#"export GIT_INDEX_FILE="$GIT_DIR/given-$$"
git "$@" && git update-index -z --index-info && git write-tree
code=$?; rm -f "$GIT_INDEX_FILE"; exit $code"#;

/// First input that does not merge by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Commit that contains the inputs before it.
    pub onto: CommitId,
    pub input: Input,
    /// Tree that the agent begins with. It follows from the two commits.
    pub given: CommitId,
    /// Paths to be decided, in their order.
    pub paths: Vec<Conflicted>,
}

/// Path that both sides have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflicted {
    pub path: Vec<u8>,
    pub kind: Kind,
    /// `None`: the side has no file there. It can have a folder.
    pub ours: Option<Version>,
    pub theirs: Option<Version>,
    pub form: Form,
}

/// File or symlink as a commit has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub mode: String,
    pub id: String,
}

/// Form in which an agent is given a conflicted path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// Between markers, in the file itself.
    Marked(Version),
    /// Files with the sides that exist.
    Sides {
        ours: Option<Vec<u8>>,
        theirs: Option<Vec<u8>>,
    },
}

/// Kind of a conflict, the most specific first where git reports several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    #[serde(rename = "submodule")]
    Submodule,
    /// A file where the other side has a folder.
    #[serde(rename = "file/directory")]
    FileDirectory,
    /// A file where the other side has a symlink.
    #[serde(rename = "distinct types")]
    DistinctTypes,
    /// Renamed differently; each name is a path of its own.
    #[serde(rename = "rename/rename")]
    RenameRename,
    #[serde(rename = "rename/delete")]
    RenameDelete,
    #[serde(rename = "modify/delete")]
    ModifyDelete,
    #[serde(rename = "binary")]
    Binary,
    #[serde(rename = "symlink")]
    Symlink,
    /// One content, executable on one side.
    #[serde(rename = "mode")]
    Mode,
    #[serde(rename = "add/add")]
    AddAdd,
    #[serde(rename = "contents")]
    Contents,
    /// No conflict: changed by the agent that settled others.
    #[serde(rename = "unconflicted")]
    Unconflicted,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Submodule => "submodule",
            Self::FileDirectory => "file/directory",
            Self::DistinctTypes => "distinct types",
            Self::RenameRename => "rename/rename",
            Self::RenameDelete => "rename/delete",
            Self::ModifyDelete => "modify/delete",
            Self::Binary => "binary",
            Self::Symlink => "symlink",
            Self::Mode => "mode",
            Self::AddAdd => "add/add",
            Self::Contents => "contents",
            Self::Unconflicted => "unconflicted",
        }
    }

    /// Kind in the words of git; `None` for a notice, or a word that says no more than that there is a conflict.
    fn told(word: &[u8]) -> Option<Self> {
        let word = str::from_utf8(word).ok()?.strip_prefix("CONFLICT")?.trim();
        Some(match word.trim_start_matches('(').trim_end_matches(')') {
            "file/directory" => Self::FileDirectory,
            "distinct modes" | "distinct types" => Self::DistinctTypes,
            "rename/rename" => Self::RenameRename,
            "rename/delete" => Self::RenameDelete,
            "modify/delete" => Self::ModifyDelete,
            "binary" => Self::Binary,
            word if word.starts_with("submodule") => Self::Submodule,
            _ => return None,
        })
    }
}

impl Conflict {
    /// `path (kind)` of each path.
    pub fn names(&self) -> Vec<String> {
        let paths = self.paths.iter();
        paths.map(|path| path.to_string()).collect()
    }
}

impl std::fmt::Display for Conflicted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", shown(&self.path), self.kind.name())
    }
}

impl Conflicted {
    /// Files of the sides in the folder of the agent.
    pub fn side_files(&self) -> impl Iterator<Item = (&Vec<u8>, &Version)> {
        let (ours, theirs) = match &self.form {
            Form::Marked(_) => (None, None),
            Form::Sides { ours, theirs } => (ours.as_ref(), theirs.as_ref()),
        };
        let sides = [(ours, &self.ours), (theirs, &self.theirs)];
        let both = sides.into_iter();
        both.filter_map(|(file, side)| Some((file?, side.as_ref()?)))
    }
}

impl Repository {
    /// The conflict of a merge. The same commits have the same conflict, with the same tree.
    pub async fn conflict(&self, onto: CommitId, input: &Input) -> Result<Conflict, Error> {
        let step = self.step(&MERGE_TREE).arg("--messages").arg("-z");
        let step = step.arg(onto.as_str()).arg(input.commit.as_str());
        let output = step.run().await?;
        if output.code != 1 {
            return Err(output.failure());
        }
        let told = Told::read(&output.stdout).ok_or(Error::Unexpected("merge-tree"))?;
        let list = ["ls-tree", "-r", "-z", "--full-tree", told.tree.as_str()];
        let merged = entries(&self.step(&list).bytes().await?);
        let merged = merged.ok_or(Error::Unexpected("ls-tree"))?;
        let mut paths = told.paths();
        if paths.is_empty() {
            return Err(Error::Unexpected("merge-tree"));
        }
        let submodules = paths.iter().filter(|path| path.kind == Kind::Submodule);
        let submodules: Vec<_> = submodules.map(|path| shown(&path.path)).collect();
        if !submodules.is_empty() {
            return Err(Error::Submodules(submodules));
        }
        if paths.len() > MAX_PATHS {
            let many = format!(
                "the conflict with {}, in {} files,",
                input.branch,
                paths.len()
            );
            return Err(Error::TooLarge(many));
        }
        self.find_marked(&onto, &merged, &mut paths).await?;
        let given = self.given(&told, &merged, &mut paths).await?;
        Ok(Conflict {
            onto,
            input: input.clone(),
            given,
            paths,
        })
    }

    /// Finds the files with markers of this merge.
    async fn find_marked(
        &self,
        onto: &CommitId,
        merged: &Entries,
        paths: &mut [Conflicted],
    ) -> Result<(), Error> {
        let mut found = Vec::new();
        for (number, path) in paths.iter().enumerate() {
            if let (Some(ours), Some(theirs), Some(at)) =
                (&path.ours, &path.theirs, merged.get(&path.path))
            {
                let is_side = at.id == ours.id || at.id == theirs.id;
                if at.mode != LINK && !is_side {
                    found.push((number, at.clone()));
                }
            }
        }
        let marker = format!(" {onto}");
        let mut batches = Batches::new(found, |(_, at)| vec![at.id.clone()]);
        while let Some((found, printed)) = batches.next(self).await? {
            let mut rest = &printed[..];
            for (number, at) in found {
                let content = next_blob(&mut rest).ok_or(Error::Unexpected("cat-file"))?;
                if has_marker(content, b'<', marker.as_bytes()) {
                    paths[number].form = Form::Marked(at);
                }
            }
        }
        Ok(())
    }

    /// Tree of the merge, in which what has no markers is replaced by the sides.
    async fn given(
        &self,
        told: &Told,
        merged: &Entries,
        paths: &mut [Conflicted],
    ) -> Result<CommitId, Error> {
        let mut taken: BTreeSet<Vec<u8>> = BTreeSet::new();
        for path in merged.keys() {
            let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            taken.extend(ends.map(|(end, _)| path[..end].to_vec()));
            taken.insert(path.clone());
        }
        let none = "0".repeat(told.tree.as_str().len());
        let mut edits = Vec::new();
        let mut edit = |mode: &str, id: &str, path: &[u8]| {
            edits.extend(format!("{mode} {id}\t").into_bytes());
            edits.extend([path, b"\0"].concat());
        };
        for (name, ..) in &told.stages {
            if told.moved.contains_key(name) {
                edit("0", &none, name);
            }
        }
        for path in paths.iter_mut() {
            if matches!(path.form, Form::Marked(_)) {
                continue;
            }
            if merged.contains_key(&path.path) {
                edit("0", &none, &path.path);
            }
            let mut file = |side: &Option<Version>, word: &str| {
                let side = side.as_ref()?;
                let name = side_name(&path.path, word, &mut taken);
                edit(&side.mode, &side.id, &name);
                Some(name)
            };
            let ours = file(&path.ours, "ours");
            let theirs = file(&path.theirs, "theirs");
            path.form = Form::Sides { ours, theirs };
        }
        if edits.is_empty() {
            return Ok(told.tree.clone());
        }
        let step = self.step(&["read-tree", told.tree.as_str()]);
        let step = step.script(EDIT_TREE).input(program::Input::Bytes(edits));
        let id = CommitId::parse(&step.text().await?);
        id.ok_or(Error::Unexpected("write-tree"))
    }
}

/// Name of the file of a side, beside its path.
fn side_name(path: &[u8], word: &str, taken: &mut BTreeSet<Vec<u8>>) -> Vec<u8> {
    let start = path.iter().rposition(|byte| *byte == b'/');
    let (folder, name) = path.split_at(start.map_or(0, |at| at + 1));
    let fits = name.len() + word.len() + 8 <= NAME_BYTES;
    let name = if fits { name } else { b"conflict" };
    let names = (1..).map(|number| match number {
        1 => format!(".{word}"),
        number => format!(".{word}.{number}"),
    });
    let mut names = names.map(|end| [folder, name, end.as_bytes()].concat());
    let free = names.find(|name| taken.insert(name.clone()));
    free.expect("the names do not end")
}

pub(super) type Entries = BTreeMap<Vec<u8>, Version>;

/// Output of `ls-tree -r -z`.
fn entries(listed: &[u8]) -> Option<Entries> {
    let entry = |line: &[u8]| {
        let tab = line.iter().position(|byte| *byte == b'\t')?;
        let mut words = str::from_utf8(&line[..tab]).ok()?.split(' ');
        let (mode, id) = (words.next()?.to_owned(), words.nth(1)?.to_owned());
        Some((line[tab + 1..].to_vec(), Version { mode, id }))
    };
    parts(listed).map(entry).collect()
}

/// True if a line is a marker: one sign several times, and this label, alone or in front of a path. The number of signs
/// grows in conflicts of renames.
pub(super) fn has_marker(content: &[u8], sign: u8, label: &[u8]) -> bool {
    content
        .split(|byte| *byte == b'\n')
        .any(|line| is_marker(line, sign, label))
}

pub(super) fn is_marker(line: &[u8], sign: u8, label: &[u8]) -> bool {
    let signs = line.iter().take_while(|byte| **byte == sign).count();
    let rest = line[signs..].strip_prefix(label);
    signs > 0 && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b':' | b'\r')))
}

/// Output of `merge-tree -z`: the tree, the stages of conflicted paths, and messages.
struct Told {
    tree: CommitId,
    /// Path, stage, version.
    stages: Vec<(Vec<u8>, u8, Version)>,
    kinds: BTreeMap<Vec<u8>, Kind>,
    /// Real paths of files that git has moved out of the way of a folder, or of another type.
    moved: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Told {
    fn read(output: &[u8]) -> Option<Self> {
        let mut parts = output.split(|byte| *byte == 0);
        let tree = CommitId::parse(str::from_utf8(parts.next()?).ok()?)?;
        let mut told = Self {
            tree,
            stages: Vec::new(),
            kinds: BTreeMap::new(),
            moved: BTreeMap::new(),
        };
        for line in parts.by_ref().take_while(|part| !part.is_empty()) {
            let tab = line.iter().position(|byte| *byte == b'\t')?;
            let mut words = str::from_utf8(&line[..tab]).ok()?.split(' ');
            let (mode, id) = (words.next()?.to_owned(), words.next()?.to_owned());
            let stage = words.next()?.parse().ok()?;
            let path = line[tab + 1..].to_vec();
            told.stages.push((path, stage, Version { mode, id }));
        }
        while let Some(count) = parts.next().filter(|part| !part.is_empty()) {
            let count: usize = str::from_utf8(count).ok()?.parse().ok()?;
            let paths: Vec<_> = parts.by_ref().take(count).map(<[u8]>::to_vec).collect();
            let kind = Kind::told(parts.next()?);
            parts.next()?;
            match (kind, &paths[..]) {
                (Some(Kind::FileDirectory), [new, old, ..]) => {
                    told.moved.insert(new.clone(), old.clone());
                }
                (Some(Kind::DistinctTypes), [old, new @ ..]) => {
                    let new = new.iter().filter(|new| *new != old);
                    told.moved.extend(new.map(|new| (new.clone(), old.clone())));
                }
                _ => {}
            }
            for path in paths {
                if let Some(kind) = kind {
                    let known = told.kinds.entry(path).or_insert(kind);
                    *known = kind.min(*known);
                }
            }
        }
        Some(told)
    }

    /// Path that the sides know.
    fn real<'a>(&'a self, mut path: &'a Vec<u8>) -> &'a Vec<u8> {
        // A file of another type can be in the way of a folder, too.
        for _ in 0..2 {
            path = self.moved.get(path).unwrap_or(path);
        }
        path
    }

    /// Paths that need a decision. One that only the common ancestor has needs none.
    fn paths(&self) -> Vec<Conflicted> {
        let mut found: BTreeMap<&Vec<u8>, (bool, Conflicted)> = BTreeMap::new();
        for (name, stage, version) in &self.stages {
            let path = self.real(name);
            let (has_base, one) = found.entry(path).or_insert_with(|| {
                let (path, kind) = (path.clone(), Kind::Contents);
                let (ours, theirs) = (None, None);
                let form = Form::Sides { ours, theirs };
                let (ours, theirs) = (None, None);
                let one = Conflicted {
                    path,
                    kind,
                    ours,
                    theirs,
                    form,
                };
                (false, one)
            });
            match stage {
                2 => one.ours = Some(version.clone()),
                3 => one.theirs = Some(version.clone()),
                _ => *has_base = true,
            }
            for path in [name, path] {
                let kind = self.kinds.get(path).copied();
                one.kind = kind.map_or(one.kind, |kind| kind.min(one.kind));
            }
            if version.mode == SUBMODULE {
                one.kind = Kind::Submodule;
            }
        }
        let found = found.into_values();
        let found = found.filter(|(_, one)| one.ours.is_some() || one.theirs.is_some());
        let named = found.map(|(has_base, mut one)| {
            if let (Some(ours), Some(theirs), Kind::Contents) = (&one.ours, &one.theirs, one.kind) {
                one.kind = match (ours.id == theirs.id, ours.mode == LINK) {
                    (true, _) => Kind::Mode,
                    (_, true) => Kind::Symlink,
                    _ if !has_base => Kind::AddAdd,
                    _ => Kind::Contents,
                };
            }
            one
        });
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_with_the_id_of_the_merge_is_a_marker() {
        let marker = |line: &[u8]| has_marker(line, b'<', b" abc");
        for line in [
            "<<<<<<< abc",
            "a\n<<<<<<< abc\r\nb",
            "<<<<<<<<< abc:old name",
        ] {
            assert!(marker(line.as_bytes()), "{line:?}");
        }
        for line in [
            "<<<<<<< ",
            "<<<<<<< abcd",
            " <<<<<<< abc",
            "======= abc",
            " abc",
        ] {
            assert!(!marker(line.as_bytes()), "{line:?}");
        }
    }

    #[test]
    fn a_side_has_a_name_that_is_free_and_fits() {
        let long = "n".repeat(255);
        for (path, taken, wanted) in [
            ("a/b.png", "", "a/b.png.ours"),
            ("b.png", "b.png.ours", "b.png.ours.2"),
            (&format!("a/{long}"), "", "a/conflict.ours"),
        ] {
            let mut taken = BTreeSet::from([taken.as_bytes().to_vec()]);
            let name = side_name(path.as_bytes(), "ours", &mut taken);
            assert_eq!(String::from_utf8(name).unwrap(), wanted);
        }
    }
}
