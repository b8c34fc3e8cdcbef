//! Runs: the program git with its rules, and the handle.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use forge_base::reloadable::Reloadable;
use forge_base::tasks::Tasks;
use forge_dispatch::Dispatcher;
use forge_net::guard::Guard;
use forge_process::Children;
use forge_process::program::Launcher;
use forge_runs::git::{self, Git, Remotes, UrlRules};
use forge_runs::{Checks, Runs, Setup};
use forge_store::Store;

/// Folder of the repositories and checkouts of runs.
pub(super) fn folder(config: &Config) -> PathBuf {
    config.data_dir.join("runs")
}

/// Rules for the repositories of runs.
pub(super) fn remotes(config: &Config, guard: &Guard) -> anyhow::Result<Remotes> {
    let runs = &config.runs;
    let rules = UrlRules::new(&runs.repositories, &runs.local_roots, guard.clone());
    let rules = rules.context("runs.repositories")?;
    let proxy = config.net.proxy.clone();
    let (push, hooks) = (runs.push, runs.local_hooks);
    let remotes = Remotes::new(rules, &runs.authorization, proxy, push, hooks);
    remotes.context("runs.authorization")
}

/// Checks of merged commits.
pub(super) fn checks(config: &Config) -> anyhow::Result<Checks> {
    Checks::new(&config.runs.checks).context("runs.checks")
}

/// Finds git. Without it there are no runs; everything else works.
pub(super) async fn find_git(
    config: &Config,
    remotes: Remotes,
    children: &Children,
    store_id: &str,
    tracker: &Tasks,
) -> Result<Git, String> {
    let setup = git::Setup {
        supervisor: children.supervisor().to_vec(),
        store_id: store_id.to_owned(),
        tracker: tracker.clone(),
        search: std::env::var_os("PATH").unwrap_or_default(),
        folder: folder(config),
        timeout: config.runs.git_timeout,
        remotes,
    };
    Git::find(setup).await.map_err(|error| error.to_string())
}

/// Parts of the bridge that runs use.
pub(super) struct Parts {
    pub(super) store: Arc<dyn Store>,
    pub(super) dispatcher: Dispatcher,
    pub(super) retention: Reloadable<std::time::Duration>,
    pub(super) git: Result<Git, String>,
    pub(super) launcher: Launcher,
    pub(super) tracker: Tasks,
    pub(super) shutdown: CancellationToken,
}

pub(super) fn open(config: &Config, checks: Checks, parts: Parts) -> Runs {
    Runs::new(Setup {
        config: config.runs.clone(),
        checks,
        clock: parts.store.node().clock(),
        store: parts.store,
        dispatcher: parts.dispatcher,
        retention: parts.retention,
        git: parts.git,
        launcher: parts.launcher,
        tracker: parts.tracker,
        shutdown: parts.shutdown,
    })
}
