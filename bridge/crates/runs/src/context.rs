//! Context of a piece of work: its run, the state when it began, and its ways to report.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{Mutex, OnceCell, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use forge_base::id::{DispatchId, RunId};
use forge_dispatch::submit::SubmitHeaders;
use forge_store::{self as store};

use crate::agent::Place;
use crate::git::{self, Branch, Repository};
use crate::request::RunRequest;
use crate::space::{Occupied, Space};
use crate::state::State;
use crate::step::StepId;
use crate::wait::{Trouble, Wait};
use crate::{Inner, Report, Work};

/// Wait before work that could not be done is decided again.
const AGAIN: Duration = Duration::from_secs(5);

#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) inner: Arc<Inner>,
    pub(crate) run: RunId,
    pub(crate) request: Arc<RunRequest>,
    pub(crate) traceparent: Option<String>,
    /// State when the work began.
    pub(crate) state: Arc<State>,
    pub(crate) opened: Arc<OnceCell<Repository>>,
    /// Positions up to which events of dispatches were taken over when the work began.
    pub(crate) taken_over: BTreeMap<DispatchId, u64>,
    pub(crate) reports: mpsc::Sender<Report>,
    /// Cancelled with the run.
    pub(crate) stop: CancellationToken,
    /// Held while the work of one agent is merged into that of another.
    pub(crate) merging: Arc<Mutex<()>>,
    /// Dispatches that are followed.
    pub(crate) running: Running,
}

/// Dispatches of agents that are followed, with their places.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<StdMutex<BTreeMap<DispatchId, Place>>>);

impl Running {
    pub(crate) fn all(&self) -> Vec<(DispatchId, Place)> {
        let running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        running
            .iter()
            .map(|(id, place)| (*id, place.clone()))
            .collect()
    }
}

/// Place in [`Running`], until it is dropped.
pub(crate) struct Followed {
    running: Running,
    _occupied: Occupied,
    id: DispatchId,
}

impl Drop for Followed {
    fn drop(&mut self) {
        let running = &self.running.0;
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        running.remove(&self.id);
    }
}

impl Context {
    /// Repository of the run; fetched by the first call.
    pub(crate) async fn repository(&self) -> Result<Repository, git::Error> {
        let open = || async {
            let git = self
                .inner
                .git
                .as_ref()
                .map_err(|text| git::Error::Missing(text.clone()))?;
            let url = git.check(&self.request.repo_url)?;
            let reference = self.request.reference.as_deref();
            git.attach(&self.run.to_string(), &url, reference).await
        };
        self.opened.get_or_try_init(open).await.cloned()
    }

    /// Branch of an attempt.
    pub(crate) fn branch(&self, task: &str, attempt: u32) -> Result<Branch, git::BadId> {
        Branch::of_attempt(&self.run.to_string(), task, attempt)
    }

    /// Branch that the results of the run are merged into.
    pub(crate) fn target(&self) -> Result<Branch, git::BadId> {
        Branch::of_run(&self.run.to_string())
    }

    /// Notes that a dispatch is followed, until the result is dropped.
    pub(crate) fn register(&self, id: DispatchId, place: &Place) -> Followed {
        let mut running = (self.running.0)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        running.insert(id, place.clone());
        Followed {
            running: self.running.clone(),
            _occupied: Space::register(&self.inner, self.run, id, place),
            id,
        }
    }

    /// Time of the next try after trouble; `None` once patience is over.
    pub(crate) fn next_try(&self, before: Option<&Wait>, trouble: &Trouble) -> Option<Timestamp> {
        let (now, patience) = (self.inner.clock.now(), self.inner.config.patience);
        Wait::next(before, trouble, now, patience)
    }

    /// No result, after a wait: the work is decided again.
    pub(crate) async fn again(&self, error: &(impl Display + Sync)) -> Work {
        tracing::warn!(run = %self.run, "work on the run is tried again: {error}");
        let _ = self.stop.run_until_cancelled(sleep(AGAIN)).await;
        Work::default()
    }

    /// Body and headers of a step in a folder.
    pub(crate) fn step(&self, id: &StepId, message: &str, folder: &Path) -> (Value, SubmitHeaders) {
        let config = &self.inner.config;
        let body = json!({
            "taskId": id.to_string(),
            "agentId": config.agent_id,
            "message": message,
            "callbackUrl": null,
            "provider": self.request.provider,
            "model": self.request.model,
            "timeout": config.step_timeout.as_secs_f64(),
            "runId": self.run,
            "stepId": id.of,
            "workspace": {"dir": folder},
            "budget": self.budget(),
        });
        let headers = SubmitHeaders {
            traceparent: self.traceparent.clone(),
            is_step: true,
            ..SubmitHeaders::default()
        };
        (body, headers)
    }

    /// Rest of the run's budget.
    fn budget(&self) -> Value {
        let Some(budget) = &self.state.budget else {
            return Value::Null;
        };
        let cost = budget
            .max_cost_usd
            .map(|most| (most - self.state.cost_usd()).max(f64::MIN_POSITIVE));
        let tokens = budget
            .max_tokens
            .map(|most| most.saturating_sub(self.state.tokens).max(1));
        json!({ "maxCostUsd": cost, "maxTokens": tokens })
    }

    /// Document of a task.
    pub(crate) async fn document(&self, task: &str) -> store::Result<String> {
        let text = self.artifact(&format!("tasks/{task}.md")).await?;
        Ok(text.unwrap_or_else(|| task.to_owned()))
    }

    /// Prompt files of a task: the specifications, and the walkthroughs of its dependencies.
    pub(crate) async fn files(&self, task: &str) -> store::Result<Value> {
        let before = self.state.dependencies(task);
        let walkthroughs = before
            .iter()
            .filter_map(|id| self.state.tasks.get(id)?.walkthrough.clone());
        let specs = self
            .state
            .specs
            .iter()
            .map(|name| format!("specs/{name}.md"));
        let mut files = Vec::new();
        for path in specs.chain(walkthroughs) {
            if let Some(content) = self.artifact(&path).await? {
                files.push(json!({ "path": path, "content": content }));
            }
        }
        Ok(files.into())
    }

    async fn artifact(&self, path: &str) -> store::Result<Option<String>> {
        let found = self.inner.store.run_artifact(self.run, path).await?;
        Ok(found.map(|artifact| String::from_utf8_lossy(&artifact.bytes).into_owned()))
    }
}
