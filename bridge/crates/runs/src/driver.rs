//! Driver of one run: one task that folds what happens, decides, and starts the work. All changes of the run go through
//! it, one after another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{Mutex, OnceCell, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use forge_base::failpoint;
use forge_base::id::{DispatchId, RunId};
use forge_base::time::{self, Sleeper};
use forge_base::trace::TraceContext;
use forge_store::record::{
    DispatchFilter, KeyOwner, RunChange, RunEvent, RunRecord, RunStatus, Status,
};
use forge_store::{self as store};

use crate::checkouts::{Checkouts, remove_completed};
use crate::command::Command;
use crate::context::{Context, Running};
use crate::decide::{Action, Transition, changed, decide};
use crate::event::{Entry, Event, TaskStatus};
use crate::git::Repository;
use crate::greeting::{self, Greeting};
use crate::meters::Share;
use crate::request::RunRequest;
use crate::space::needs_space;
use crate::state::State;
use crate::{
    Artifact, Asked, Asks, Error, Inner, Report, TakenOver, Work, agent, artifact, attempt,
    captain, pause, refinery, repository, trace,
};

/// Wait after a failure of the store.
const STORE_RETRY: Duration = Duration::from_secs(1);
/// Reports that wait for the driver; more make the work wait.
const REPORTS: usize = 64;
const PAGE: usize = 100;

pub(crate) struct Driver {
    inner: Arc<Inner>,
    id: RunId,
    request: Arc<RunRequest>,
    trace: Option<TraceContext>,
    share: Share,
    state: State,
    opened: Arc<OnceCell<Repository>>,
    seq: u64,
    /// Size of all artifacts.
    artifact_bytes: u64,
    taken_over: BTreeMap<DispatchId, u64>,
    asked: mpsc::Receiver<Asked>,
    reports: (mpsc::Sender<Report>, mpsc::Receiver<Report>),
    in_flight: Vec<Action>,
    checkouts: Checkouts,
    merging: Arc<Mutex<()>>,
    running: Running,
    /// Cancelled when the run is.
    stop: CancellationToken,
}

/// JSON of a value.
pub(crate) fn raw(value: &impl Serialize) -> Box<RawValue> {
    to_raw_value(value).expect("it has only text keys")
}

pub(crate) fn stored(entry: &Entry) -> RunEvent {
    RunEvent {
        task_id: entry.event.task_id().map(str::to_owned),
        attempt: entry.attempt,
        event: entry.event.stored(entry.at),
    }
}

impl Driver {
    pub(crate) fn new(
        inner: Arc<Inner>,
        record: &RunRecord,
        asked: mpsc::Receiver<Asked>,
    ) -> store::Result<Self> {
        let taken_over = record
            .taken_over
            .as_ref()
            .map(|text| serde_json::from_str(text.get()));
        let taken_over = taken_over.transpose().map_err(|error| {
            store::Error::Unreadable(format!("positions of {}: {error}", record.id))
        })?;
        let state = State::stored(record)?;
        let mut share = Share::new(Arc::clone(&inner.meters));
        share.update(&state);
        Ok(Self {
            id: record.id,
            request: Arc::new(RunRequest::stored(record)?),
            trace: trace::context(&record.trace_id, inner.dispatcher.spans()),
            share,
            state,
            opened: Arc::default(),
            seq: record.seq,
            artifact_bytes: 0,
            taken_over: taken_over.unwrap_or_default(),
            asked,
            reports: mpsc::channel(REPORTS),
            in_flight: Vec::new(),
            checkouts: Checkouts::default(),
            merging: Arc::default(),
            running: Running::default(),
            stop: CancellationToken::new(),
            inner,
        })
    }

    /// Caller that the run belongs to.
    pub(crate) fn owner(&self) -> KeyOwner {
        self.request.owner
    }

    /// Drives the run to its end, or until the bridge stops.
    pub(crate) async fn run(mut self) {
        let shutdown = self.inner.shutdown.clone();
        let id = self.id;
        let inner = Arc::clone(&self.inner);
        let driving = shutdown.run_until_cancelled_owned(async move {
            let driven = self.drive().await;
            if let Err(error) = driven {
                tracing::error!(run = %self.id, "the run cannot go on until the bridge starts again: {error}");
                self.inner.live.remove(self.id);
            }
        });
        if driving.await.is_none() {
            inner.live.remove(id);
        }
    }

    async fn drive(&mut self) -> store::Result<()> {
        let artifacts = self.inner.store.run_artifacts(self.id).await?;
        self.artifact_bytes = artifacts.iter().map(|artifact| artifact.size).sum();
        self.checkouts = Checkouts::find(&self.inner.git, self.id).await;
        self.discard_checkouts();
        let mut reports = Vec::with_capacity(REPORTS);
        let mut space = self.inner.space.changes();
        let mut sleeper = Sleeper::new(self.inner.clock);
        loop {
            space.mark_unchanged();
            let wake = self.advance().await?;
            if self.state.end.is_some() {
                failpoint::point("run.ended");
                remove_completed(&self.inner, self.id, self.state.status()).await;
                match self.last_command() {
                    Some(asked) => self.answer(asked).await?,
                    None => return Ok(()),
                }
                continue;
            }
            let now = self.inner.clock.now();
            let waited = wake.map_or(Duration::MAX, |wake| time::left(now, wake));
            tokio::select! {
                _ = sleeper.sleep(waited) => {}
                Some(asked) = self.asked.recv() => self.answer(asked).await?,
                Ok(()) = space.changed() => {}
                _ = self.reports.1.recv_many(&mut reports, REPORTS) => {
                    self.take(std::mem::take(&mut reports)).await?;
                }
            }
        }
    }

    /// A request that came before the end of the driver, such as one that reopens the run. Without one, this is the end.
    fn last_command(&mut self) -> Option<Asked> {
        (self.inner.live).remove_unless(self.id, || self.asked.try_recv().ok())
    }

    /// Starts what the state asks for. Returns the time at which something that waits is due.
    async fn advance(&mut self) -> store::Result<Option<Timestamp>> {
        loop {
            match self.state.is_cancelling {
                true => self.stop.cancel(),
                false if self.stop.is_cancelled() => self.stop = CancellationToken::new(),
                false => {}
            }
            let is_short = self.inner.space.shortage().is_some();
            let mut has_changed = false;
            let (mut scheduled, mut new) = (Vec::new(), Vec::new());
            let now = self.inner.clock.now();
            let decision = decide(&self.state, self.inner.config.max_parallel, now);
            for action in decision.actions {
                match action {
                    Action::Record(transitions) => has_changed |= self.record(transitions).await?,
                    other if self.in_flight.contains(&other) => {}
                    other if is_short && needs_space(&other) => {}
                    other => {
                        scheduled.extend(self.scheduled(&other).unwrap_or_default());
                        new.push(other);
                    }
                }
            }
            self.append(scheduled, Vec::new()).await?;
            new.into_iter().for_each(|action| self.start(action));
            if !has_changed {
                return Ok(decision.wake);
            }
        }
    }

    /// Writes transitions; the end of the run waits for work in flight.
    async fn record(&mut self, transitions: Vec<Transition>) -> store::Result<bool> {
        let ends = transitions
            .iter()
            .any(|one| matches!(one, Transition::Complete { .. }));
        if ends && !self.in_flight.is_empty() {
            return Ok(false);
        }
        if ends && self.state.is_cancelling {
            self.cancel_leftovers().await?;
        }
        let now = self.inner.clock.now();
        let elapsed = self.state.elapsed_ms(now);
        let (mut events, mut artifacts) = (Vec::new(), Vec::new());
        for transition in &transitions {
            let work = transition.work(&self.state, elapsed);
            events.extend(work.entries);
            artifacts.extend(work.artifacts);
        }
        self.append(at(now, events), artifacts).await?;
        Ok(true)
    }

    /// Cancels dispatches that a crash separated from their attempts.
    async fn cancel_leftovers(&self) -> store::Result<()> {
        for status in [Status::Queued, Status::Running] {
            let mut before = None;
            loop {
                let filter = DispatchFilter {
                    status: Some(status),
                    run_id: Some(self.id.to_string()),
                    before,
                    limit: PAGE,
                    ..DispatchFilter::default()
                };
                let page = self.inner.store.dispatches(filter).await?;
                for dispatch in &page.items {
                    if let Err(error) = self.inner.dispatcher.cancel(dispatch.id).await {
                        tracing::warn!(run = %self.id, "{} was not cancelled: {error}", dispatch.id);
                    }
                }
                before = page.next;
                if before.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Events that precede a greeting, a new attempt or a new agent, unless they are written.
    fn scheduled(&self, action: &Action) -> Option<Vec<Entry>> {
        if let Action::Captain { .. } = action {
            let is_greeting = greeting::is_due(&self.state) == Some(Greeting::Agent);
            let events = is_greeting.then(|| vec![(0, Event::CaptainGreeting {})])?;
            return Some(at(self.inner.clock.now(), events));
        }
        if let Action::Follow(place) = action {
            let task = self.state.tasks.get(&place.task)?;
            let agent = task.agents.get(place.agent);
            let agent = agent.filter(|agent| !agent.is_started)?;
            let started = Event::AgentStarted {
                task_id: place.task.clone(),
                agent: place.agent,
                agent_type: agent.agent_type,
                title: agent.title.clone(),
                branch: place.branch(self.id).ok()?.to_string(),
            };
            let events = vec![(place.attempt, started)];
            return Some(at(self.inner.clock.now(), events));
        }
        let (Action::Start { task, attempt } | Action::Merge { task, attempt }) = action else {
            return None;
        };
        let known = self
            .state
            .tasks
            .get(task)
            .filter(|known| !known.is_scheduled)?;
        let mut events = vec![Event::TaskScheduled {
            task_id: task.clone(),
            agent_type: known.agent_type,
        }];
        if known.is_refinery() {
            events.push(changed(
                task,
                TaskStatus::Pending,
                TaskStatus::Running,
                *attempt,
            ));
            events.push(Event::RefineryStarted {
                task_id: task.clone(),
                dependency_count: self.state.dependencies(task).len(),
            });
        }
        let events = events.into_iter().map(|event| (*attempt, event));
        Some(at(self.inner.clock.now(), events.collect()))
    }

    fn start(&mut self, action: Action) {
        let context = Context {
            inner: Arc::clone(&self.inner),
            run: self.id,
            request: Arc::clone(&self.request),
            traceparent: self.trace.map(|trace| trace.to_string()),
            state: Arc::new(self.state.clone()),
            opened: Arc::clone(&self.opened),
            taken_over: self.taken_over.clone(),
            reports: self.reports.0.clone(),
            stop: self.stop.clone(),
            merging: Arc::clone(&self.merging),
            running: self.running.clone(),
        };
        self.checkouts.note(&action);
        self.in_flight.push(action.clone());
        let shutdown = self.inner.shutdown.clone();
        let working = async move {
            let work = match &action {
                Action::Attach => repository::attach(&context).await,
                Action::Captain { turn } => captain::turn(&context, *turn).await,
                Action::Start { task, attempt } => attempt::start(&context, task, *attempt).await,
                Action::Follow(place) => agent::follow(&context, place).await,
                Action::Push { task, attempt } => attempt::push(&context, task, *attempt).await,
                Action::Merge { task, attempt } => refinery::merge(&context, task, *attempt).await,
                Action::Record(_) => Work::default(),
            };
            let _ = context
                .reports
                .send(Report::Done(action, Box::new(work)))
                .await;
        };
        self.inner
            .tracker
            .spawn(async move { shutdown.run_until_cancelled_owned(Box::pin(working)).await });
    }

    /// Removes the checkouts that are not needed any more.
    fn discard_checkouts(&mut self) {
        let git = &self.inner.git;
        (self.checkouts).discard_over(git, self.id, &self.state, &self.in_flight);
    }

    /// Carries out a request of a client.
    async fn answer(&mut self, asked: Asked) -> store::Result<()> {
        let Asked { command, answer } = asked;
        let now = self.inner.clock.now();
        let events = match command.events(&self.state, now) {
            Ok(events) => events,
            Err(error) => {
                let _ = answer.send(Err(Error::NotNow(error)));
                return Ok(());
            }
        };
        if !events.is_empty() {
            self.append(at(now, events), Vec::new()).await?;
        }
        if let Command::Pause(mode) = command {
            pause::acknowledge(&self.inner, mode, self.running.all(), &self.reports.0);
        }
        let status = match command {
            Command::Cancel => RunStatus::Cancelled,
            _ => self.state.status(),
        };
        let _ = answer.send(Ok(status));
        Ok(())
    }

    /// Writes what was reported: all of it in one transaction, but calls after everything before them.
    async fn take(&mut self, reports: Vec<Report>) -> store::Result<()> {
        let (mut entries, mut artifacts) = (Vec::new(), Vec::new());
        for report in reports {
            match report {
                Report::Acknowledged(more) => entries.extend(more),
                Report::Events(more, TakenOver { dispatch, position }) => {
                    self.taken_over.insert(dispatch, position);
                    if !more.is_empty() {
                        failpoint::point("run.take_over");
                    }
                    entries.extend(more);
                }
                Report::Done(action, work) => {
                    self.in_flight.retain(|one| *one != action);
                    let mut work = *work;
                    if let Some(dispatch) = work.ended {
                        self.taken_over.remove(&dispatch);
                    }
                    let now = self.inner.clock.now();
                    if let Some(asks) = work.asks.take() {
                        let before = std::mem::take(&mut entries);
                        self.append(before, std::mem::take(&mut artifacts)).await?;
                        let more = self.carry_out(asks, &work.entries, now);
                        work.entries.extend(more.entries);
                        work.artifacts.extend(more.artifacts);
                    }
                    if !work.entries.is_empty() {
                        failpoint::point("run.settle");
                    }
                    entries.extend(at(now, work.entries));
                    artifacts.extend(work.artifacts);
                }
            }
        }
        self.append(entries, artifacts).await
    }

    /// Carries out the calls of an agent, on the state of this moment.
    fn carry_out(&self, asks: Asks, before: &[(u32, Event)], now: Timestamp) -> Work {
        let mut state = self.state.clone();
        if let Asks::Agent { place, calls } = asks {
            for entry in at(now, before.to_vec()) {
                state.fold(&entry);
            }
            return agent::carry_out(&mut state, &place, calls, now);
        }
        let Asks::Captain(outcome) = asks else {
            return Work::default();
        };
        captain::carry_out(&mut state, self.id, outcome, now)
    }

    /// Appends events, unless there are none, with all that follows from them, in one transaction; repeats it while the store is unavailable.
    async fn append(
        &mut self,
        mut entries: Vec<Entry>,
        artifacts: Vec<Artifact>,
    ) -> store::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let now = self.inner.clock.now();
        let written = artifacts.iter().map(|artifact| Entry {
            at: now,
            attempt: 0,
            event: Event::ArtifactWritten {
                path: artifact.path.clone(),
                kind: artifact.kind,
            },
        });
        entries.extend(written);
        // Folded before it is written: if it cannot be, the driver ends and this state with it.
        let is_changed = entries
            .iter()
            .fold(false, |changed, entry| self.state.fold(entry) | changed);
        let change = RunChange {
            id: self.id,
            after_seq: self.seq,
            events: entries.iter().map(stored).collect(),
            projection: is_changed.then(|| raw(&self.state)),
            taken_over: Some(raw(&self.taken_over)),
            status: self.state.status(),
            artifacts: artifact::rows(artifacts, &mut self.artifact_bytes, now),
            end: self
                .state
                .end
                .as_ref()
                .map(|end| (end.at, *self.inner.retention.get())),
        };
        while let Err(error) = self.inner.store.append_run(change.clone()).await {
            match error {
                store::Error::Unavailable(_) => {
                    tracing::warn!(run = %self.id, "events of the run are written again: {error}");
                    sleep(STORE_RETRY).await;
                }
                other => return Err(other),
            }
        }
        self.seq += entries.len() as u64;
        if is_changed {
            self.share.update(&self.state);
            self.discard_checkouts();
        }
        entries
            .iter()
            .for_each(|entry| self.inner.meters.count(entry));
        if let Some(end) = &self.state.end {
            let spans = self.inner.dispatcher.spans();
            trace::ended(spans, self.trace, self.id, (&self.state, end));
        }
        Ok(())
    }
}

/// Events as entries of one moment.
fn at(now: Timestamp, events: Vec<(u32, Event)>) -> Vec<Entry> {
    let entries = events.into_iter().map(|(attempt, event)| Entry {
        at: now,
        attempt,
        event,
    });
    entries.collect()
}
