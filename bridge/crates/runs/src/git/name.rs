//! Names in a repository: commits, and the branches of a run. No two branches of a run exclude each other: git stores
//! refs as paths, so one cannot be the folder of another.

use std::fmt;

use forge_base::text::is_unseen;

/// Beginning of all branches.
const ROOT: &str = "forge/";
/// Longest id of a run or task.
const ID_BYTES: usize = 64;
/// Second part of the branch that a run is merged into.
const INTEGRATION: &str = "integration";
/// Beginning of the ids of tasks outside of the plan.
const FOLLOW_UP: &str = "followup-";

/// Id of a commit or a tree: 40 hexadecimal digits, or 64 in a repository with SHA-256.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId(String);

impl CommitId {
    pub fn parse(text: &str) -> Option<Self> {
        let digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let right = matches!(text.len(), 40 | 64) && text.bytes().all(digit);
        right.then(|| Self(text.to_owned()))
    }

    /// Id as a caller writes it, also with capital letters.
    pub(super) fn named(text: &str) -> Option<Self> {
        Self::parse(&text.to_ascii_lowercase())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// True for the beginning of the id of a commit that is long enough for git, and no whole one.
pub(super) fn is_abbreviated(text: &str) -> bool {
    (7..40).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Branch that a run can create and push. Always below `forge/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Branch(String);

impl Branch {
    /// Branch of an attempt: `forge/<run>/<task>/<attempt>`.
    pub fn of_attempt(run: &str, task: &str, attempt: u32) -> Result<Self, BadId> {
        let (run, task) = (check_id(run)?, check_id(task)?);
        match run.eq_ignore_ascii_case(INTEGRATION) {
            true => Err(BadId::new(run, "the branches of all runs have this name")),
            false => Ok(Self(format!("{ROOT}{run}/{task}/{attempt}"))),
        }
    }

    /// Branch of an agent that an attempt has started: `forge/<run>/<task>/<attempt>.<number>`. The attempt's own branch
    /// is a file where `forge/<run>/<task>/<attempt>/<number>` would need a folder.
    pub fn of_child(run: &str, task: &str, attempt: u32, number: u32) -> Result<Self, BadId> {
        let Self(attempt) = Self::of_attempt(run, task, attempt)?;
        Ok(Self(format!("{attempt}.{number}")))
    }

    /// Branch that the results of a run are merged into: `forge/integration/<run>`.
    pub fn of_run(run: &str) -> Result<Self, BadId> {
        Ok(Self(format!("{ROOT}{INTEGRATION}/{}", check_id(run)?)))
    }

    /// Branches and the folders of branches that a run needs: each is a name, and is free only if no branch has it, a
    /// part of it in front of a `/`, or it in front of one.
    pub(super) fn needed(run: &str) -> Result<[Self; 2], BadId> {
        let own = check_id(run)?;
        Ok([Self::of_run(run)?, Self(format!("{ROOT}{own}"))])
    }

    /// True if git cannot keep this branch beside another one: they are the same, or one is a folder of the other.
    pub(super) fn excludes(&self, other: &str) -> bool {
        let Self(own) = self;
        let is_below = |above: &str, below: &str| {
            let rest = below.strip_prefix(above);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        is_below(own, other) || is_below(other, own)
    }

    /// Part below the run: `<task>/<attempt>`.
    pub(super) fn below_run(&self) -> &str {
        let below = self.0.splitn(3, '/').nth(2);
        below.unwrap_or(&self.0)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn full(&self) -> String {
        format!("refs/heads/{}", self.0)
    }
}

impl fmt::Display for Branch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Id that cannot be a part of a branch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{id:?} cannot be an id: {reason}")]
pub struct BadId {
    id: String,
    reason: &'static str,
}

impl BadId {
    fn new(id: &str, reason: &'static str) -> Self {
        // Longer ones come from documents of up to a megabyte.
        let id = id.chars().take(ID_BYTES).collect();
        Self { id, reason }
    }
}

/// Checks the id of a task that a plan contains: one of [`Branch::of_attempt`] that the bridge does not give itself.
pub fn check_task_id(id: &str) -> Result<(), BadId> {
    check_id(id)?;
    match id.starts_with(FOLLOW_UP) {
        true => Err(BadId::new(id, "follow-up tasks of the bridge begin so")),
        false => Ok(()),
    }
}

/// Checks an id that becomes a part of paths and refs.
pub(super) fn check_id(id: &str) -> Result<&str, BadId> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let reason = if id.is_empty() || id.len() > ID_BYTES || !id.bytes().all(allowed) {
        "1 to 64 letters, digits, dots, dashes and underscores were expected"
    } else if id.starts_with(['.', '-']) || id.ends_with('.') || id.contains("..") {
        "git allows no part of a branch that begins or ends with a dot or contains two; a dash is an option"
    } else if id.to_ascii_lowercase().ends_with(".lock") {
        "git uses names that end with .lock itself"
    } else {
        return Ok(id);
    };
    Err(BadId::new(id, reason))
}

/// Checks the name of a branch or tag, or a full ref, as a caller gives it.
pub(super) fn is_ref(name: &str) -> bool {
    let refused = |c: char| is_unseen(c) || " ~^:?*[\\".contains(c);
    let part = |part: &str| {
        !(part.is_empty()
            || part.starts_with('.')
            || part.ends_with('.')
            || part.ends_with(".lock"))
    };
    (1..=255).contains(&name.len())
        && !name.starts_with('-')
        && !name.contains(refused)
        && !name.contains("..")
        && !name.contains("@{")
        && name != "@"
        && name.split('/').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check 23.
    #[test]
    fn branches_follow_from_ids() {
        let attempt = Branch::of_attempt("run_1a", "task_01", 2).unwrap();
        let child = Branch::of_child("run_1a", "task_01", 2, 3).unwrap();
        let run = Branch::of_run("run_1a").unwrap();
        assert_eq!(attempt.as_str(), "forge/run_1a/task_01/2");
        assert_eq!(child.as_str(), "forge/run_1a/task_01/2.3");
        assert_eq!(child.below_run(), "task_01/2.3");
        assert!(Branch::of_attempt("integration", "task_01", 2).is_err());
        assert_eq!(run.as_str(), "forge/integration/run_1a");
    }

    #[test]
    fn an_id_that_is_no_part_of_a_ref_is_refused() {
        let refused = ". .. .a a. a..b -a a.lock A.LOCK a/b a~1 a^ a:b ä followup-1";
        let long = "a".repeat(65);
        for id in refused.split(' ').chain(["", "a b", "a\n", &long]) {
            assert!(check_task_id(id).is_err(), "{id:?}");
        }
        for id in ["a", "task-1", "T.2_b", "integration", "lock"] {
            assert_eq!(check_task_id(id), Ok(()));
        }
    }

    #[test]
    fn a_ref_is_read_as_git_reads_it() {
        for name in ["main", "release/1.2", "refs/tags/v1", "ä", "@a"] {
            assert!(is_ref(name), "{name}");
        }
        let refused =
            "-u --upload-pack=x a..b a:b a* a//b /a a/ .a a/.b a.lock a.lock/b @ a@{1} a\\b a~1 a^";
        for name in refused.split(' ').chain(["", "a b", "a\u{7f}"]) {
            assert!(!is_ref(name), "{name:?}");
        }
    }
}
