//! Worker loop of the outbox: loads due deliveries, attempts and settles them. A wake-up is only a hint: the
//! due deliveries are in the store. No store lock or transaction is held while a receiver is called.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::field::display;

use forge_base::failpoint;
use forge_base::tasks::Tasks;
use forge_base::time::{self, Sleeper};
use forge_base::trace::TraceId;
use forge_net::backoff::Policy;
use forge_net::breaker::Change;
use forge_store as store;
use forge_store::record::{DueDelivery, Settlement};
use forge_store::retry::{self, RetryDelays};

use super::attempt::{self, AttemptReport};
use super::in_flight::{InFlight, InFlightDelivery, Report, Waiting};
use super::meters::Meters;
use super::redact::Confidential;
use super::send::{self, Attempt, CallbackPayload};
use super::trace;
use super::verdict::{self, Series, Verdict};
use super::{Deliverer, Destination, Setup, Shared};

/// Longest sleep of the worker.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Wait before the store is queried again if the next due delivery might be one in flight.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
const AT_ONCE: Duration = Duration::from_millis(5);
/// Wait before a delivery with a missing or unreadable record is tried again.
const MISSING: Duration = Duration::from_secs(60);

impl Deliverer {
    pub fn new(setup: Setup) -> Self {
        let in_flight = InFlight::new(&setup.config);
        Self {
            shared: Arc::new(Shared {
                setup,
                meters: Meters::default(),
                in_flight,
                wake: Notify::new(),
                room: Notify::new(),
                restored: OnceCell::new(),
                follows_clock: AtomicBool::new(false),
                rounds: watch::Sender::new(0),
                abandon: Mutex::default(),
            }),
        }
    }

    /// Delivery metrics.
    pub fn meters(&self) -> &Meters {
        &self.shared.meters
    }

    /// Number of deliveries held in memory, and size of their waiting payloads in bytes.
    pub fn in_hand(&self) -> (usize, usize) {
        self.shared.in_flight.in_hand()
    }

    /// Wakes the worker because a delivery might be due.
    pub fn wake(&self) {
        self.shared.wake.notify_one();
    }

    /// Hands over a delivery that has just become due, with its payload, so that it need not be read from the
    /// store. A hint like `wake`: if the offer is not taken, the delivery is loaded later.
    pub fn offer(&self, due: DueDelivery, payload: CallbackPayload) {
        self.shared.in_flight.offer(due, payload);
        self.shared.room.notify_one();
    }

    /// Receivers whose circuit breaker is open or half open. Cheap: does not read the store.
    pub fn snapshot(&self) -> Vec<Destination> {
        self.shared.in_flight.snapshot()
    }

    /// Runs until the shutdown; attempts in flight then continue, see `drain`.
    pub async fn run(self, shutdown: CancellationToken, tracker: Tasks) {
        let mut delays = RetryDelays::default();
        let mut sleeper = Sleeper::new(self.shared.setup.clock);
        while let Some(round) = shutdown.run_until_cancelled(self.tick(&tracker)).await {
            self.shared.rounds.send_modify(|rounds| *rounds += 1);
            let rest = match round {
                Ok(next) => {
                    delays = RetryDelays::default();
                    let pause = self.pause(next);
                    shutdown
                        .run_until_cancelled(self.wait_for_work(&mut sleeper, pause, &tracker))
                        .await
                }
                Err(error) => {
                    tracing::warn!(%error, "store unavailable, deliveries are delayed");
                    shutdown
                        .run_until_cancelled(sleep(delays.next_delay()))
                        .await
                }
            };
            if rest.is_none() {
                break;
            }
        }
        self.shared.in_flight.forget_waiting();
    }

    /// Loads due deliveries and starts every attempt with a free slot; returns the next due time. Called by
    /// one task at a time: a delivery in the store's result must not end before it is added here.
    pub async fn tick(&self, tracker: &Tasks) -> store::Result<Option<Timestamp>> {
        let Shared {
            setup, in_flight, ..
        } = &*self.shared;
        self.shared
            .restored
            .get_or_try_init(|| self.restore())
            .await?;
        self.follow_clock().await?;
        self.end_overdue().await?;
        let mut next = None;
        // With no room there is nothing to load; a delivery that leaves wakes the worker again.
        while let Some(query) = in_flight.query(setup.clock.now()) {
            let (limit, per_origin) = (query.limit, query.per_origin);
            let found = setup.store.due(query).await?;
            failpoint::point("delivery.due");
            let complete = found.len() < limit;
            let new = in_flight.add(found, per_origin);
            self.begin(tracker);
            if new == 0 || complete {
                next = setup.store.next_due(&in_flight.not_wanted()).await?;
                break;
            }
        }
        self.begin(tracker);
        self.store_changes().await?;
        let probe = in_flight.destinations(|all| all.next_probe());
        // Caps the probe rounds at a few a second, however many breakers are open.
        let probe = probe.map(|at| at.max(time::after(setup.clock.now(), LOOK_AGAIN)));
        Ok(next.into_iter().chain(probe).min())
    }

    /// Opens the breakers that other nodes have opened.
    pub async fn learn_breakers(&self) -> store::Result<()> {
        self.restore().await
    }

    /// Restores the breakers stored by an earlier process, or by another one that shares the store.
    async fn restore(&self) -> store::Result<()> {
        let Shared {
            setup, in_flight, ..
        } = &*self.shared;
        let stored = setup.store.open_breakers().await?;
        let now = setup.clock.now();
        in_flight.destinations(|all| all.restore(stored, now));
        Ok(())
    }

    /// Shortens the waits that became longer because the clock was set back, before the start or since the last round.
    async fn follow_clock(&self) -> store::Result<()> {
        let Shared {
            setup,
            in_flight,
            follows_clock,
            ..
        } = &*self.shared;
        if follows_clock.load(Ordering::Relaxed) {
            return Ok(());
        }
        let now = setup.clock.now();
        in_flight.destinations(|all| all.follow_clock(now));
        let moved = setup.store.follow_clock(now).await?;
        if moved > 0 {
            tracing::warn!(
                "{moved} deliveries were due later than their retries allow, because the clock was set back"
            );
        }
        follows_clock.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Stores breaker changes. A change lost in a crash is learned again from new attempts.
    async fn store_changes(&self) -> store::Result<()> {
        let Shared {
            setup, in_flight, ..
        } = &*self.shared;
        let (open, closed) = in_flight.destinations(|all| all.take_changed());
        if open.is_empty() && closed.is_empty() {
            return Ok(());
        }
        let changed: Vec<String> = open.iter().map(|o| o.origin.clone()).collect();
        let changed = changed.into_iter().chain(closed.iter().cloned()).collect();
        let mut unwritten = Unwritten { in_flight, changed };
        setup.store.keep_breakers(open, closed).await?;
        unwritten.changed.clear();
        Ok(())
    }

    /// Starts the waiting deliveries that have a free slot.
    fn begin(&self, tracker: &Tasks) {
        let in_flight = &self.shared.in_flight;
        while let Some((waiting, flight)) = in_flight.next(self) {
            tracker.spawn(self.clone().attempt(waiting, flight));
        }
        if in_flight.runs_low() {
            self.wake();
        }
    }

    /// Waits until nothing is due and nothing is in flight, at most until the deadline. Used at shutdown
    /// while `run` still works.
    pub async fn finish_due(&self, deadline: Instant) {
        let Shared {
            setup, in_flight, ..
        } = &*self.shared;
        let mut rounds = self.shared.rounds.subscribe();
        let all = async {
            loop {
                rounds.borrow_and_update();
                in_flight.none_left().await;
                // Deliveries behind an open breaker stay due.
                match setup.store.next_due(&in_flight.open()).await {
                    Ok(Some(due)) if due <= setup.clock.now() => self.wake(),
                    Ok(Some(_) | None) => return,
                    // The store is unavailable; due deliveries stay due.
                    Err(_) => return,
                }
                // Cannot fail: the sender is in `self`.
                let _ = rounds.changed().await;
            }
        };
        // At the deadline, due deliveries stay due.
        let _ = timeout_at(deadline, all).await;
    }

    /// Waits, after the shutdown, for the attempts in flight and cancels those not settled at the deadline.
    /// They are repeated at the next start.
    pub async fn drain(&self, deadline: Instant) {
        // Cancels the remaining attempts in either case.
        let _ = timeout_at(deadline, self.shared.in_flight.none_left()).await;
        self.stop_attempts();
    }

    /// Cancels the attempts in flight: their deliveries stay due.
    pub fn stop_attempts(&self) {
        mem::take(&mut *self.shared.abandon()).cancel();
    }

    /// Waits until the store should be queried again; meanwhile starts waiting deliveries when slots become
    /// free.
    async fn wait_for_work(&self, sleeper: &mut Sleeper, at_most: Duration, tracker: &Tasks) {
        let end = sleeper.sleep(at_most);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = self.shared.wake.notified() => return,
                () = self.shared.room.notified() => self.begin(tracker),
                step = &mut end => {
                    let follows = &self.shared.follows_clock;
                    follows.fetch_and(step.is_none(), Ordering::Relaxed);
                    return;
                }
            }
        }
    }

    fn pause(&self, next: Option<Timestamp>) -> Duration {
        let Some(next) = next else {
            return LONGEST_PAUSE;
        };
        match time::left(self.shared.setup.clock.now(), next) {
            // Became due during the query.
            Duration::ZERO if self.shared.in_flight.is_empty() => AT_ONCE,
            Duration::ZERO => LOOK_AGAIN,
            wait => wait.min(LONGEST_PAUSE),
        }
    }

    async fn attempt(self, waiting: Waiting, flight: InFlightDelivery) {
        let abandon = self.shared.abandon().clone();
        let Waiting { due, payload } = waiting;
        // Boxed: the future is large, and moving it would copy it.
        let attempt = Box::pin(self.attempt_and_settle(&due, payload, &flight));
        match abandon.run_until_cancelled(attempt).await {
            Some(Ended::Settled) => flight.settled(),
            // Cancelled before it was settled: still due at the next start.
            Some(Ended::Due) | None => drop(flight),
        }
    }

    async fn attempt_and_settle(
        &self,
        due: &DueDelivery,
        payload: Option<CallbackPayload>,
        flight: &InFlightDelivery,
    ) -> Ended {
        let setup = &self.shared.setup;
        let payload = match payload {
            Some(payload) => Ok(Ok(payload)),
            None => setup.store.payload(due.id).await.map(CallbackPayload::read),
        };
        let payload = match payload {
            Ok(payload) => payload,
            Err(error) => {
                flight.record_outcome(None);
                let rest = match &error {
                    store::Error::Unavailable(_) => retry::LONGEST,
                    store::Error::Stale(_)
                    | store::Error::NotFound
                    | store::Error::InvalidState(_)
                    | store::Error::Unreadable(_) => MISSING,
                };
                tracing::error!(%error, dispatch.id = %due.dispatch, delivery.id = %due.id, "delivery {} is due but its result cannot be read", due.id);
                sleep(rest).await;
                return Ended::Due;
            }
        };
        failpoint::point("delivery.send.before");
        let (made, policy) = self.send(due, payload).await;
        let origin = due.callback.origin.as_str();
        let meters = &self.shared.meters;
        meters.attempted(origin, &made.outcome, made.took);
        failpoint::point("delivery.send.after");
        let now = setup.clock.now();
        let report = made.sign.map(|sign| Report {
            sign,
            reason: &made.reason,
            now,
        });
        if let Some(change) = flight.record_outcome(report) {
            log_change(&due.callback.origin, change, &made.reason);
        }
        let series = Series {
            attempt: self.in_series(due).await,
            since: due.since,
            policy,
        };
        let verdict = verdict::decide_retry(&made.outcome, series, now, rand::random());
        self.settle(due, &made, &verdict).await;
        match verdict {
            Verdict::Delivered | Verdict::Dead { .. } => Ended::Settled,
            Verdict::Retry { .. } => Ended::Due,
        }
    }

    async fn send(
        &self,
        due: &DueDelivery,
        payload: Result<CallbackPayload, send::Error>,
    ) -> (AttemptReport, Policy) {
        let setup = &self.shared.setup;
        let attempt = Attempt {
            due,
            number: due.attempts + 1,
            at: setup.clock.now(),
            timeout: setup.config.timeout,
        };
        let payload = match payload {
            Ok(payload) => payload,
            Err(error) => return (AttemptReport::unsent(&attempt, &error), Policy::Default),
        };
        let wishes = payload.wishes;
        let request = attempt.request(payload, &setup.signer, &setup.vault);
        let mut made = match request {
            Ok(outgoing) => {
                let confidential = Confidential::of(&outgoing.headers);
                let started = Instant::now();
                let answer = setup.client.send(outgoing).await;
                AttemptReport::new(&attempt, started.elapsed(), answer, &confidential)
            }
            Err(error) => AttemptReport::unsent(&attempt, &error),
        };
        made.trace = wishes.context;
        if let Some(dispatch) = setup.spans.wanted(|| made.trace) {
            let end = setup.clock.now();
            let span = trace::span(&attempt, dispatch, &made.outcome, end);
            setup.spans.put(span);
        }
        (made, wishes.policy)
    }

    /// Number of this attempt since the delivery first became due or was replayed, starting at 1.
    async fn in_series(&self, due: &DueDelivery) -> u32 {
        if due.attempts == 0 {
            return 1;
        }
        match self.shared.setup.store.delivery(due.id).await {
            Ok(Some(delivery)) => {
                // Recorded times are truncated to milliseconds.
                let since = due.since.as_millisecond();
                let earlier = delivery.attempts.iter();
                let count = earlier.filter(|a| a.at.as_millisecond() >= since).count();
                u32::try_from(count).unwrap_or(u32::MAX).saturating_add(1)
            }
            // Settling fails as well and reports it.
            Ok(None) | Err(_) => due.attempts + 1,
        }
    }

    async fn settle(&self, due: &DueDelivery, made: &AttemptReport, verdict: &Verdict) {
        let setup = &self.shared.setup;
        let record = &made.record;
        let mut delays = RetryDelays::default();
        loop {
            let settlement = Settlement {
                at: time::after(record.at, made.took),
                events: attempt::events(due, record, verdict, setup.clock.now()),
                attempt: Some(record.clone()),
                next: verdict.next(),
                retention: *setup.retention.get(),
            };
            failpoint::point("delivery.settle.before");
            let settled = setup.store.settle(due.id, settlement).await;
            failpoint::point("delivery.settle.after");
            match settled {
                Ok(()) => {
                    let since = time::wall_age(due.since, setup.clock.now());
                    self.shared.meters.settled(verdict, since);
                    return log(due, made, verdict);
                }
                Err(store::Error::Unavailable(_)) => {
                    sleep(delays.next_delay()).await;
                }
                // Superseded or removed meanwhile: nothing left to settle.
                Err(
                    store::Error::InvalidState(_)
                    | store::Error::NotFound
                    | store::Error::Stale(_)
                    | store::Error::Unreadable(_),
                ) => return,
            }
        }
    }
}

/// State of a delivery after an attempt.
enum Ended {
    Settled,
    /// Due again, now or later.
    Due,
}

fn log(due: &DueDelivery, made: &AttemptReport, verdict: &Verdict) {
    let record = &made.record;
    let (id, origin, attempt) = (due.id, due.callback.origin.as_str(), record.number);
    let (dispatch, trace) = (
        due.dispatch,
        made.trace.map(|of| display(TraceId(of.trace))),
    );
    let status = record.status;
    let error = record.error.as_deref();
    match verdict {
        Verdict::Delivered => {
            tracing::debug!(dispatch.id = %dispatch, trace.id = trace, delivery.id = %id, delivery.origin = origin, delivery.attempt = attempt, "delivery {id} succeeded");
        }
        Verdict::Retry { due } => {
            tracing::info!(dispatch.id = %dispatch, trace.id = trace, delivery.id = %id, delivery.origin = origin, delivery.attempt = attempt, status, error, %due, "delivery {id} failed and will be retried");
        }
        Verdict::Dead { reason } => {
            tracing::warn!(dispatch.id = %dispatch, trace.id = trace, delivery.id = %id, delivery.origin = origin, delivery.attempt = attempt, status, error, reason, "delivery {id} is a dead letter");
        }
    }
}

/// Logs a breaker change, once, at the attempt that caused it.
fn log_change(origin: &str, change: Change, reason: &str) {
    match change {
        Change::Opened(trip) => {
            let until = time::format(trip.until);
            tracing::warn!(delivery.origin = origin, breaker.openings = trip.times, reason, %until, "circuit breaker of {origin} opened ({reason}): nothing is sent until {until}");
        }
        Change::Closed => {
            tracing::info!(
                delivery.origin = origin,
                "circuit breaker of {origin} closed"
            );
        }
    }
}

/// Breaker changes being written to the store. Marks them as changed again if dropped before the write
/// succeeds.
struct Unwritten<'a> {
    in_flight: &'a InFlight,
    changed: Vec<String>,
}

impl Drop for Unwritten<'_> {
    fn drop(&mut self) {
        let changed = std::mem::take(&mut self.changed);
        self.in_flight
            .destinations(|all| all.still_changed(changed.into_iter()));
    }
}
