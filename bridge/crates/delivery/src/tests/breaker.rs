//! Circuit breaker of a receiver that is down: open, probed, and the deliveries that wait meanwhile.

use forge_store::roles::Records as _;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Rig, header, held};
use crate::State;
use forge_base::event::kind;
use forge_base::id::DeliveryId;
use forge_store::record::{DeliveryState, Replay};
use forge_store::roles::Outbox;
use forge_test_support::callback::{Answer, CallbackSink};

const OWED: usize = 20;

/// Worker that stops at the end of the test.
pub(super) struct Worker {
    shutdown: CancellationToken,
}

impl Worker {
    pub(super) fn start(rig: &Rig) -> Self {
        let shutdown = CancellationToken::new();
        let worker = rig.deliverer.clone();
        rig.tracker
            .spawn(worker.run(shutdown.clone(), rig.tracker.clone()));
        Self { shutdown }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Yields with paused time until the condition is true; panics if it never is.
pub(super) async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    held(async {
        let mut rounds = 0_u64;
        while !condition().await {
            tokio::task::yield_now().await;
            rounds += 1;
            assert!(rounds < 10_000_000, "never: {what}");
        }
    })
    .await;
}

async fn owe(rig: &Rig, sink: &CallbackSink) -> Vec<DeliveryId> {
    let mut owed = Vec::new();
    for _ in 0..OWED {
        owed.push(rig.owe(&sink.url("/"), json!({})).await);
    }
    owed
}

fn state(rig: &Rig) -> Option<State> {
    rig.deliverer.snapshot().first().map(|first| first.state)
}

pub(super) async fn is_stored(rig: &Rig, openings: u32) -> bool {
    let stored = rig.store.open_breakers().await.unwrap();
    stored.first().map_or(0, |breaker| breaker.times) == openings
}

/// Fails one attempt of each delivery, until the breaker is open.
pub(super) async fn give_up_on(rig: &Rig, sink: &CallbackSink) -> Vec<DeliveryId> {
    sink.answer(Answer::status(503));
    let owed = owe(rig, sink).await;
    rig.deliverer.wake();
    until("it opens", async || {
        sink.received().len() == OWED && is_stored(rig, 1).await
    })
    .await;
    held(rig.deliverer.shared.in_flight.none_left()).await;
    owed
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_fails_is_left_alone_and_then_tried_with_a_few() {
    let sink = CallbackSink::start().await;
    let rig = Rig::new().await;
    let worker = Worker::start(&rig);
    let mut owed = give_up_on(&rig, &sink).await;
    let [destination] = &rig.deliverer.snapshot()[..] else {
        panic!("one receiver is down");
    };
    assert_eq!((destination.state, destination.openings), (State::Open, 1));
    assert_eq!(destination.reason, "answered 503");

    // Their retries are due by now, and a new delivery is added.
    tokio::time::advance(Duration::from_secs(20)).await;
    owed.push(rig.owe(&sink.url("/"), json!({})).await);
    rig.round().await;
    assert_eq!(sink.received().len(), OWED);

    tokio::time::advance(Duration::from_secs(11)).await;
    until("it is tried in vain", async || is_stored(&rig, 2).await).await;
    held(rig.deliverer.shared.in_flight.none_left()).await;
    let tried = sink.received().len();
    assert!((OWED + 1..=OWED + 3).contains(&tried), "{tried}");

    sink.answer(Answer::status(200));
    tokio::time::advance(Duration::from_secs(61)).await;
    until("all are delivered", async || {
        rig.store.counts().deliveries_pending == 0
    })
    .await;
    until("it is closed", async || is_stored(&rig, 0).await).await;
    assert_eq!(state(&rig), None);
    assert_eq!(sink.received().len(), tried + owed.len());
    for id in owed {
        let delivery = rig.delivery(id).await;
        assert_eq!(delivery.status, DeliveryState::Delivered);
        assert!(delivery.attempt_count <= 3, "waiting is no attempt");
    }
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_restart_does_not_begin_with_those_that_are_down() {
    let sink = CallbackSink::start().await;
    let mut rig = Rig::new().await;
    let worker = Worker::start(&rig);
    give_up_on(&rig, &sink).await;
    let before = rig.deliverer.snapshot();
    drop(worker);

    rig.restart();
    let worker = Worker::start(&rig);
    tokio::time::advance(Duration::from_secs(20)).await;
    until("it is read", async || !rig.deliverer.snapshot().is_empty()).await;
    rig.round().await;
    assert_eq!(rig.deliverer.snapshot(), before);
    assert_eq!(sink.received().len(), OWED);

    sink.answer(Answer::status(200));
    tokio::time::advance(Duration::from_secs(11)).await;
    until("all are delivered", async || {
        rig.store.counts().deliveries_pending == 0
    })
    .await;
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn an_operator_does_not_wait_for_an_open_breaker() {
    let sink = CallbackSink::start().await;
    let rig = Rig::new().await;
    let worker = Worker::start(&rig);
    let owed = give_up_on(&rig, &sink).await;
    let tried = sink.received().len();

    // A retry of one is sent before the others that are due, which the probes would otherwise be taken from.
    sink.answer(Answer::hang());
    let last = *owed.last().unwrap();
    let delivery = rig.delivery(last).await;
    let now = rig.clock.now();
    rig.store.replay(Replay::One(last), now).await.unwrap();
    let destination = rig.deliverer.retry(&delivery).unwrap();
    assert_eq!(destination.state, State::HalfOpen);
    held(sink.until(tried + 1)).await;
    assert_eq!(
        header(&sink.received()[tried], "webhook-id"),
        last.to_string()
    );
    assert_eq!(rig.clock.now(), now, "no wait");

    // A closed breaker lets all go that are due.
    sink.answer(Answer::status(200));
    let url = Url::parse(&sink.url("/anything")).unwrap();
    assert!(rig.deliverer.close(&url) && !rig.deliverer.close(&url));
    assert_eq!(rig.deliverer.destination(&sink.url("/")), None);
    tokio::time::advance(Duration::from_secs(2)).await;
    until("the others are delivered", async || {
        rig.store.counts().deliveries_pending == 1
    })
    .await;
    until("the change is stored", async || is_stored(&rig, 0).await).await;
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn a_retry_of_many_probes_the_receivers_that_it_means() {
    let sink = CallbackSink::start().await;
    let rig = Rig::new().await;
    let worker = Worker::start(&rig);
    give_up_on(&rig, &sink).await;
    assert_eq!(rig.deliverer.retry_many(Some("other.example")), []);
    assert_eq!(state(&rig), Some(State::Open));
    let probed = rig.deliverer.retry_many(Some("127.0.0.1"));
    assert_eq!(probed.len(), 1);
    assert_eq!(probed[0].state, State::HalfOpen);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn answers_that_come_from_a_working_receiver_never_open_it() {
    let sink = CallbackSink::start().await;
    let rig = Rig::new().await;
    for status in [400, 401, 404, 410] {
        sink.answer(Answer::status(status));
        owe(&rig, &sink).await;
        rig.round().await;
        assert_eq!(state(&rig), None, "{status}");
    }
    // An address that the guard refuses is no evidence about the receiver.
    let ours = "http://192.0.2.1/";
    for _ in 0..OWED {
        rig.owe(ours, json!({})).await;
    }
    rig.round().await;
    assert_eq!(state(&rig), None);
}

#[tokio::test(start_paused = true)]
async fn what_waits_beyond_its_time_is_a_dead_letter_without_another_attempt() {
    let sink = CallbackSink::start().await;
    let mut rig = Rig::new().await;
    rig.give_up_after = Duration::from_secs(60);
    let worker = Worker::start(&rig);
    let owed = give_up_on(&rig, &sink).await;
    tokio::time::advance(Duration::from_secs(31)).await;
    until("it is tried in vain", async || is_stored(&rig, 2).await).await;
    held(rig.deliverer.shared.in_flight.none_left()).await;
    assert_eq!(rig.store.counts().deliveries_dead, 0, "there is time left");

    tokio::time::advance(Duration::from_secs(61)).await;
    until("it is tried in vain again", async || {
        is_stored(&rig, 3).await && rig.store.counts().deliveries_pending <= 3
    })
    .await;
    held(rig.deliverer.shared.in_flight.none_left()).await;
    let tried = sink.received().len();
    assert!(tried <= OWED + 6, "{tried}");
    let mut dead = 0;
    for id in owed {
        let delivery = rig.delivery(id).await;
        if delivery.status == DeliveryState::Dead {
            dead += 1;
            let attempts = u64::from(delivery.attempt_count);
            let events = rig.callback_events(id).await;
            let (name, data) = events.last().unwrap();
            assert_eq!(name, kind::CALLBACK_DEAD);
            assert_eq!(data["attempt"], attempts);
            assert!(data["reason"].as_str().unwrap().contains("breaker is open"));
        }
    }
    assert!(dead >= OWED - 3, "{dead}");
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn many_receivers_that_hang_leave_room_for_others_to_wait() {
    let rig = Rig::with(crate::Config {
        concurrency: 21.try_into().unwrap(),
        per_origin: 1.try_into().unwrap(),
        ..crate::Config::default()
    })
    .await;
    let alive = CallbackSink::start().await;
    let mut hanging = Vec::new();
    for _ in 0..20 {
        let sink = CallbackSink::start().await;
        sink.answer(Answer::hang());
        // Twenty full queues exceed the number of deliveries that can wait.
        for _ in 0..70 {
            rig.owe(&sink.url("/"), json!({})).await;
        }
        hanging.push(sink);
    }
    let worker = Worker::start(&rig);
    until("all that hang are called", async || {
        hanging.iter().all(|sink| sink.received().len() == 1)
    })
    .await;
    for _ in 0..5 {
        rig.owe(&alive.url("/"), json!({})).await;
    }
    rig.deliverer.wake();
    alive.until(5).await;
    assert!(hanging.iter().all(|sink| sink.received().len() == 1));
    drop(worker);
}
