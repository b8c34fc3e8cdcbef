//! Runs: the program git with its rules, and the handle.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use forge_base::reloadable::Reloadable;
use forge_base::tasks::Tasks;
use forge_dispatch::{Dispatcher, ProgramUsers};
use forge_net::guard::Guard;
use forge_process::Children;
use forge_process::ownership::{self, UserId};
use forge_process::program::Launcher;
use forge_runs::git::{self, DownloadBounds, FolderClaim, Git, Remotes, Unclaimed, UrlRules};
use forge_runs::{Checks, Runs, Setup};
use forge_store::Store;

use super::store::Location;

/// Folder of the repositories and checkouts of runs.
pub(super) fn folder(config: &Config) -> PathBuf {
    let own = config.runs.folder.clone();
    own.unwrap_or_else(|| config.data_dir.join("runs"))
}

/// Claims the folder, and makes room on its disk if that is short of space: a full one would keep the store closed.
pub(super) async fn claim(config: &Config) -> Result<FolderClaim, Unclaimed> {
    let folder = folder(config);
    let path = folder.clone();
    let wanted = config.runs.free_bytes;
    let claiming = tokio::task::spawn_blocking(move || {
        let claim = FolderClaim::take(&path)?;
        match claim.make_room(wanted, forge_runs::REMOVED_FOR_ROOM) {
            Ok(0) => {}
            Ok(removed) => tracing::warn!(
                "the disk of {} was full: {removed} checkouts of dead attempts were removed",
                path.display()
            ),
            Err(error) => tracing::warn!("no room was made in {}: {error}", path.display()),
        }
        Ok(claim)
    });
    claiming.await.unwrap_or_else(|error| {
        let error = std::io::Error::other(error);
        Err(Unclaimed::Unusable { folder, error })
    })
}

/// Makes the claimed folder that of this store; the reason says why runs are not available.
pub(super) fn bind(
    config: &Config,
    claim: Result<FolderClaim, Unclaimed>,
    owner: &str,
) -> (Option<FolderClaim>, Result<(), String>) {
    // In `data_dir`, which is locked: no other bridge can have used it.
    let is_own = config.runs.folder.is_none();
    let bound = claim.and_then(|mut claim| claim.bind(owner, is_own).map(|()| claim));
    match bound {
        Ok(claim) => (Some(claim), Ok(())),
        Err(error) => (None, Err(format!("{:#}", anyhow::Error::from(error)))),
    }
}

/// Reason why the users of agents cannot work in the folder.
pub(super) fn closed_to(config: &Config, users: &ProgramUsers) -> Option<String> {
    let folder = folder(config);
    let above = folder.parent().unwrap_or(&folder);
    users.all().find_map(|user| {
        let closed = ownership::first_closed(above, user)?;
        Some(format!(
            "agents run as the user {}, who cannot pass {} on the way to the checkouts: set `runs.folder` to a folder \
             that this user can reach, or run `chmod o+x {}`",
            user.uid,
            closed.display(),
            closed.display()
        ))
    })
}

/// Advice to have the checkouts on another disk, if they are on that of the store.
pub(super) fn advice(config: &Config) -> Option<String> {
    let Ok(Location::Folder(store)) = Location::of(config) else {
        return None;
    };
    let folder = folder(config);
    let device = |path: &Path| {
        let existing = path.ancestors().find_map(|path| path.metadata().ok());
        existing.map(|metadata| metadata.dev())
    };
    (device(&store)? == device(&folder)?).then(|| {
        format!(
            "agents of runs write to {}, which is on the disk of the store; if runs are used, set `runs.folder` to another \
             disk, so that no agent can fill that of the store",
            folder.display()
        )
    })
}

/// Bounds that cannot protect anything as they are set.
pub(super) fn inert_bounds(config: &Config) -> Vec<String> {
    let runs = &config.runs;
    let mut found = Vec::new();
    if runs.free_bytes == 0 {
        found.push(
            "runs.free_bytes is 0: no download and no attempt of a run is ended before the disk is full".to_owned(),
        );
    }
    if runs.max > 0 && config.auth.has_tokens() && !(1..runs.max).contains(&runs.max_per_token) {
        found.push(format!(
            "runs.max_per_token ({}) does not keep one caller from taking all places of runs.max ({}): set it to less",
            runs.max_per_token, runs.max
        ));
    }
    found
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
    users: &ProgramUsers,
    tracker: &Tasks,
) -> Result<Git, String> {
    if let Some(reason) = closed_to(config, users) {
        return Err(reason);
    }
    let setup = git::Setup {
        supervisor: children.supervisor().to_vec(),
        store_id: store_id.to_owned(),
        tracker: tracker.clone(),
        search: std::env::var_os("PATH").unwrap_or_default(),
        folder: folder(config),
        has_other_users: users.all().next().is_some(),
        timeout: config.runs.git_timeout,
        download: DownloadBounds {
            repository_bytes: config.runs.repository_bytes,
            free_bytes: config.runs.free_bytes,
        },
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
    pub(super) check_user: Option<UserId>,
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
        check_user: parts.check_user,
        tracker: parts.tracker,
        shutdown: parts.shutdown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_that_protect_nothing_are_named() {
        for (free_bytes, max, max_per_token, has_tokens, named) in [
            (1, 200, 100, true, [false, false]),
            (0, 200, 100, true, [true, false]),
            (1, 200, 200, true, [false, true]),
            (1, 200, 0, true, [false, true]),
            // Without tokens all callers are one.
            (1, 200, 0, false, [false, false]),
            (1, 0, 0, true, [false, false]),
        ] {
            let mut config = Config::default();
            config.runs.free_bytes = free_bytes;
            config.runs.max = max;
            config.runs.max_per_token = max_per_token;
            if has_tokens {
                config.auth.tokens = vec!["a token that is long enough".to_owned().into()];
            }
            let found = inert_bounds(&config).concat();
            let settings = ["runs.free_bytes", "runs.max_per_token"];
            let found = settings.map(|setting| found.contains(setting));
            assert_eq!(
                found, named,
                "{free_bytes} {max} {max_per_token} {has_tokens}"
            );
        }
        assert!(inert_bounds(&Config::default()).is_empty());
    }
}
