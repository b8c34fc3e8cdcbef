//! Proof that a commit contains its inputs: their commits, and each path that they have changed.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::changes::{Change, Changes};
use super::merge::Added;
use super::path::shown;
use super::{CommitId, Error, Input, Repository};

/// Missing paths that an error names.
const NAMED: usize = 20;

/// Evidence that a commit contains all inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Commit that was merged onto; the result itself if it contained all inputs already.
    pub onto: CommitId,
    pub result: CommitId,
    pub claims: Vec<Claim>,
}

/// Evidence for one input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub input: Input,
    pub presence: Presence,
    /// Number of paths that the input has changed since it left `onto`. In the result each is as in the input, or was
    /// changed by another input or `onto` too, or was decided.
    pub changed: usize,
}

/// Form in which an input is contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Its commit is an ancestor.
    Ancestor,
    /// Each of its commits has a counterpart with the same change.
    Patch,
}

impl Repository {
    /// Keeps the commit that a result was merged onto, for its proof after a restart.
    pub async fn keep_onto(&self, result: &CommitId, onto: &CommitId) -> Result<(), Error> {
        match result == onto {
            true => Ok(()),
            false => self.set_ref(&merged_onto(result), onto).await,
        }
    }

    /// Proves that a commit contains all inputs, or names what it does not contain. `decided` are the paths that an
    /// agent has decided.
    pub async fn prove(
        &self,
        result: &CommitId,
        inputs: &[Input],
        decided: &BTreeSet<String>,
    ) -> Result<Proof, Error> {
        let onto = self.get_ref(&merged_onto(result)).await?;
        let onto = onto.unwrap_or_else(|| result.clone());
        let commits = inputs.iter().map(|input| &input.commit);
        let history = History(self.added(&onto, commits.chain([result])).await?);
        let of_result = history.reached(result);
        let (mut present, mut missing) = (Vec::new(), Vec::new());
        for input in inputs {
            let is_new = history.0.contains_key(input.commit.as_str());
            if !is_new || of_result.contains(input.commit.as_str()) {
                present.push((input, Presence::Ancestor));
            } else if self.patches(result, &input.commit).await? {
                present.push((input, Presence::Patch));
            } else {
                missing.push(format!("{} ({})", input.branch, input.commit));
            }
        }
        let paths = Paths::read(self, &history, result, &onto, inputs).await?;
        let mut claims = Vec::new();
        for (input, presence) in present {
            let line = Line::of(&history, &paths, &input.commit);
            let changed = paths.changed(&line);
            let mut lost: Vec<_> = changed
                .iter()
                .filter(|(path, change)| !paths.is_kept(&line, path, change))
                .filter(|(path, _)| !decided.contains(&shown(path)))
                .collect();
            if let Some(fork) = line.forks.first()
                && lost.iter().any(|(_, change)| change.former.is_none())
            {
                let renames = self.renames(&paths.forks[*fork], &input.commit).await?;
                // What others have changed in a file follows its new name.
                lost.retain(|(path, _)| {
                    let former = renames.get(*path);
                    former.is_none_or(|former| !paths.others(&line, former))
                });
            }
            let lost = lost.iter().map(|(path, _)| path);
            missing.extend(lost.map(|path| format!("{} of {}", shown(path), input.branch)));
            claims.push(Claim {
                input: input.clone(),
                presence,
                changed: changed.len(),
            });
        }
        if missing.is_empty() {
            let result = result.clone();
            return Ok(Proof {
                onto,
                result,
                claims,
            });
        }
        let further = missing.len().saturating_sub(NAMED);
        missing.truncate(NAMED);
        missing.extend((further > 0).then(|| format!("{further} more")));
        Err(Error::NotProved(missing))
    }

    /// True if each commit of the input has a counterpart in the result. A merge has none: what was decided in it is
    /// in no patch.
    async fn patches(&self, result: &CommitId, input: &CommitId) -> Result<bool, Error> {
        let range = format!("{result}..{input}");
        let merges = self
            .step(&["rev-list", "--count", "--merges", &range])
            .text()
            .await?;
        let patches = self
            .step(&["cherry", result.as_str(), input.as_str()])
            .text()
            .await?;
        let all = !patches.is_empty() && patches.lines().all(|line| line.starts_with('-'));
        Ok(all && merges == "0")
    }
}

/// Ref that keeps the commit that a result was merged onto.
fn merged_onto(result: &CommitId) -> String {
    format!("refs/forge/onto/{result}")
}

/// Commits of the result and its inputs that are not in the commit that was merged onto.
struct History(HashMap<String, Added>);

impl History {
    /// A commit and those that it contains.
    fn reached<'a>(&'a self, from: &'a CommitId) -> HashSet<&'a str> {
        let (mut reached, mut open) = (HashSet::new(), vec![from.as_str()]);
        while let Some(id) = open.pop() {
            if let Some(commit) = self.0.get(id)
                && reached.insert(id)
            {
                open.extend(commit.parents.iter().map(String::as_str));
            }
        }
        reached
    }

    /// Commits at which one has left the commit that was merged onto.
    fn forks(&self, of: &CommitId) -> BTreeSet<CommitId> {
        let reached = self.reached(of);
        let parents = reached.iter().filter_map(|id| self.0.get(*id));
        let parents = parents.flat_map(|commit| &commit.parents);
        let outside = parents.filter(|id| !self.0.contains_key(*id));
        outside.filter_map(|id| CommitId::parse(id)).collect()
    }
}

/// Changes of all commits of a proof since each of the forks.
struct Paths<'a> {
    forks: Vec<CommitId>,
    /// The result, the commit that was merged onto, and the inputs.
    commits: Vec<&'a CommitId>,
    /// For each fork, those of each commit.
    since: Vec<Vec<Changes>>,
}

const RESULT: usize = 0;
const ONTO: usize = 1;
const INPUTS: usize = 2;

/// An input beside the others.
struct Line {
    commit: usize,
    forks: Vec<usize>,
    /// Inputs that it does not contain, each with the last inputs that both contain.
    others: Vec<(usize, Vec<usize>)>,
}

impl Line {
    fn of(history: &History, paths: &Paths<'_>, input: &CommitId) -> Self {
        let forks = history.forks(input);
        let forks = forks.iter().filter_map(|fork| {
            let mut all = paths.forks.iter();
            all.position(|one| one == fork)
        });
        let mut inputs = paths.commits.iter().enumerate().skip(INPUTS);
        let own = history.reached(input);
        let contains = |all: &HashSet<&str>, commit: usize| {
            let commit = paths.commits.get(commit);
            commit.is_some_and(|commit| all.contains(commit.as_str()))
        };
        let others = inputs.clone().filter(|(other, _)| !contains(&own, *other));
        let others = others.map(|(other, commit)| {
            let reached = history.reached(commit);
            let shared = inputs.clone().map(|(number, _)| number);
            let shared = shared.filter(|one| contains(&own, *one) && contains(&reached, *one));
            let shared: Vec<usize> = shared.collect();
            let is_last = |one: &usize| {
                let mut later = shared.iter().filter(|later| *later != one);
                let is_in = |later: &usize| {
                    let later = paths.commits.get(*later);
                    later.is_some_and(|later| contains(&history.reached(later), *one))
                };
                !later.any(is_in)
            };
            let last = shared.iter().copied().filter(is_last).collect();
            (other, last)
        });
        Self {
            forks: forks.collect(),
            others: others.collect(),
            commit: inputs
                .find(|(_, one)| **one == input)
                .map_or(INPUTS, |(number, _)| number),
        }
    }
}

impl<'a> Paths<'a> {
    async fn read(
        repository: &Repository,
        history: &History,
        result: &'a CommitId,
        onto: &'a CommitId,
        inputs: &'a [Input],
    ) -> Result<Self, Error> {
        let inputs = inputs.iter().map(|input| &input.commit);
        let forks: BTreeSet<_> = inputs.clone().flat_map(|one| history.forks(one)).collect();
        let forks: Vec<_> = forks.into_iter().collect();
        let commits: Vec<_> = [result, onto].into_iter().chain(inputs).collect();
        let of = |fork| commits.iter().map(move |commit| (fork, *commit));
        let pairs: Vec<_> = forks.iter().flat_map(of).collect();
        let mut all = repository.all_changes(&pairs).await?.into_iter();
        let since = forks.iter();
        let since = since.map(|_| all.by_ref().take(commits.len()).collect());
        Ok(Self {
            since: since.collect(),
            forks,
            commits,
        })
    }

    /// Paths that an input itself has changed: they differ from each commit that it has left.
    fn changed(&self, line: &Line) -> Vec<(&Vec<u8>, &Change)> {
        let Some((first, rest)) = line.forks.split_first() else {
            return Vec::new();
        };
        let changes = self.since[*first][line.commit].iter();
        let own = changes.filter(|(path, _)| {
            let mut rest = rest.iter();
            rest.all(|fork| self.since[*fork][line.commit].contains_key(*path))
        });
        own.collect()
    }

    /// True if a path is in the result as in the input, or others have changed it too.
    fn is_kept(&self, line: &Line, path: &[u8], change: &Change) -> bool {
        let is_same = line.forks.first().is_some_and(|fork| {
            let found = self.since[*fork][RESULT].get(path);
            found.is_some_and(|found| found.latter == change.latter)
        });
        is_same || self.others(line, path)
    }

    /// True if the commit that was merged onto has changed a path too, or another input has since both left the inputs
    /// that both contain.
    fn others(&self, line: &Line, path: &[u8]) -> bool {
        let has_changed = |commit: usize| {
            let mut forks = line.forks.iter();
            forks.any(|fork| self.since[*fork][commit].contains_key(path))
        };
        let version = |commit: usize| {
            let fork = line.forks.first()?;
            Some(&self.since[*fork][commit].get(path)?.latter)
        };
        let mut others = line.others.iter();
        has_changed(ONTO)
            || others.any(|(other, shared)| match shared.is_empty() {
                true => has_changed(*other),
                false => shared.iter().any(|one| version(*one) != version(*other)),
            })
    }
}
