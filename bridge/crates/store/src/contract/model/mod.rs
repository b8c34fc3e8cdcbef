//! Random sequences of changes, applied to the store in memory and to another one: both must answer alike after every
//! step, including restarts and kills. A failing sequence is shrunk and printed with its seed; `FORGE_MODEL_SEED`
//! repeats it, `FORGE_MODEL_CASES` and `FORGE_MODEL_STEPS` extend the test.

mod cases;
mod runs;
mod signals;
mod step;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::contract::Subject;
use crate::contract::judgement::charge;
use crate::contract::sample::{
    GIVE_UP_AFTER, PROVIDER, at, callback, event, failed, ok, owner, raw, settlement, task,
};
use crate::destination::DueQuery;
use crate::memory::Memory;
use crate::record::{
    Acceptance, AfterAttempt, ApprovalFilter, ApprovalStatus, Claim, ClaimLimits, Content,
    Decision, DeliveryFilter, DeliveryState, DispatchFilter, EventFilter, Finish, IdempotencyKey,
    KeySpace, Lease, NewDelivery, NewDispatch, Progress, Replay, Requeue, Reroute, Spending,
    Status,
};
use crate::roles::{EventLog as _, Executions as _, Records as _};
use crate::{Error, Store};
use async_trait::async_trait;
use forge_base::event::kind;
use forge_base::id::{DeliveryId, DispatchId, RunId};

use step::Step;

pub use cases::{
    answers_about_runs_as_the_model, answers_about_signals_as_the_model, answers_as_the_model,
};

/// A store that can be killed.
#[async_trait]
pub trait Killable: Subject + 'static {
    /// Opens what a kill of the process that has opened it leaves.
    async fn open_as_killed(&self) -> Arc<dyn Store>;
    /// Problems that a check of the store finds.
    async fn problems(&self) -> Vec<String>;
}

fn decision(now: i64) -> Decision {
    Decision {
        at: at(now),
        by: "operator".to_owned(),
        reason: (now % 2 == 0).then(|| "seen".to_owned()),
    }
}

/// Both stores, and the items created so far.
struct Pair {
    model: Memory,
    disk: Box<dyn Killable>,
    store: Arc<dyn Store>,
    dispatches: Vec<DispatchId>,
    deliveries: Vec<DeliveryId>,
    leases: Vec<Lease>,
    runs: Vec<RunId>,
    now: i64,
}

/// Calls both stores and compares the answers, ignoring the names of their logs. Evaluates to the model's answer.
macro_rules! both {
    ($pair:ident, $store:ident => $call:expr) => {{
        let expected = {
            let $store: &dyn Store = &$pair.model;
            $call.await
        };
        let found = {
            let $store: &dyn Store = &*$pair.store;
            $call.await
        };
        $pair.compare(stringify!($call), &expected, &found);
        expected
    }};
}
use both;

/// Calls both stores for the first two pages of a list, each with its own places, and compares the pages.
macro_rules! both_pages {
    ($pair:ident, $store:ident, $before:ident => $call:expr) => {{
        let (mut of_model, mut of_store) = (None, None);
        for _ in 0..2 {
            let expected = {
                let ($store, $before): (&dyn Store, _) = (&$pair.model, of_model);
                $call.await.unwrap()
            };
            let found = {
                let ($store, $before): (&dyn Store, _) = (&*$pair.store, of_store);
                $call.await.unwrap()
            };
            (of_model, of_store) = (expected.next, found.next);
            let [expected, found] = [expected, found].map(|page| (page.items, page.next.is_some()));
            $pair.compare(stringify!($call), &expected, &found);
            if of_model.is_none() {
                break;
            }
        }
    }};
}
use both_pages;

impl Pair {
    fn compare(&self, call: &str, expected: &impl Debug, found: &impl Debug) {
        let text = |answer: &dyn Debug, log: &str| format!("{answer:?}").replace(log, "LOG");
        assert_eq!(
            text(expected, self.model.log().as_str()),
            text(found, self.store.log().as_str()),
            "{call}"
        );
    }

    fn pick<T: Clone>(all: &[T], n: usize) -> Option<T> {
        (!all.is_empty()).then(|| all[n % all.len()].clone())
    }

    fn finish(&self, code: Option<u8>, owed: bool) -> impl Fn() -> Finish + use<> {
        let now = self.now;
        let output = now.checked_rem(3) == Some(0);
        move || Finish {
            output: output.then(|| format!("a long output of second {now}")),
            output_files: vec![
                format!("a file of second {now}").into_bytes();
                usize::from(!output)
            ],
            delivery: owed.then_some(NewDelivery {
                give_up_after: GIVE_UP_AFTER,
            }),
            retention: Duration::from_secs(30),
            charge: output.then(|| charge(now.unsigned_abs(), now, &Arc::default())),
            spending: output.then(|| Spending {
                cost_micros: Some(now.unsigned_abs()),
                ..Spending::default()
            }),
            ..match code {
                None => ok(now),
                Some(0) => failed("cancelled", now),
                Some(_) => failed("timeout", now),
            }
        }
    }

    async fn make(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Accept {
                task: n,
                header,
                body,
                session,
                priority,
                delay,
                other,
                start,
                is_held,
            } => {
                let id = DispatchId::new();
                self.dispatches.push(id);
                self.deliveries.push(DeliveryId::of(id));
                let host = format!("{}.example", now % 3);
                let (n, owner) = (n / 2, owner(n % 2));
                let new = || {
                    let task_id = format!("task-{n}");
                    let key = match header {
                        None => (KeySpace::Task, task_id.clone()),
                        Some(header) => (KeySpace::Header, format!("key-{header}")),
                    };
                    let new = task(&task_id);
                    let request = format!("[{body}]");
                    NewDispatch {
                        id,
                        key: IdempotencyKey {
                            owner,
                            space: key.0,
                            value: key.1,
                        },
                        attachments: vec![Vec::new(), request.as_bytes().to_vec()],
                        fingerprint: forge_base::digest::sha256(&request),
                        request: raw(&request),
                        session: session.map(|session| session.to_string()),
                        priority,
                        provider: if other { "other" } else { PROVIDER }.to_owned(),
                        accepted_at: at(now),
                        not_before: delay.map(|delay| at(now + i64::from(delay))),
                        start_by: at(now + 15),
                        is_held,
                        start: start.then(|| event(kind::STARTED, now)),
                        callback: (now % 5 > 0).then(|| callback(&host)),
                        queue_limit: 8,
                        ..new
                    }
                };
                let accepted = both!(self, store => store.accept(new())).unwrap();
                if let Acceptance::Accepted {
                    begun: Some(begun), ..
                } = accepted
                {
                    self.leases.push(begun.lease);
                }
            }
            Step::Promote => {
                both!(self, store => store.promote(at(now), 2)).unwrap();
            }
            Step::Claim(count, other) => {
                let provider = if other { "other" } else { PROVIDER };
                let limits = ClaimLimits {
                    count,
                    max_attempts: 2,
                    home_grace: None,
                };
                let started = || event(kind::STARTED, now);
                let claimed = both!(self, store => store.claim(provider, limits, started()));
                let claimed = claimed.unwrap().into_iter();
                self.leases.extend(claimed.map(|one| one.begun.lease));
            }
            Step::Append(n) => {
                let Some(lease) = Self::pick(&self.leases, n) else {
                    return;
                };
                let progress = || Progress {
                    events: vec![event("assistant.text", now); n % 3],
                    session: Some(n.to_string()),
                    spent: Some(raw(&n.to_string())),
                    charge: (n % 2 == 0).then(|| charge(n as u64 % 100, now, &Arc::default())),
                };
                let _ = both!(self, store => store.append(&lease, progress()));
            }
            Step::FinishAttempt(n, code, owed) => {
                let Some(lease) = Self::pick(&self.leases, n) else {
                    return;
                };
                let finish = self.finish(code, owed);
                let claim = || Claim::Attempt(lease.clone());
                let _ = both!(self, store => store.finish(claim(), finish()));
            }
            Step::FinishQueued(n, code) => {
                let Some(id) = Self::pick(&self.dispatches, n) else {
                    return;
                };
                let finish = self.finish(code, true);
                let _ = both!(self, store => store.finish(Claim::Unstarted(id), finish()));
            }
            Step::FinishInterrupted(n) => {
                let Some(Lease { id, attempt, .. }) = Self::pick(&self.leases, n) else {
                    return;
                };
                let finish = self.finish(Some(1), true);
                let claim = || Claim::Interrupted { id, attempt };
                let _ = both!(self, store => store.finish(claim(), finish()));
            }
            Step::Requeue(n) => {
                let Some(lease) = Self::pick(&self.leases, n) else {
                    return;
                };
                let claim = || Claim::Attempt(lease.clone());
                let event = || event(kind::RETRYING, now);
                let requeue = || Requeue { event: event() };
                let _ = both!(self, store => store.requeue(claim(), requeue()));
            }
            Step::RequeueInterrupted(n) => {
                let Some(Lease { id, attempt, .. }) = Self::pick(&self.leases, n) else {
                    return;
                };
                let claim = || Claim::Interrupted { id, attempt };
                let event = || event(kind::RETRYING, now);
                let requeue = || Requeue { event: event() };
                let _ = both!(self, store => store.requeue(claim(), requeue()));
            }
            Step::Cancel(n) => {
                let Some(id) = Self::pick(&self.dispatches, n) else {
                    return;
                };
                both!(self, store => store.request_cancel(id, at(now))).unwrap();
            }
            Step::Approve(n) => {
                let Some(id) = Self::pick(&self.dispatches, n) else {
                    return;
                };
                let approved = || event(kind::APPROVAL_APPROVED, now);
                let _ = both!(self, store => store.approve(id, decision(now), approved()));
            }
            Step::Reject(n) => {
                let Some(id) = Self::pick(&self.dispatches, n) else {
                    return;
                };
                let finish = self.finish(Some(1), true);
                let claim = || Claim::Rejected(id, decision(now));
                let _ = both!(self, store => store.finish(claim(), finish()));
            }
            Step::Reroute(n, other, session) => {
                let Some(id) = Self::pick(&self.dispatches, n) else {
                    return;
                };
                let reroute = || Reroute {
                    id,
                    provider: if other { "other" } else { PROVIDER }.to_owned(),
                    session: session.map(|session| session.to_string()),
                    routing: raw(&now.to_string()),
                };
                let _ = both!(self, store => store.reroute(reroute()));
            }
            Step::Settle(n, next) => {
                let Some(id) = Self::pick(&self.deliveries, n) else {
                    return;
                };
                let next = match next {
                    0 => AfterAttempt::Delivered,
                    1 => AfterAttempt::Dead,
                    _ => AfterAttempt::Retry { due: at(now + 5) },
                };
                let number = u32::try_from(now).unwrap();
                let settled = || settlement(number, now, next);
                let settled = || crate::contract::sample::keep_for(settled(), 30);
                let _ = both!(self, store => store.settle(id, settled()));
            }
            Step::ReplayOne(n) => {
                let Some(id) = Self::pick(&self.deliveries, n) else {
                    return;
                };
                let _ = both!(self, store => store.replay(Replay::One(id), at(now)));
            }
            Step::ReplayMany(n) => {
                let many = || Replay::Many {
                    host: (n < 3).then(|| format!("{n}.example")),
                    since: Some(at(now - 40)),
                    status: DeliveryState::Dead,
                };
                both!(self, store => store.replay(many(), at(now))).unwrap();
            }
            Step::FollowClock(back) => {
                let at = at(now - i64::from(back));
                both!(self, store => store.follow_clock(at)).unwrap();
            }
            Step::Unbound => {
                let events = || vec![event(kind::ADAPTER_EVENT, now); 2];
                both!(self, store => store.append_unbound(PROVIDER, events())).unwrap();
            }
            Step::Sweep(limit) => {
                both!(self, store => sweep_all(store, now, limit));
            }
            Step::Seal(name, value) => {
                let name = format!("name-{name}");
                both!(self, store => store.seal_once(&name, vec![value])).unwrap();
                both!(self, store => store.sealed(&name)).unwrap();
            }
            Step::Run(step) => self.make_run(step).await,
            Step::Signal(step) => self.make_signal(step).await,
            Step::Restart => {
                self.model = self.model.restart();
                self.store = self.disk.open().await;
                self.claim_deliveries().await;
            }
            Step::Kill => {
                self.model = self.model.restart();
                self.store = self.disk.open_as_killed().await;
                self.claim_deliveries().await;
            }
        }
    }

    /// Takes all that is due, as a bridge does when it starts: those of the one before are settled only after that.
    async fn claim_deliveries(&mut self) {
        let all = || DueQuery {
            now: at(self.now),
            exclude: Vec::new(),
            per_origin: usize::from(u16::MAX),
            limit: usize::from(u16::MAX),
            in_flight: [].into_iter().collect(),
        };
        both!(self, store => store.due(all())).unwrap();
    }

    /// Compares everything that can be read.
    async fn look(&mut self) {
        let (now, after) = (self.now, self.now.unsigned_abs());
        self.compare("counts", &self.model.counts(), &self.store.counts());
        self.compare("bounds", &self.model.log_bounds(), &self.store.log_bounds());
        self.compare("epoch", &self.model.epoch(), &self.store.epoch());
        both!(self, store => store.queues()).unwrap();
        both!(self, store => store.ready(PROVIDER, 3)).unwrap();
        both!(self, store => store.ready("other", 3)).unwrap();
        both!(self, store => store.overdue(at(now), 3)).unwrap();
        both!(self, store => store.cancelled_in_queue(3)).unwrap();
        both!(self, store => store.next_queue_event()).unwrap();
        both!(self, store => store.interrupted(3)).unwrap();
        both!(self, store => store.next_due(&[])).unwrap();
        let due = || DueQuery {
            now: at(now),
            exclude: vec!["https://2.example:443".to_owned()],
            per_origin: 2,
            limit: 3,
            in_flight: self.deliveries.first().copied().into_iter().collect(),
        };
        both!(self, store => store.due(due())).unwrap();
        let page = |status, before| DispatchFilter {
            status,
            before,
            limit: 4,
            ..DispatchFilter::default()
        };
        for status in [None, Some(Status::Error)] {
            both_pages!(self, store, before => store.dispatches(page(status, before)));
        }
        for status in [
            ApprovalStatus::Waiting,
            ApprovalStatus::Approved,
            ApprovalStatus::Rejected,
        ] {
            let filter = |before| ApprovalFilter {
                status,
                before,
                limit: 3,
            };
            both_pages!(self, store, before => store.approvals(filter(before)));
        }
        let owed = |before| DeliveryFilter {
            before,
            limit: 4,
            ..DeliveryFilter::default()
        };
        both_pages!(self, store, before => store.deliveries(owed(before)));
        let one = self.dispatches.last().copied();
        for dispatch in [None, one] {
            let filter = EventFilter {
                dispatch,
                ..EventFilter::default()
            };
            both!(self, store => store.events(&filter, after % 40, 7)).unwrap();
        }
        for id in self.dispatches.clone() {
            both!(self, store => store.dispatch(id)).unwrap();
            both!(self, store => store.last_event(id)).unwrap();
            both!(self, store => store.deliveries_of(id)).unwrap();
            let _ = both!(self, store => store.request(id));
            for content in [
                Content::Output,
                Content::OutputFile(0),
                Content::Attachment(1),
            ] {
                let _ = both!(self, store => store.content(id, content, after % 5, 9));
            }
        }
        for id in self.deliveries.clone() {
            both!(self, store => store.delivery(id)).unwrap();
            let _ = both!(self, store => async {
                let payload = store.payload(id).await?;
                let body = String::from_utf8_lossy(&payload.body).into_owned();
                Ok::<_, Error>((body, payload.trace_id, payload.request, payload.secrets))
            });
        }
        self.look_at_runs().await;
        self.look_at_signals().await;
        for n in 0..3 {
            let task_id = format!("task-{n}");
            both!(self, store => store.by_task(&task_id, None, 3)).unwrap();
            for owner in [owner(0), owner(1)] {
                both!(self, store => store.by_task(&task_id, Some(owner), 3)).unwrap();
                for (space, value) in [(KeySpace::Task, "task"), (KeySpace::Header, "key")] {
                    let value = format!("{value}-{n}");
                    let key = IdempotencyKey {
                        owner,
                        space,
                        value,
                    };
                    both!(self, store => store.recall(&key)).unwrap();
                }
            }
        }
    }
}

/// Repeats `sweep` until nothing is left: a step on disk also ends after a time limit. Returns the numbers of dispatches
/// and of runs that were removed.
async fn sweep_all(store: &dyn Store, now: i64, limit: usize) -> (u64, u64) {
    let (mut dispatches, mut runs) = (0, 0);
    loop {
        let swept = store.sweep(at(now), limit).await.unwrap();
        dispatches += swept.dispatches;
        runs += swept.runs;
        if !swept.more {
            return (dispatches, runs);
        }
    }
}
