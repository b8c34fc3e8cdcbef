//! Mechanical merges in the bare repository, without a work tree.

use std::collections::{HashMap, HashSet};

use super::{Branch, CommitId, Conflict, Error, Repository};

/// Author of the commits of the bridge.
pub(super) const AUTHOR: &str = "forge-bridge";
pub(super) const EMAIL: &str = "forge-bridge@localhost";

/// Merges two commits, which follow. Exits with 1 if there are conflicts.
pub(super) const MERGE_TREE: [&str; 3] =
    ["merge-tree", "--write-tree", "--allow-unrelated-histories"];

/// Merges two commits and commits the tree. Ends with 1 if there are conflicts.
const MERGE: &str =
    r#"tree=$(git "$@") && exec git commit-tree -m "$SUBJECT" "$tree" -p "$OURS" -p "$THEIRS""#;

/// Commit to merge, and the branch that it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    pub branch: Branch,
    pub commit: CommitId,
}

/// Result of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Merge {
    /// Commit that contains all inputs; the one merged onto if that did already.
    Done(CommitId),
    Conflict(Conflict),
}

/// Commit that one of the inputs adds.
pub(super) struct Added {
    seconds: i64,
    pub(super) parents: Vec<String>,
}

impl Repository {
    /// Merges the inputs in their order. The same inputs give the same commit, whenever they are merged: its time is
    /// that of the newest input. An input that contains everything before it is taken as it is.
    pub async fn merge(&self, onto: &CommitId, inputs: &[Input]) -> Result<Merge, Error> {
        if inputs.is_empty() {
            return Ok(Merge::Done(onto.clone()));
        }
        let commits = inputs.iter().map(|input| &input.commit);
        let mut added = self.added(onto, commits).await?;
        let contained = added.values().flat_map(|commit| commit.parents.clone());
        let contained: HashSet<String> = contained.collect();
        let (mut result, mut seconds) = (onto.clone(), i64::MIN);
        // An input that another one contains has been merged there, also where that took a decision.
        let is_contained = |input: &&Input| contained.contains(input.commit.as_str());
        for input in inputs.iter().filter(|input| !is_contained(input)) {
            let Some(newest) = added
                .get(input.commit.as_str())
                .map(|commit| commit.seconds)
            else {
                continue;
            };
            seconds = seconds.max(newest);
            let mut contains_all = false;
            let mut open = vec![input.commit.as_str().to_owned()];
            while let Some(commit) = open.pop() {
                let parents = added
                    .remove(&commit)
                    .map_or_else(Vec::new, |commit| commit.parents);
                contains_all |= parents.iter().any(|parent| parent == result.as_str());
                open.extend(parents);
            }
            if contains_all {
                result = input.commit.clone();
                continue;
            }
            match self.merge_one(&result, input, seconds).await? {
                Some(merged) => result = merged,
                None => return self.conflict(result, input).await.map(Merge::Conflict),
            }
        }
        Ok(Merge::Done(result))
    }

    /// Commits that these contain and `onto` does not.
    pub(super) async fn added<'a>(
        &self,
        onto: &CommitId,
        commits: impl IntoIterator<Item = &'a CommitId>,
    ) -> Result<HashMap<String, Added>, Error> {
        let without = format!("^{onto}");
        let list = self.step(&["rev-list", "--parents", "--timestamp", &without]);
        let commits = commits.into_iter();
        let list = commits.fold(list, |list, commit| list.arg(commit.as_str()));
        let text = list.arg("--").text().await?;
        let commit = |line: &str| {
            let mut words = line.split(' ').map(str::to_owned);
            let seconds = words.next()?.parse().ok()?;
            let id = words.next()?;
            let parents = words.collect();
            Some((id, Added { seconds, parents }))
        };
        let commits = text.lines().map(commit).collect::<Option<_>>();
        commits.ok_or(Error::Unexpected("rev-list"))
    }

    /// Commit of a merge; `None` if there are conflicts.
    async fn merge_one(
        &self,
        ours: &CommitId,
        theirs: &Input,
        seconds: i64,
    ) -> Result<Option<CommitId>, Error> {
        let mut step = self.step(&MERGE_TREE).arg("--no-messages").script(MERGE);
        for commit in [ours, &theirs.commit] {
            step = step.arg(commit.as_str());
        }
        for (name, value) in [
            ("OURS", ours.to_string()),
            ("THEIRS", theirs.commit.to_string()),
            ("SUBJECT", format!("Merge {}", theirs.branch)),
        ] {
            step = step.env(name, value);
        }
        for role in ["AUTHOR", "COMMITTER"] {
            step = step.env(&format!("GIT_{role}_NAME"), AUTHOR);
            step = step.env(&format!("GIT_{role}_EMAIL"), EMAIL);
            step = step.env(&format!("GIT_{role}_DATE"), format!("@{seconds} +0000"));
        }
        let output = step.run().await?;
        match output.code {
            0 => {
                let id = String::from_utf8_lossy(&output.stdout);
                let id = CommitId::parse(id.trim_end());
                id.ok_or(Error::Unexpected("commit-tree")).map(Some)
            }
            1 => Ok(None),
            _ => Err(output.failure()),
        }
    }
}
