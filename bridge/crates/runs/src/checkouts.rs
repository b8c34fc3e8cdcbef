//! Checkouts that a run does not need any more, and folders of runs that have ended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval};

use forge_base::id::RunId;
use forge_store::record::RunStatus;
use forge_store::{self as store};

use crate::decide::Action;
use crate::event::TaskStatus;
use crate::git::{Branch, Git};
use crate::plan::CAPTAIN;
use crate::state::{Plan, State};
use crate::{Inner, Push, change};

/// Interval at which folders of runs are looked through.
const TIDY_INTERVAL: Duration = Duration::from_secs(600);

/// Checkout of an attempt, or of an agent that it has started.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CheckoutId {
    task: String,
    attempt: u32,
    /// 0 is the attempt's own agent.
    agent: u32,
}

impl CheckoutId {
    /// Checkout that an action makes or opens.
    pub(crate) fn of(action: &Action) -> Option<Self> {
        let (task, attempt, agent) = match action {
            Action::Captain { .. } => (CAPTAIN, 1, 0),
            Action::Start { task, attempt } | Action::Merge { task, attempt } => {
                (task.as_str(), *attempt, 0)
            }
            Action::Follow(place) => {
                let agent = u32::try_from(place.agent).unwrap_or(u32::MAX);
                (place.task.as_str(), place.attempt, agent)
            }
            Action::Attach | Action::Push { .. } | Action::Record(_) => return None,
        };
        Some(Self {
            task: task.to_owned(),
            attempt,
            agent,
        })
    }

    /// Reads `<attempt>` or `<attempt>.<agent>`.
    fn read(task: String, name: &str) -> Option<Self> {
        let (attempt, agent) = match name.split_once('.') {
            Some((attempt, agent)) => (attempt.parse().ok()?, agent.parse().ok()?),
            None => (name.parse().ok()?, 0),
        };
        Some(Self {
            task,
            attempt,
            agent,
        })
    }

    /// True if nothing needs the checkout: what it holds is committed, or given up. For an attempt this stays so; the
    /// Captain gets a new one for a change of the plan.
    fn is_over(&self, state: &State) -> bool {
        if self.task == CAPTAIN {
            let is_asked = !state.captain.results.is_empty() || change::asked_for(state).is_some();
            return state.plan == Plan::Approved && !is_asked;
        }
        let Some(task) = state.tasks.get(&self.task) else {
            return false;
        };
        if self.attempt != task.attempt {
            return self.attempt < task.attempt;
        }
        match task.status {
            TaskStatus::Pending => false,
            TaskStatus::Running => {
                let agent = task.agents.get(self.agent as usize);
                self.agent > 0 && agent.is_some_and(|agent| agent.is_ended)
            }
            TaskStatus::Done
            | TaskStatus::MergeReady
            | TaskStatus::Merged
            | TaskStatus::Failed
            | TaskStatus::Stale => true,
        }
    }

    fn branch(&self, run: &str) -> Option<Branch> {
        let Self {
            task,
            attempt,
            agent,
        } = self;
        match agent {
            0 => Branch::of_attempt(run, task, *attempt).ok(),
            agent => Branch::of_child(run, task, *attempt, *agent).ok(),
        }
    }
}

/// Checkouts of a run that can exist.
#[derive(Default)]
pub(crate) struct Checkouts(BTreeSet<CheckoutId>);

impl Checkouts {
    /// Finds those that an earlier process has left.
    pub(crate) async fn find(git: &Result<Git, String>, run: RunId) -> Self {
        let Ok(git) = git.clone() else {
            return Self::default();
        };
        let listing = spawn_blocking(move || git.checkouts(&run.to_string()));
        let found = match listing.await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::warn!(%run, "checkouts of the run are not looked for: {error}");
                Vec::new()
            }
            Err(_) => Vec::new(),
        };
        let found = found.into_iter();
        let read = found.filter_map(|(task, name)| CheckoutId::read(task, &name));
        Self(read.collect())
    }

    pub(crate) fn note(&mut self, action: &Action) {
        self.0.extend(CheckoutId::of(action));
    }

    /// Removes those that neither the state nor an action under way needs. They are out of the way on return.
    pub(crate) fn discard_over(
        &mut self,
        git: &Result<Git, String>,
        run: RunId,
        state: &State,
        in_flight: &[Action],
    ) {
        let Ok(git) = git else { return };
        let is_used = |id: &CheckoutId| {
            let used = in_flight.iter().filter_map(CheckoutId::of);
            used.into_iter()
                .any(|used| used.task == id.task && used.attempt == id.attempt)
        };
        let run = run.to_string();
        self.0.retain(|id| {
            if !id.is_over(state) || is_used(id) {
                return true;
            }
            if let Some(branch) = id.branch(&run)
                && let Err(error) = git.discard(&run, &branch)
            {
                tracing::warn!(run, "a checkout was not removed: {error}");
            }
            false
        });
    }
}

/// Removes the folder of a completed run, unless results are kept in it. That of a run with another end stays until its
/// retention is over: it can hold the only copy of what agents have made.
pub(crate) async fn remove_completed(inner: &Inner, run: RunId, status: RunStatus) {
    if status == RunStatus::Completed && inner.config.push == Push::Always {
        remove(inner, run).await;
    }
}

async fn remove(inner: &Inner, run: RunId) {
    let Ok(git) = inner.git.clone() else { return };
    let removed = spawn_blocking(move || git.remove(&run.to_string())).await;
    if let Ok(Err(error)) = removed {
        tracing::warn!(%run, "the folder of the run was not removed: {error}");
    }
}

/// Looks through the folders of runs now and once in a while, until the bridge stops.
pub(crate) async fn tidy(inner: Arc<Inner>) {
    let mut ticks = interval(TIDY_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = remove_ended(&inner).await {
            tracing::warn!("folders of ended runs are looked for later: {error}");
        }
    }
}

/// Removes the folders of completed runs, and of those whose retention is over.
async fn remove_ended(inner: &Inner) -> store::Result<()> {
    let Ok(git) = inner.git.clone() else {
        return Ok(());
    };
    let listing = spawn_blocking(move || git.runs());
    let runs = match listing.await {
        Ok(Ok(runs)) => runs,
        Ok(Err(error)) => {
            tracing::warn!("the folders of runs cannot be listed: {error}");
            return Ok(());
        }
        Err(_) => return Ok(()),
    };
    for run in runs.iter().filter_map(|name| name.parse::<RunId>().ok()) {
        // A run is recorded before it has a folder.
        match inner.store.run(run).await? {
            None => remove(inner, run).await,
            Some(record) if !inner.live.contains(run) => {
                remove_completed(inner, run, record.status).await;
            }
            Some(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::agent::Agent;
    use crate::plan::AgentType;
    use crate::request::Approval;
    use crate::state::Task;

    fn id(task: &str, name: &str) -> CheckoutId {
        CheckoutId::read(task.to_owned(), name).unwrap()
    }

    #[test]
    fn a_checkout_is_needed_until_its_attempt_or_agent_has_ended() {
        use TaskStatus::*;
        let mut state = State::new(Timestamp::UNIX_EPOCH, false, Approval::Auto);
        let over = |state: &State, name: &str| id("a", name).is_over(state);
        assert!(!over(&state, "1"), "a task that is not known");
        for (status, is_over) in [
            (Pending, false),
            (Running, false),
            (Done, true),
            (MergeReady, true),
            (Merged, true),
            (Failed, true),
            (Stale, true),
        ] {
            let mut task = Task::new(String::new(), AgentType::Worker, 2);
            task.status = status;
            let child = Agent {
                is_ended: true,
                ..Agent::own(AgentType::Throwaway)
            };
            let own = Agent::own(AgentType::Worker);
            task.agents = vec![own.clone(), child, own];
            state.tasks.insert("a".to_owned(), task);
            for (name, expected) in [
                ("1", true),
                ("1.1", true),
                ("2", is_over),
                ("2.1", is_over || status == Running),
                ("2.2", is_over),
                ("2.3", is_over),
                ("3", false),
            ] {
                assert_eq!(over(&state, name), expected, "{status:?} {name}");
            }
        }
    }

    #[test]
    fn the_captain_has_a_checkout_until_the_plan_is_approved() {
        let mut state = State::new(Timestamp::UNIX_EPOCH, true, Approval::Auto);
        for (plan, is_over) in [
            (Plan::Open, false),
            (Plan::Final, false),
            (Plan::Approved, true),
        ] {
            state.plan = plan;
            assert_eq!(id(CAPTAIN, "1").is_over(&state), is_over, "{plan:?}");
        }
    }
}
