//! Paths in which commits or trees differ.

use std::collections::BTreeMap;

use super::conflict::Version;
use super::program::Input;
use super::{CommitId, Error, Repository};

/// Paths that differ, with their versions.
pub(super) type Changes = BTreeMap<Vec<u8>, Change>;

/// Versions of one path; `None`: no file there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) former: Option<Version>,
    pub(super) latter: Option<Version>,
}

/// Options of `diff-tree`. A rename is a removal and an addition.
const OPTIONS: [&str; 4] = ["diff-tree", "-r", "-z", "--no-renames"];

impl Repository {
    /// Paths in which two commits or trees differ.
    pub(super) async fn changes(&self, former: &str, latter: &CommitId) -> Result<Changes, Error> {
        let step = self.step(&OPTIONS).arg(former).arg(latter.as_str());
        let printed = step.bytes().await?;
        let mut parts = fields(&printed);
        let mut changes = Changes::new();
        while let Some(line) = parts.next() {
            changes.extend(change(line, &mut parts));
        }
        Ok(changes)
    }

    /// Paths in which pairs of commits, the former first, differ, in the order of the pairs. One process, however many
    /// pairs there are.
    pub(super) async fn all_changes(
        &self,
        pairs: &[(&CommitId, &CommitId)],
    ) -> Result<Vec<Changes>, Error> {
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let lines = pairs.iter();
        let lines: String = lines
            .map(|(former, latter)| format!("{latter} {former}\n"))
            .collect();
        let step = self.step(&OPTIONS).arg("--stdin").arg("--always");
        let step = step.input(Input::Bytes(lines.into_bytes()));
        let printed = step.bytes().await?;
        let mut parts = fields(&printed);
        let mut all = Vec::new();
        while let Some(line) = parts.next() {
            match (line.first(), all.last_mut()) {
                // The id of the commit, in front of what it differs in.
                (Some(byte), _) if *byte != b':' => all.push(Changes::new()),
                (_, Some(changes)) => changes.extend(change(line, &mut parts)),
                (_, None) => return Err(Error::Unexpected("diff-tree")),
            }
        }
        match all.len() == pairs.len() {
            true => Ok(all),
            false => Err(Error::Unexpected("diff-tree")),
        }
    }

    /// New and former names of the files that a commit has renamed, as a merge sees it.
    pub(super) async fn renames(
        &self,
        former: &CommitId,
        latter: &CommitId,
    ) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Error> {
        let options = ["diff-tree", "-r", "-z", "-M", "-l7000", "--diff-filter=R"];
        let step = self.step(&options).arg(former.as_str());
        let printed = step.arg(latter.as_str()).bytes().await?;
        let mut parts = fields(&printed);
        let mut renames = BTreeMap::new();
        while let (Some(_), Some(old), Some(new)) = (parts.next(), parts.next(), parts.next()) {
            renames.insert(new.to_vec(), old.to_vec());
        }
        Ok(renames)
    }
}

fn fields(printed: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parts = printed.split(|byte| *byte == 0);
    parts.filter(|part| !part.is_empty())
}

/// `:<mode> <mode> <id> <id> <status>`, and the path.
fn change<'a>(
    line: &[u8],
    parts: &mut impl Iterator<Item = &'a [u8]>,
) -> Option<(Vec<u8>, Change)> {
    let line = str::from_utf8(line).ok()?.strip_prefix(':')?;
    let words: Vec<&str> = line.split(' ').collect();
    let [former_mode, latter_mode, former, latter, _] = words[..] else {
        return None;
    };
    let version = |mode: &str, id: &str| {
        let (mode, id) = (mode.to_owned(), id.to_owned());
        (mode != "000000").then_some(Version { mode, id })
    };
    let change = Change {
        former: version(former_mode, former),
        latter: version(latter_mode, latter),
    };
    Some((parts.next()?.to_vec(), change))
}
