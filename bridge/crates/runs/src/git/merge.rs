//! Mechanical merges in the bare repository, without a work tree, and the proof that a result contains its inputs.

use std::collections::HashMap;

use super::{Branch, CommitId, Error, Repository};

/// Author of the commits of the bridge.
pub(super) const AUTHOR: &str = "forge-bridge";
pub(super) const EMAIL: &str = "forge-bridge@localhost";

/// Merges two commits, which follow. Ends with 1 if there are conflicts.
const MERGE_TREE: [&str; 4] = [
    "merge-tree",
    "--write-tree",
    "--no-messages",
    "--allow-unrelated-histories",
];

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

/// First input that does not merge by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Commit that contains the inputs before it.
    pub onto: CommitId,
    pub input: Input,
    /// Tree in which the conflicting parts are between markers.
    pub tree: CommitId,
    /// Files with conflicts.
    pub paths: Vec<String>,
}

/// Evidence that a commit contains all inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    pub result: CommitId,
    pub inputs: Vec<(Input, Presence)>,
}

/// Form in which an input is contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Its commit is an ancestor.
    Ancestor,
    /// Each of its commits has a counterpart with the same change.
    Patch,
}

/// Commit that one of the inputs adds.
struct Added {
    seconds: i64,
    parents: Vec<String>,
}

impl Repository {
    /// Merges the inputs in their order. The same inputs give the same commit, whenever they are merged: its time is
    /// that of the newest input. An input that contains everything before it is taken as it is.
    pub async fn merge(&self, onto: &CommitId, inputs: &[Input]) -> Result<Merge, Error> {
        if inputs.is_empty() {
            return Ok(Merge::Done(onto.clone()));
        }
        let mut added = self.added(onto, inputs).await?;
        let (mut result, mut seconds) = (onto.clone(), i64::MIN);
        for input in inputs {
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

    /// Commits of the inputs that are not in `onto`.
    async fn added(
        &self,
        onto: &CommitId,
        inputs: &[Input],
    ) -> Result<HashMap<String, Added>, Error> {
        let without = format!("^{onto}");
        let mut args = vec!["rev-list", "--parents", "--timestamp", &without];
        args.extend(inputs.iter().map(|input| input.commit.as_str()));
        let text = self.step(&args).arg("--").text().await?;
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
        let mut step = self.step(&MERGE_TREE).script(MERGE);
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

    /// The conflict of a merge.
    async fn conflict(&self, onto: CommitId, input: &Input) -> Result<Conflict, Error> {
        let step = self.step(&MERGE_TREE).arg("-z").arg("--name-only");
        let step = step.arg(onto.as_str()).arg(input.commit.as_str());
        let output = step.run().await?;
        if output.code != 1 {
            return Err(output.failure());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let mut parts = text
            .split('\0')
            .map(str::trim_end)
            .filter(|part| !part.is_empty());
        let tree = parts.next().and_then(CommitId::parse);
        let paths: Vec<String> = parts.map(str::to_owned).collect();
        match tree {
            Some(tree) if !paths.is_empty() => Ok(Conflict {
                onto,
                input: input.clone(),
                tree,
                paths,
            }),
            _ => Err(Error::Unexpected("merge-tree")),
        }
    }

    /// Proves that a commit contains all inputs, or names those that it does not contain.
    pub async fn prove(&self, result: &CommitId, inputs: &[Input]) -> Result<Proof, Error> {
        let added = self.added(result, inputs).await?;
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for input in inputs {
            let presence = match added.contains_key(input.commit.as_str()) {
                false => Some(Presence::Ancestor),
                true => self
                    .patches(result, &input.commit)
                    .await?
                    .then_some(Presence::Patch),
            };
            match presence {
                Some(presence) => found.push((input.clone(), presence)),
                None => missing.push(format!("{} ({})", input.branch, input.commit)),
            }
        }
        match missing.is_empty() {
            true => Ok(Proof {
                result: result.clone(),
                inputs: found,
            }),
            false => Err(Error::NotProved(missing)),
        }
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

    /// Files among these that still have conflict markers in a commit.
    pub async fn unresolved(
        &self,
        commit: &CommitId,
        paths: &[String],
    ) -> Result<Vec<String>, Error> {
        let mut args = vec![
            "grep",
            "-z",
            "--name-only",
            "-e",
            "^<<<<<<< ",
            commit.as_str(),
            "--",
        ];
        args.extend(paths.iter().map(String::as_str));
        let output = self
            .step(&args)
            .env("GIT_LITERAL_PATHSPECS", "1")
            .run()
            .await?;
        if !matches!(output.code, 0 | 1) {
            return Err(output.failure());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let names = text.split('\0').filter_map(|name| name.split_once(':'));
        Ok(names.map(|(_, name)| name.to_owned()).collect())
    }
}
