//! Settings of runs.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use crate::git::{LocalHooks, Push};
use crate::greeting::FirstWord;

/// Settings of runs.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Adapter of runs that name none; without one, routing chooses.
    pub provider: Option<String>,
    /// Model of runs that name none; without one, that of the adapter.
    pub model: Option<String>,
    /// `agentId` of all steps.
    pub agent_id: String,
    /// First message of the Captain, before one of the user: `agent` asks it, `static` is a text of the bridge, `none`
    /// waits for the user. `auto` is `agent` if the adapter of the run reports low costs, else `static`.
    pub greeting: FirstWord,
    /// Attempts that run at once, in each run.
    pub max_parallel: usize,
    /// Timeout of one turn of the Captain, and of one dispatch of an attempt.
    #[serde(with = "forge_base::duration")]
    pub step_timeout: Duration,
    /// Repositories that are allowed, and no other remote ones: URLs, which stand for all below them too, or their
    /// beginnings up to a `*`. Empty: those at `https://` addresses that pass the guard, which applies to named ones,
    /// too. All keys of repositories are compared by their meaning.
    pub repositories: Vec<String>,
    /// Folders below which `file:` repositories are allowed.
    pub local_roots: Vec<PathBuf>,
    /// Treatment of hooks of `file:` repositories: `refuse` refuses a repository with an active one, `run` runs them as
    /// the user of the bridge, `ignore` does neither.
    pub local_hooks: LocalHooks,
    /// `always` pushes branches and results to the repository; `never` keeps them in the bridge.
    pub push: Push,
    /// Value of the header `authorization` for the repositories of the key; the narrowest key counts. Sent over https
    /// only.
    #[serde(with = "forge_base::secret::map")]
    pub authorization: BTreeMap<String, SecretString>,
    /// Commands that must succeed on a merged commit before it is pushed, for the repositories of the key; the
    /// narrowest key counts. `file://` stands for all repositories of this machine.
    pub checks: BTreeMap<String, Vec<Vec<String>>>,
    /// Timeout of one check.
    #[serde(with = "forge_base::duration")]
    pub check_timeout: Duration,
    /// Time for which trouble that no agent causes is waited for: a remote or an adapter that is away, a rate limit.
    #[serde(with = "forge_base::duration")]
    pub patience: Duration,
    /// Folder of the repositories and checkouts of runs; default: `runs` in `data_dir`.
    pub folder: Option<PathBuf>,
    /// Limit of the bytes that one run downloads as its repository, and of those that a later call of the remote adds.
    pub repository_bytes: u64,
    /// Limit of the runs that have not ended, in this bridge. 0: no limit.
    pub max: usize,
    /// Limit of the runs of one caller that have not ended, in this bridge. 0: no limit.
    pub max_per_token: usize,
    /// Limit of the bytes of one attempt's checkout, with those of the agents that it has started.
    pub attempt_bytes: u64,
    /// Bytes that stay free on the disk of the runs. While fewer are, nothing new starts, a download is ended, and so is
    /// the largest attempt.
    pub free_bytes: u64,
    /// Time for one command of git.
    #[serde(with = "forge_base::duration")]
    pub git_timeout: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            provider: None,
            model: None,
            agent_id: "default".to_owned(),
            greeting: FirstWord::Auto,
            max_parallel: 8,
            step_timeout: Duration::from_secs(3600),
            repositories: Vec::new(),
            local_roots: Vec::new(),
            local_hooks: LocalHooks::Refuse,
            push: Push::Always,
            authorization: BTreeMap::new(),
            checks: BTreeMap::new(),
            check_timeout: Duration::from_secs(1800),
            patience: Duration::from_secs(24 * 3600),
            folder: None,
            repository_bytes: 10 << 30,
            max: 200,
            max_per_token: 100,
            attempt_bytes: 20 << 30,
            free_bytes: 1 << 30,
            git_timeout: Duration::from_secs(600),
        }
    }
}
