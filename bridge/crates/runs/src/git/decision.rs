//! Decisions of an agent: its commit, compared with the tree that it was given.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::blobs::{Batches, next_blob};
use super::changes::Changes;
use super::commit::Basis;
use super::conflict::{Conflict, Conflicted, Form, Kind, Version, has_marker, is_marker};
use super::path::shown;
use super::{Checkout, CommitId, Error, LeftOuts, Message, Repository};

/// Decisions of one round, at most. Each is in events of the run.
const MAX_DECISIONS: usize = 20_000;

/// Version of a path that an agent has decided for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decision {
    /// That of the merge so far. It can be a removal.
    Ours,
    /// That of the input. It can be a removal.
    Theirs,
    /// The marked parts of both, one after the other.
    Both,
    /// A new one.
    Edited,
    /// None, although both sides have one.
    Removed,
}

/// Decision about one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    pub path: String,
    pub kind: Kind,
    pub decision: Decision,
}

/// End of an agent that settles a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub commit: CommitId,
    /// Tree that the agent has begun with.
    pub given: CommitId,
    pub decisions: Vec<Decided>,
    /// `path (kind)` of what is as the agent was given it.
    pub undecided: Vec<String>,
    /// Entries of the folder that are not in the commit, besides ignored ones.
    pub left_out: LeftOuts,
}

impl Checkout {
    /// Notes the commit that an agent begins with in a round, from 0.
    pub async fn begin(&self, round: u32, at: &CommitId) -> Result<(), Error> {
        let name = format!("refs/forge/begun/{}.{round}", self.branch);
        self.repository.set_ref(&name, at).await
    }

    /// Commits what an agent has left in a round, with the input of the conflict as a further parent, and reads its
    /// decisions. The branch does not move. Repeated, it gives the same commit, whatever the folder has then.
    pub async fn settle(
        &self,
        message: &Message,
        round: u32,
        conflict: Option<&Conflict>,
    ) -> Result<Settled, Error> {
        let repository = &self.repository;
        let given = match conflict {
            Some(conflict) => conflict.given.clone(),
            None => self.begun(round).await?,
        };
        let name = format!("refs/forge/settled/{}.{round}", self.branch);
        let (commit, left_out) = match repository.get_ref(&name).await? {
            Some(commit) => {
                let left_out = self.left_out(&commit).await?;
                (commit, left_out)
            }
            None => {
                let parents: Vec<_> = conflict
                    .map(|conflict| conflict.input.commit.clone())
                    .into_iter()
                    .collect();
                let basis = Basis {
                    conflict,
                    name: &name,
                };
                let committed = self.commit_on(message, &parents, Some(basis)).await?;
                repository.set_ref(&name, &committed.commit).await?;
                (committed.commit, committed.left_out)
            }
        };
        let changes = repository.changes(given.as_str(), &commit).await?;
        let (mut decisions, mut undecided) = (Vec::new(), Vec::new());
        let mut named = BTreeSet::new();
        if let Some(conflict) = conflict {
            named = conflict
                .paths
                .iter()
                .map(|path| path.path.clone())
                .collect();
            let sides = conflict.paths.iter().flat_map(Conflicted::side_files);
            // One that was changed and kept is a file of the agent.
            named.extend(sides.map(|(file, _)| file.clone()).filter(|file| {
                let change = changes.get(file);
                change.is_none_or(|change| change.latter.is_none())
            }));
            let decided = repository.decided(conflict, &changes).await?;
            for (path, decision) in conflict.paths.iter().zip(decided) {
                match decision {
                    Some(decision) => decisions.push(Decided {
                        path: shown(&path.path),
                        kind: path.kind,
                        decision,
                    }),
                    None => undecided.push(path.to_string()),
                }
            }
        }
        let others = changes.iter().filter(|(path, _)| !named.contains(*path));
        decisions.extend(others.map(|(path, change)| Decided {
            path: shown(path),
            kind: Kind::Unconflicted,
            decision: match change.latter {
                Some(_) => Decision::Edited,
                None => Decision::Removed,
            },
        }));
        if decisions.len() > MAX_DECISIONS {
            let many = format!("the change of {} files in a merge", decisions.len());
            return Err(Error::TooLarge(many));
        }
        Ok(Settled {
            commit,
            given,
            decisions,
            undecided,
            left_out,
        })
    }

    /// Commit that the agent of a round has begun with. Rounds that bring the results of calls continue an earlier one.
    async fn begun(&self, round: u32) -> Result<CommitId, Error> {
        for round in (0..=round).rev() {
            let name = format!("refs/forge/begun/{}.{round}", self.branch);
            if let Some(commit) = self.repository.get_ref(&name).await? {
                return Ok(commit);
            }
        }
        Err(Error::NoRef(self.branch.to_string()))
    }
}

impl Repository {
    /// Decision about each path of a conflict; `None`: it is undecided.
    async fn decided(
        &self,
        conflict: &Conflict,
        changes: &Changes,
    ) -> Result<Vec<Option<Decision>>, Error> {
        let mut found: Vec<_> = conflict
            .paths
            .iter()
            .map(|path| by_version(path, changes))
            .collect();
        let open = conflict.paths.iter().enumerate();
        let open: Vec<_> = open
            .filter_map(|(number, path)| {
                let Form::Marked(merged) = &path.form else {
                    return None;
                };
                let latter = changes.get(&path.path)?.latter.as_ref()?;
                let ids = [latter, merged, path.ours.as_ref()?, path.theirs.as_ref()?];
                Some((number, ids.map(|version| version.id.clone())))
            })
            .collect();
        let mut batches = Batches::new(open, |(_, ids)| ids.to_vec());
        while let Some((open, printed)) = batches.next(self).await? {
            let mut rest = &printed[..];
            for (number, _) in open {
                let mut next = || next_blob(&mut rest).ok_or(Error::Unexpected("cat-file"));
                let [left, merged, ours, theirs] = [next()?, next()?, next()?, next()?];
                let markers = Markers::of(conflict);
                found[number] = match markers.are_in(left) {
                    true => None,
                    // A whole side is known by its id.
                    false if found[number] != Some(Decision::Edited) => found[number],
                    false => Some(markers.decision(left, merged, ours, theirs)),
                };
            }
        }
        Ok(found)
    }
}

/// Decision, as far as the versions of a path tell.
fn by_version(path: &Conflicted, changes: &Changes) -> Option<Decision> {
    let change = changes.get(&path.path);
    let latter = change.and_then(|change| change.latter.as_ref());
    let is_marked = matches!(path.form, Form::Marked(_));
    if is_marked {
        // As it was given.
        change?;
    } else if latter.is_none() {
        let is_left = |file: &Vec<u8>| {
            let change = changes.get(file);
            change.is_none_or(|change| change.latter.is_some())
        };
        if path.side_files().any(|(file, _)| is_left(file)) {
            return None;
        }
    }
    let is = |side: &Option<Version>| match (latter, side) {
        // Git has merged the modes.
        (Some(latter), Some(side)) if is_marked => latter.id == side.id,
        (latter, side) => latter == side.as_ref(),
    };
    Some(match latter {
        _ if is(&path.ours) => Decision::Ours,
        _ if is(&path.theirs) => Decision::Theirs,
        None => Decision::Removed,
        Some(_) => Decision::Edited,
    })
}

/// Labels of the markers of a conflict.
struct Markers {
    ours: Vec<u8>,
    theirs: Vec<u8>,
}

impl Markers {
    fn of(conflict: &Conflict) -> Self {
        Self {
            ours: format!(" {}", conflict.onto).into_bytes(),
            theirs: format!(" {}", conflict.input.commit).into_bytes(),
        }
    }

    fn are_in(&self, content: &[u8]) -> bool {
        has_marker(content, b'<', &self.ours) || has_marker(content, b'>', &self.theirs)
    }

    fn decision(&self, left: &[u8], merged: &[u8], ours: &[u8], theirs: &[u8]) -> Decision {
        let taken = |order: &[usize]| self.taken(merged, [ours, theirs], order);
        for (order, decision) in [
            (&[0][..], Decision::Ours),
            (&[1], Decision::Theirs),
            (&[0, 1], Decision::Both),
            (&[1, 0], Decision::Both),
        ] {
            if taken(order) == left {
                return decision;
            }
        }
        Decision::Edited
    }

    /// The content in which these sides of each marked part stay, in this order.
    fn taken(&self, merged: &[u8], sides: [&[u8]; 2], order: &[usize]) -> Vec<u8> {
        let mut taken = Vec::with_capacity(merged.len());
        let mut lines = merged.split_inclusive(|byte| *byte == b'\n');
        while let Some(line) = lines.next() {
            if !is_marker(line.trim_ascii_end(), b'<', &self.ours) {
                taken.extend_from_slice(line);
                continue;
            }
            let is_end = |line: &[u8]| is_marker(line.trim_ascii_end(), b'>', &self.theirs);
            let part: Vec<&[u8]> = lines.by_ref().take_while(|line| !is_end(line)).collect();
            let signs = line.iter().take_while(|byte| **byte == b'<').count();
            let between = vec![b'='; signs];
            // A document has such lines, too: in the right place, each part is in its side.
            let places = (0..part.len()).filter(|at| part[*at].trim_ascii_end() == between);
            let mut splits = places.map(|at| [part[..at].concat(), part[at + 1..].concat()]);
            let first = splits.next().unwrap_or_default();
            let fits = |split: &[Vec<u8>; 2]| {
                let both = split.iter().zip(sides);
                both.into_iter().all(|(part, side)| is_in(part, side))
            };
            let split = match fits(&first) {
                true => first,
                false => splits.find(fits).unwrap_or(first),
            };
            order
                .iter()
                .for_each(|side| taken.extend_from_slice(&split[*side]));
        }
        taken
    }
}

/// True if the part is whole lines of the content.
fn is_in(part: &[u8], content: &[u8]) -> bool {
    let starts = content.iter().enumerate();
    let starts = starts
        .filter(|(_, byte)| **byte == b'\n')
        .map(|(at, _)| at + 1);
    let mut starts = std::iter::once(0).chain(starts);
    // Git ends the last line of a side if it has no end.
    let part = part.strip_suffix(b"\n").unwrap_or(part);
    starts.any(|at| content[at..].starts_with(part))
}

#[cfg(test)]
mod tests {
    //! Decisions about one path, without a repository.

    use super::super::changes::Change;
    use super::*;

    const OURS: &str = "head\n=======\nours\n=======\nx\ntail\n";
    const THEIRS: &str = "head\ntheirs\n=======\ny\ntail\n";

    #[test]
    fn the_side_that_stays_is_found_also_between_lines_that_look_like_markers() {
        let [onto, input] = ["a", "b"].map(|digit| digit.repeat(40));
        let markers = Markers {
            ours: format!(" {onto}").into_bytes(),
            theirs: format!(" {input}").into_bytes(),
        };
        let merged = format!(
            "head\n<<<<<<< {onto}\n=======\nours\n=======\nx\n=======\ntheirs\n=======\ny\n>>>>>>> {input}\ntail\n"
        );
        let both = "head\n=======\nours\n=======\nx\ntheirs\n=======\ny\ntail\n";
        let swapped = "head\ntheirs\n=======\ny\n=======\nours\n=======\nx\ntail\n";
        let half = format!("head\n<<<<<<< {onto}\nours\ntail\n");
        for (left, wanted) in [
            (OURS, Some(Decision::Ours)),
            (THEIRS, Some(Decision::Theirs)),
            (both, Some(Decision::Both)),
            (swapped, Some(Decision::Both)),
            ("<<<<<<< HEAD\n=======\n>>>>>>> x\n", Some(Decision::Edited)),
            ("", Some(Decision::Edited)),
            (&*merged, None),
            (&*half, None),
            (&*format!("x\n>>>>>>> {input}\n"), None),
        ] {
            let left = left.as_bytes();
            let [merged, ours, theirs] = [&*merged, OURS, THEIRS].map(str::as_bytes);
            let found = markers.decision(left, merged, ours, theirs);
            let found = (!markers.are_in(left)).then_some(found);
            assert_eq!(found, wanted, "{}", String::from_utf8_lossy(left));
        }
    }

    fn version(id: &str) -> Option<Version> {
        let (mode, id) = ("100644".to_owned(), id.to_owned());
        (!id.is_empty()).then_some(Version { mode, id })
    }

    #[test]
    fn a_path_without_markers_is_decided_if_it_is_written_or_all_its_sides_are_gone() {
        // Sides; then what is left of NAME, NAME.ours and NAME.theirs: an id, nothing, or `=` as it was.
        for (ours, theirs, left, wanted) in [
            ("o", "t", ["=", "=", "="], None),
            ("o", "t", ["=", "", "="], None),
            ("o", "t", ["=", "x", ""], None),
            ("o", "t", ["o", "", ""], Some(Decision::Ours)),
            ("o", "t", ["t", "=", "="], Some(Decision::Theirs)),
            ("o", "t", ["x", "", "="], Some(Decision::Edited)),
            ("o", "t", ["=", "", ""], Some(Decision::Removed)),
            ("o", "", ["=", "=", ""], None),
            ("o", "", ["=", "", ""], Some(Decision::Theirs)),
            ("", "t", ["=", "", ""], Some(Decision::Ours)),
            ("", "t", ["t", "", "="], Some(Decision::Theirs)),
        ] {
            let names = ["n", "n.ours", "n.theirs"].map(|name| name.as_bytes().to_vec());
            let path = Conflicted {
                path: names[0].clone(),
                kind: Kind::Binary,
                ours: version(ours),
                theirs: version(theirs),
                form: Form::Sides {
                    ours: (!ours.is_empty()).then(|| names[1].clone()),
                    theirs: (!theirs.is_empty()).then(|| names[2].clone()),
                },
            };
            let formers = [version(""), version(ours), version(theirs)];
            let all = names.into_iter().zip(formers).zip(left);
            let changed = all.filter(|(_, left)| *left != "=");
            let changes: Changes = changed
                .map(|((name, former), left)| {
                    let latter = version(left);
                    (name, Change { former, latter })
                })
                .collect();
            assert_eq!(
                by_version(&path, &changes),
                wanted,
                "{ours} {theirs} {left:?}"
            );
        }
    }
}
