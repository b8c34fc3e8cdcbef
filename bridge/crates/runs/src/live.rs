//! Runs that have not ended, and the bounds of their number in this bridge.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc;

use forge_base::id::RunId;
use forge_store::record::KeyOwner;

use crate::Asked;

/// Refusal of a run, since a bound on live ones is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{live} runs {} have not ended, and `{}` is {max}; end one, or try again later",
    self.of(),
    self.setting()
)]
pub struct TooManyRuns {
    pub live: usize,
    pub max: usize,
    /// True for the bound of one caller, false for that of all.
    pub is_of_caller: bool,
}

impl TooManyRuns {
    /// Setting with the bound.
    pub fn setting(&self) -> &'static str {
        match self.is_of_caller {
            true => "runs.max_per_token",
            false => "runs.max",
        }
    }

    fn of(&self) -> &'static str {
        match self.is_of_caller {
            true => "of this caller",
            false => "in all",
        }
    }
}

/// Live runs, by id.
pub(crate) struct LiveRuns {
    /// Bound on all runs; 0: none.
    max: usize,
    /// Bound on the runs of one owner; 0: none.
    max_per_owner: usize,
    runs: Mutex<HashMap<RunId, LiveRun>>,
}

struct LiveRun {
    owner: KeyOwner,
    /// Requests to its driver; `None` while the run is being stored.
    commands: Option<mpsc::Sender<Asked>>,
}

/// Place of a run that is being stored; free again when it is dropped, unless the run has a driver then.
pub(crate) struct Reservation<'a> {
    live: &'a LiveRuns,
    run: RunId,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut runs = self.live.lock();
        if runs
            .get(&self.run)
            .is_some_and(|run| run.commands.is_none())
        {
            runs.remove(&self.run);
        }
    }
}

impl LiveRuns {
    pub(crate) fn new(max: usize, max_per_owner: usize) -> Self {
        Self {
            max,
            max_per_owner,
            runs: Mutex::default(),
        }
    }

    /// Takes a place for a new run.
    pub(crate) fn reserve(
        &self,
        run: RunId,
        owner: KeyOwner,
    ) -> Result<Reservation<'_>, TooManyRuns> {
        let mut runs = self.lock();
        self.admit(&runs, owner)?;
        let commands = None;
        runs.insert(run, LiveRun { owner, commands });
        Ok(Reservation { live: self, run })
    }

    /// Notes the driver of a run; false if it has one already. A run that `is_reopened` has no place yet, and takes one.
    pub(crate) fn enter(
        &self,
        run: RunId,
        owner: KeyOwner,
        commands: mpsc::Sender<Asked>,
        is_reopened: bool,
    ) -> Result<bool, TooManyRuns> {
        let mut runs = self.lock();
        if runs.get(&run).is_some_and(|run| run.commands.is_some()) {
            return Ok(false);
        }
        if is_reopened {
            self.admit(&runs, owner)?;
        }
        let commands = Some(commands);
        runs.insert(run, LiveRun { owner, commands });
        Ok(true)
    }

    /// Requests to the driver of a run; `None` without one.
    pub(crate) fn commands(&self, run: RunId) -> Option<mpsc::Sender<Asked>> {
        self.lock().get(&run)?.commands.clone()
    }

    pub(crate) fn contains(&self, run: RunId) -> bool {
        self.lock().contains_key(&run)
    }

    pub(crate) fn remove(&self, run: RunId) {
        self.lock().remove(&run);
    }

    /// Removes a run, unless a request has come for it.
    pub(crate) fn remove_unless<T>(
        &self,
        run: RunId,
        request: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let mut runs = self.lock();
        let found = request();
        if found.is_none() {
            runs.remove(&run);
        }
        found
    }

    fn admit(&self, runs: &HashMap<RunId, LiveRun>, owner: KeyOwner) -> Result<(), TooManyRuns> {
        let of_caller = runs.values().filter(|run| run.owner == owner).count();
        let bounds = [
            (runs.len(), self.max, false),
            (of_caller, self.max_per_owner, true),
        ];
        for (live, max, is_of_caller) in bounds {
            if max > 0 && live >= max {
                return Err(TooManyRuns {
                    live,
                    max,
                    is_of_caller,
                });
            }
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, LiveRun>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> KeyOwner {
        KeyOwner::of("token", &[Some(name)])
    }

    fn enter(live: &LiveRuns, run: RunId, name: &str, is_reopened: bool) -> Result<bool, String> {
        let entered = live.enter(run, owner(name), mpsc::channel(1).0, is_reopened);
        entered.map_err(|refused| refused.setting().to_owned())
    }

    #[test]
    fn bounds_hold_for_all_and_for_each_owner() {
        for (max, max_per_owner, taken, next, expected) in [
            (0, 0, vec!["a", "a", "b"], "a", None),
            (3, 0, vec!["a", "b"], "a", None),
            (3, 0, vec!["a", "b", "a"], "c", Some("runs.max")),
            (0, 2, vec!["a", "b", "b"], "a", None),
            (0, 2, vec!["a", "b", "b"], "b", Some("runs.max_per_token")),
            (3, 2, vec!["a", "b", "b"], "b", Some("runs.max")),
        ] {
            let live = LiveRuns::new(max, max_per_owner);
            for name in &taken {
                // Runs of before the start are there whatever the bounds are.
                assert_eq!(enter(&live, RunId::new(), name, false), Ok(true));
            }
            let refused = live.reserve(RunId::new(), owner(next)).err();
            assert_eq!(
                refused.map(|refused| refused.setting()),
                expected,
                "{max} {max_per_owner} {taken:?} {next}"
            );
        }
        let refused = TooManyRuns {
            live: 3,
            max: 2,
            is_of_caller: true,
        };
        assert_eq!(
            refused.to_string(),
            "3 runs of this caller have not ended, and `runs.max_per_token` is 2; end one, or try again later"
        );
    }

    #[test]
    fn a_place_is_free_again_when_its_run_ends_or_was_not_stored() {
        let live = LiveRuns::new(1, 0);
        let run = RunId::new();
        let reserved = live.reserve(run, owner("a")).unwrap();
        assert!(live.contains(run) && live.commands(run).is_none());
        assert!(live.reserve(RunId::new(), owner("a")).is_err());
        drop(reserved);
        let reserved = live.reserve(run, owner("a")).unwrap();
        assert_eq!(enter(&live, run, "a", false), Ok(true));
        // It has a driver now, and keeps its place.
        drop(reserved);
        assert!(live.commands(run).is_some());
        assert_eq!(enter(&live, run, "a", true), Ok(false));
        let other = enter(&live, RunId::new(), "b", true);
        assert_eq!(other, Err("runs.max".to_owned()));
        assert_eq!(live.remove_unless(run, || Some(1)), Some(1));
        assert!(live.contains(run));
        assert_eq!(live.remove_unless(run, || None::<u8>), None);
        assert_eq!(enter(&live, run, "a", true), Ok(true));
        live.remove(run);
        assert!(!live.contains(run));
    }
}
