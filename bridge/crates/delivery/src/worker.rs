//! The loop around the outbox: takes what is due, attempts it, settles it. A wake-up is a hint; what
//! is due stands in the store. Nothing is held in the store while a receiver is called.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Notify, OnceCell, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::field::display;

use forge_base::failpoint;
use forge_base::tasks::Tasks;
use forge_base::time;
use forge_base::trace::TraceId;
use forge_net::backoff::Policy;
use forge_store as store;
use forge_store::record::{DueDelivery, Settlement};

use super::attempt::{self, AttemptReport};
use super::breaker::Change;
use super::in_flight::{InFlight, InFlightDelivery, Report, Waiting};
use super::meters::Meters;
use super::redact::Confidential;
use super::send::{self, Attempt, CallbackPayload};
use super::trace;
use super::verdict::{self, Series, Verdict};
use super::{Deliverer, Destination, Setup, Shared};

/// How long the worker sleeps at most, so that it notices a clock that was set or a machine that slept.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The next due time may be that of a delivery under way; then it is asked for again so soon.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
const AT_ONCE: Duration = Duration::from_millis(5);
/// The first and the longest wait while the store refuses.
const STORE_RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// A delivery whose record cannot be found is left alone for so long.
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
                rounds: watch::Sender::new(0),
                abandon: CancellationToken::new(),
            }),
        }
    }

    /// What it did so far.
    pub fn meters(&self) -> &Meters {
        &self.shared.meters
    }

    /// How many deliveries are in hand, and what those that wait for room hold, in bytes.
    pub fn in_hand(&self) -> (usize, usize) {
        self.shared.in_flight.in_hand()
    }

    /// Something may be due.
    pub fn wake(&self) {
        self.shared.wake.notify_one();
    }

    /// What has just become due, as the store recorded it, with what it sends: it goes out without
    /// being read again. A hint like `wake`, which does as well.
    pub fn offer(&self, due: DueDelivery, payload: CallbackPayload) {
        self.shared.in_flight.offer(due, payload);
        self.shared.room.notify_one();
    }

    /// The receivers that are not called for now, or only tried. Cheap: nothing is read from the store.
    pub fn snapshot(&self) -> Vec<Destination> {
        self.shared.in_flight.snapshot()
    }

    /// Works until the shutdown; attempts that are under way then go on, see `drain`.
    pub async fn run(self, shutdown: CancellationToken, tracker: Tasks) {
        let mut refusals = 0;
        while let Some(round) = shutdown.run_until_cancelled(self.tick(&tracker)).await {
            self.shared.rounds.send_modify(|rounds| *rounds += 1);
            let rest = match round {
                Ok(next) => {
                    refusals = 0;
                    let pause = self.pause(next);
                    shutdown
                        .run_until_cancelled(self.wait_for_work(pause, &tracker))
                        .await
                }
                Err(error) => {
                    refusals += 1;
                    tracing::warn!(%error, "deliveries wait for the store");
                    shutdown
                        .run_until_cancelled(sleep(store_retry_delay(refusals)))
                        .await
                }
            };
            if rest.is_none() {
                break;
            }
        }
        self.shared.in_flight.forget_waiting();
    }

    /// Takes on what is due and begins every attempt that has room. Says when the next one will be.
    /// Called by one task at a time: what the store calls due must not end before it is taken on.
    pub async fn tick(&self, tracker: &Tasks) -> store::Result<Option<Timestamp>> {
        let Shared {
            setup, in_flight, ..
        } = &*self.shared;
        self.shared
            .restored
            .get_or_try_init(|| self.restore())
            .await?;
        self.end_overdue().await?;
        let mut next = None;
        // Where nothing fits there is nothing to look for: what leaves makes the worker look again.
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
        // However many receivers are down: they are tried a few times a second.
        let probe = probe.map(|at| at.max(time::after(setup.clock.now(), LOOK_AGAIN)));
        Ok(next.into_iter().chain(probe).min())
    }

    /// What an earlier process knew of receivers goes on.
    async fn restore(&self) -> store::Result<()> {
        let Shared {
            setup, in_flight, ..
        } = &*self.shared;
        let stored = setup.store.open_breakers().await?;
        let now = setup.clock.now();
        in_flight.destinations(|all| all.restore(stored, now));
        Ok(())
    }

    /// What is not written before a crash is learned again.
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

    /// Begins what waits and has room.
    fn begin(&self, tracker: &Tasks) {
        let in_flight = &self.shared.in_flight;
        while let Some((waiting, flight)) = in_flight.next(self) {
            tracker.spawn(self.clone().attempt(waiting, flight));
        }
        if in_flight.runs_low() {
            self.wake();
        }
    }

    /// Waits until nothing is due and nothing under way, at most until the deadline; for a shutdown,
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
                // What waits for a receiver that is not called stays due.
                match setup.store.next_due(&in_flight.open()).await {
                    Ok(Some(due)) if due <= setup.clock.now() => self.wake(),
                    Ok(Some(_) | None) => return,
                    // The store is gone; what is due stays due.
                    Err(_) => return,
                }
                // The sender is in `self`, so it cannot go away meanwhile.
                let _ = rounds.changed().await;
            }
        };
        // At the deadline, what is due stays due.
        let _ = timeout_at(deadline, all).await;
    }

    /// After the shutdown: waits for the attempts that are under way and gives up those that are not
    /// settled at the deadline. They are made again at the next start.
    pub async fn drain(&self, deadline: Instant) {
        // Whether they made it or not, what is left now is given up.
        let _ = timeout_at(deadline, self.shared.in_flight.none_left()).await;
        self.shared.abandon.cancel();
    }

    /// Until the store is to be asked again. What waits here goes out meanwhile.
    async fn wait_for_work(&self, at_most: Duration, tracker: &Tasks) {
        let end = sleep(at_most);
        tokio::pin!(end);
        loop {
            tokio::select! {
                () = self.shared.wake.notified() => return,
                () = self.shared.room.notified() => self.begin(tracker),
                () = &mut end => return,
            }
        }
    }

    fn pause(&self, next: Option<Timestamp>) -> Duration {
        let Some(next) = next else {
            return LONGEST_PAUSE;
        };
        match time::between(self.shared.setup.clock.now(), next) {
            // It became due while the store was asked.
            Duration::ZERO if self.shared.in_flight.is_empty() => AT_ONCE,
            Duration::ZERO => LOOK_AGAIN,
            wait => wait.min(LONGEST_PAUSE),
        }
    }

    async fn attempt(self, waiting: Waiting, flight: InFlightDelivery) {
        let abandon = self.shared.abandon.clone();
        let Waiting { due, payload } = waiting;
        // Large; where it lies it is not copied.
        let attempt = Box::pin(self.attempt_and_settle(&due, payload, &flight));
        match abandon.run_until_cancelled(attempt).await {
            Some(Ended::Settled) => flight.settled(),
            // Abandoned: nothing was settled, so it is still due at the next start.
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
                    store::Error::Unavailable(_) => STORE_RETRY.1,
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

    /// Which attempt this is since the delivery was first made due or replayed.
    async fn in_series(&self, due: &DueDelivery) -> u32 {
        if due.attempts == 0 {
            return 1;
        }
        match self.shared.setup.store.delivery(due.id).await {
            Ok(Some(delivery)) => {
                // Recorded times are cut to the millisecond.
                let since = due.since.as_millisecond();
                let earlier = delivery.attempts.iter();
                let count = earlier.filter(|a| a.at.as_millisecond() >= since).count();
                u32::try_from(count).unwrap_or(u32::MAX).saturating_add(1)
            }
            // Then settling fails as well and says so.
            Ok(None) | Err(_) => due.attempts + 1,
        }
    }

    async fn settle(&self, due: &DueDelivery, made: &AttemptReport, verdict: &Verdict) {
        let setup = &self.shared.setup;
        let record = &made.record;
        let mut refusals = 0;
        loop {
            let settlement = Settlement {
                at: record.at,
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
                    let since = time::between(due.since, setup.clock.now());
                    self.shared.meters.settled(verdict, since);
                    return log(due, made, verdict);
                }
                Err(store::Error::Unavailable(_)) => {
                    refusals += 1;
                    sleep(store_retry_delay(refusals)).await;
                }
                // Superseded or removed meanwhile: there is nothing left to settle.
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

/// What an attempt leaves behind.
enum Ended {
    Settled,
    /// It is due again, now or later.
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
            tracing::debug!(dispatch.id = %dispatch, trace.id = trace, delivery.id = %id, delivery.origin = origin, delivery.attempt = attempt, "delivery {id} is done");
        }
        Verdict::Retry { due } => {
            tracing::info!(dispatch.id = %dispatch, trace.id = trace, delivery.id = %id, delivery.origin = origin, delivery.attempt = attempt, status, error, %due, "delivery {id} failed and is tried again");
        }
        Verdict::Dead { reason } => {
            tracing::warn!(dispatch.id = %dispatch, trace.id = trace, delivery.id = %id, delivery.origin = origin, delivery.attempt = attempt, status, error, reason, "delivery {id} is a dead letter");
        }
    }
}

/// Told once for each change, where it is noticed.
fn log_change(origin: &str, change: Change, reason: &str) {
    match change {
        Change::Opened(trip) => {
            let until = time::format(trip.until);
            tracing::warn!(delivery.origin = origin, breaker.openings = trip.times, reason, %until, "{origin} does not take deliveries ({reason}): nothing is sent there until {until}");
        }
        Change::Closed => {
            tracing::info!(delivery.origin = origin, "{origin} takes deliveries again");
        }
    }
}

/// Changes of breakers on their way to the store. Dropped unwritten, they are to be written again.
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

fn store_retry_delay(refusals: u32) -> Duration {
    let (first, longest) = STORE_RETRY;
    first
        .saturating_mul(2_u32.saturating_pow(refusals.saturating_sub(1)))
        .min(longest)
}
