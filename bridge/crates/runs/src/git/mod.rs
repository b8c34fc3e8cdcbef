//! Repositories of runs: attach, check out, commit, merge, prove, publish.
//!
//! Each run has a bare repository that no agent is given. An attempt works in a checkout: a folder with a repository of
//! its own, a copy without a remote, so an agent can spoil only that. Its `.git` is never used again after it was made,
//! and no git reads the folder: the bridge walks it by descriptor, with the rules of its `.gitignore` files, and writes
//! the commit into the bare repository. Commits that an agent makes are therefore not taken over; the files that it
//! leaves are, and what is left out is named. No filter, hook, monitor or submodule is ever in effect.
//!
//! Every operation can be repeated after the process was killed in it, and then has the same result. One process uses
//! the folder of a run. A lock that a killed push left in a remote on the same machine is not removed, since others use
//! that repository too: the push is refused, and the error names the file.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forge_net::SendError;

use crate::wait::Cause;

mod blobs;
mod changes;
mod checkout;
mod claim;
mod commit;
mod confidential;
mod conflict;
mod decision;
mod descent;
mod download;
mod hooks;
mod ignore;
mod lock;
mod made;
mod merge;
mod name;
mod path;
mod private;
mod program;
mod proof;
mod publish;
mod remote;
mod repository;
mod settings;
mod shared;
mod space;
mod trash;
mod tree;
mod url;
mod walk;

pub use self::checkout::{Checkout, give};
pub use self::claim::{FolderClaim, Unclaimed};
pub use self::commit::{Committed, LeftOut, Message};
pub use self::conflict::{Conflict, Conflicted, Form, Kind, Version};
pub use self::decision::{Decided, Decision, Settled};
pub use self::download::DownloadBounds;
pub use self::hooks::LocalHooks;
pub use self::merge::{Input, Merge};
pub use self::name::{BadId, Branch, CommitId, check_task_id};
pub use self::path::shown as shown_path;
pub use self::program::{Git, Setup};
pub use self::proof::{Claim, Presence, Proof};
pub use self::remote::{Push, Remotes};
pub use self::repository::Repository;
pub(crate) use self::url::ByUrl;
pub use self::url::{BadRule, RefusedUrl, RepoUrl, UrlRules};
pub use self::walk::LeftOuts;

/// Reason why an operation has no result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("git 2.38 or newer is needed for runs, install it: {0}")]
    Missing(String),
    #[error(transparent)]
    BadId(#[from] BadId),
    #[error(transparent)]
    RefusedUrl(#[from] RefusedUrl),
    #[error("cannot call the repository: {0}")]
    Address(SendError),
    #[error("the repository has no branch or tag {0:?}{hint}", hint = if name::is_abbreviated(.0) {
        "; a commit is named by its whole id"
    } else {
        ""
    })]
    NoRef(String),
    #[error("the repository has no commit {0} that its branches or tags contain")]
    NoCommit(CommitId),
    #[error("the repository has no commit yet; it needs one to begin with")]
    Empty,
    #[error("the HEAD of the repository names no commit; choose a `ref`, such as {0:?}")]
    NoHead(String),
    #[error(
        "the repository is a shallow copy, which lacks the history that merges need; complete it with \
         `git fetch --unshallow`, or name the repository that it was copied from"
    )]
    Shallow,
    #[error(
        "the repository has the active hook {0}, which would not be asked; runs.local_hooks decides on hooks of this \
         machine: refuse, run or ignore"
    )]
    Hook(String),
    #[error(
        "the repository has the active hook {0} of another user, which is not run as the user of the bridge"
    )]
    ForeignHook(String),
    #[error(
        "the remote sends more than `runs.repository_bytes` ({0}); use a smaller repository, or set a larger bound"
    )]
    TooManyBytes(u64),
    #[error(
        "the disk of `runs.folder` has {free} bytes free, below `runs.free_bytes` ({free_bytes}), while data of the \
         remote comes"
    )]
    DiskFull { free: u64, free_bytes: u64 },
    #[error("the remote repository did not do as asked: {0}")]
    Remote(String),
    #[error("the remote has no such repository, or hides it: {0}")]
    NoRepository(String),
    #[error("the remote refuses the credentials of runs.authorization: {0}")]
    Credentials(String),
    #[error(
        "{branch} has moved: it was not pushed, since its commit was expected to be {expected}, and is {found}"
    )]
    Moved {
        branch: Branch,
        expected: String,
        found: String,
    },
    #[error("the remote repository refused {branch}: {reason}")]
    PushRefused { branch: Branch, reason: String },
    #[error("the remote repository could not take {branch}: {reason}")]
    PushFailed { branch: Branch, reason: String },
    #[error("{branch} was pushed, but is {found} at the remote instead of {pushed}")]
    NotThere {
        branch: Branch,
        pushed: CommitId,
        found: String,
    },
    #[error(
        "the branches of this run cannot be made: the repository has a branch {found:?}, and the run needs {wanted:?}; rename it"
    )]
    NameTaken { found: String, wanted: String },
    #[error("{0} is the default branch of the repository, which is never pushed")]
    DefaultBranch(Branch),
    #[error("the result does not contain: {}", .0.join(", "))]
    NotProved(Vec<String>),
    #[error(
        "{} cannot be merged: checkouts have no submodules; let one task change each of them",
        .0.join(", ")
    )]
    Submodules(Vec<String>),
    #[error("{0} is too large")]
    TooLarge(String),
    #[error(
        "the checkout of {branch} {what}; an agent must leave its work in the folder that it was given"
    )]
    Lost { branch: Branch, what: &'static str },
    #[error("the tracked file {path} cannot be read back: {reason}{}", and_others(*.others))]
    Unreadable {
        path: String,
        reason: &'static str,
        /// Number of further files.
        others: usize,
    },
    #[error("cannot use the folder of the agent: {0}")]
    Folder(io::Error),
    #[error("git {step} did not end within {limit:?}")]
    TimedOut { step: String, limit: Duration },
    #[error("git {step} failed with exit code {code}{said}")]
    Failed {
        step: String,
        code: i32,
        said: String,
    },
    #[error("git {0} printed something unexpected")]
    Unexpected(&'static str),
    #[error("cannot use {}: {error}", path.display())]
    File { path: PathBuf, error: io::Error },
}

impl Error {
    fn file(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        Self::File { path, error }
    }

    fn gone(branch: &Branch) -> Self {
        Self::Lost {
            branch: branch.clone(),
            what: "is gone",
        }
    }

    fn moved(branch: &Branch, expected: Option<&CommitId>, found: Option<&CommitId>) -> Self {
        Self::Moved {
            branch: branch.clone(),
            expected: shown(expected),
            found: shown(found),
        }
    }

    /// Prospects of the same operation at a later time.
    pub fn outlook(&self) -> Outlook {
        match self {
            Self::Address(SendError::Refused(_))
            | Self::Credentials(_)
            | Self::PushRefused { .. }
            | Self::Moved { .. }
            | Self::NotThere { .. }
            | Self::NameTaken { .. }
            | Self::Hook(_)
            | Self::ForeignHook(_)
            | Self::TooManyBytes(_)
            | Self::DefaultBranch(_) => Outlook::Refused,
            Self::Address(_)
            | Self::Remote(_)
            | Self::PushFailed { .. }
            | Self::TimedOut { .. } => Outlook::Passing(Cause::Remote),
            Self::DiskFull { .. } => Outlook::Passing(Cause::Disk),
            Self::NoRepository(_) => Outlook::Passing(Cause::Absent),
            Self::RefusedUrl(refused) if refused.is_absent() => Outlook::Passing(Cause::Absent),
            Self::RefusedUrl(_) => Outlook::Refused,
            Self::Missing(_)
            | Self::BadId(_)
            | Self::NoRef(_)
            | Self::NoCommit(_)
            | Self::NoHead(_)
            | Self::Empty
            | Self::Shallow
            | Self::NotProved(_)
            | Self::Submodules(_)
            | Self::TooLarge(_)
            | Self::Failed { .. }
            | Self::Unexpected(_)
            | Self::Lost { .. }
            | Self::Unreadable { .. }
            | Self::Folder(_)
            | Self::File { .. } => Outlook::Failed,
        }
    }

    /// True if waiting can help.
    pub fn is_transient(&self) -> bool {
        matches!(self.outlook(), Outlook::Passing(_))
    }
}

/// Prospects of an operation that had an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// It can succeed later: the remote is away, slow or locked, or has no such repository, which is so for good or while
    /// a disk or a server is replaced; or the disk of the runs is nearly full.
    Passing(Cause),
    /// The other side refuses it and will do so again, or it exceeds a bound.
    Refused,
    /// It failed here; another attempt can do better.
    Failed,
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        Self::Address(error)
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Folder(error)
    }
}

fn and_others(number: usize) -> String {
    match number {
        0 => String::new(),
        number => format!(" ({number} others cannot either)"),
    }
}

fn shown(commit: Option<&CommitId>) -> String {
    commit.map_or_else(|| "absent".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forge_net::guard::Refused;

    /// A run shows the text of its error and no chain of sources, so the reason is in the text.
    #[test]
    fn an_error_has_its_reason_in_its_text() {
        let refused = Refused::Name {
            name: "git.internal".to_owned(),
            address: [10, 0, 0, 1].into(),
            range: "private",
            setting: "callback.allow",
        };
        for (error, words) in [
            (
                Error::from(SendError::Refused(refused)),
                ["git.internal", "10.0.0.1", "private", "callback.allow"],
            ),
            (
                Error::file(Path::new("/runs/a"), io::ErrorKind::StorageFull.into()),
                ["cannot", "use", "/runs/a", "no storage space"],
            ),
            (
                Error::TooManyBytes(7),
                ["remote", "more than", "runs.repository_bytes", "(7)"],
            ),
            (
                Error::DiskFull {
                    free: 5,
                    free_bytes: 9,
                },
                ["5 bytes free", "runs.folder", "runs.free_bytes", "(9)"],
            ),
        ] {
            let text = error.to_string();
            for word in words {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
    }
}
