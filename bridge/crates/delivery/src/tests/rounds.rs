//! Worker loop: order of receivers, wake-up, shutdown.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Rig, header, held};
use forge_base::time;
use forge_store::record::DeliveryState;
use forge_test_support::callback::{Answer, CallbackSink};

#[tokio::test(start_paused = true)]
async fn a_dead_receiver_delays_no_other() {
    let (dead, alive) = (CallbackSink::start().await, CallbackSink::start().await);
    dead.answer(Answer::hang());
    let rig = Rig::new().await;
    for _ in 0..100 {
        rig.owe(&dead.url("/"), json!({})).await;
    }
    let shutdown = CancellationToken::new();
    let worker = rig.deliverer.clone();
    rig.tracker
        .spawn(worker.run(shutdown.clone(), rig.tracker.clone()));
    dead.until(32).await;
    for _ in 0..40 {
        rig.owe(&alive.url("/"), json!({})).await;
    }
    rig.deliverer.wake();
    alive.until(40).await;
    assert_eq!(dead.received().len(), 32, "no more than its own slots");

    // Retries to a working receiver are not held up by those that hang.
    alive.script(vec![Answer::status(500)]);
    let id = rig.owe(&alive.url("/"), json!({})).await;
    rig.deliverer.wake();
    alive.until(41).await;
    alive.answer(Answer::status(200));
    held(async {
        while rig.delivery(id).await.status != DeliveryState::Delivered {
            tokio::time::advance(Duration::from_millis(50)).await;
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(rig.delivery(id).await.attempt_count, 2);
    assert_eq!(dead.received().len(), 32);

    shutdown.cancel();
    rig.deliverer.drain(Instant::now()).await;
    rig.tracker.close();
    rig.tracker.wait().await;
}

#[tokio::test(start_paused = true)]
async fn ten_receivers_that_hang_delay_no_eleventh() {
    let rig = Rig::new().await;
    let mut hanging = Vec::new();
    for _ in 0..10 {
        let sink = CallbackSink::start().await;
        sink.answer(Answer::hang());
        for _ in 0..40 {
            rig.owe(&sink.url("/"), json!({})).await;
        }
        hanging.push(sink);
    }
    let shutdown = CancellationToken::new();
    let worker = rig.deliverer.clone();
    rig.tracker
        .spawn(worker.run(shutdown.clone(), rig.tracker.clone()));
    for sink in &hanging {
        held(sink.until(1)).await;
    }
    let alive = CallbackSink::start().await;
    rig.owe(&alive.url("/"), json!({})).await;
    let now = rig.clock.now();
    rig.deliverer.wake();
    held(alive.until(1)).await;
    assert_eq!(rig.clock.now(), now, "before any of the attempts timed out");
    shutdown.cancel();
    rig.deliverer.drain(Instant::now()).await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_the_shutdown_cuts_off_is_made_again() {
    let sink = CallbackSink::start().await;
    sink.script(vec![Answer::hang(), Answer::status(200)]);
    let mut rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({})).await;
    let shutdown = CancellationToken::new();
    let worker = rig.deliverer.clone();
    rig.tracker
        .spawn(worker.run(shutdown.clone(), rig.tracker.clone()));
    sink.until(1).await;
    shutdown.cancel();
    rig.deliverer
        .drain(Instant::now() + Duration::from_secs(5))
        .await;
    rig.tracker.close();
    rig.tracker.wait().await;
    assert_eq!(rig.delivery(id).await.attempt_count, 0);

    rig.restart();
    rig.round().await;
    let received = sink.received();
    assert_eq!(received.len(), 2);
    assert!(
        received
            .iter()
            .all(|r| header(r, "webhook-id") == id.to_string())
    );
    assert_eq!(rig.delivery(id).await.status, DeliveryState::Delivered);
}

#[tokio::test(start_paused = true)]
async fn what_is_due_is_finished_before_the_shutdown() {
    let sink = CallbackSink::start().await;
    let rig = Rig::new().await;
    let mut owed = Vec::new();
    for _ in 0..30 {
        owed.push(rig.owe(&sink.url("/"), json!({})).await);
    }
    let shutdown = CancellationToken::new();
    let worker = rig.deliverer.clone();
    rig.tracker
        .spawn(worker.run(shutdown.clone(), rig.tracker.clone()));
    held(
        rig.deliverer
            .finish_due(Instant::now() + Duration::from_secs(20)),
    )
    .await;
    shutdown.cancel();
    for id in owed {
        assert_eq!(rig.delivery(id).await.status, DeliveryState::Delivered);
    }
}

#[tokio::test(start_paused = true)]
async fn the_worker_wakes_itself_when_a_retry_is_due() {
    let sink = CallbackSink::start().await;
    sink.script(vec![Answer::status(500), Answer::status(200)]);
    let rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({})).await;
    let shutdown = CancellationToken::new();
    let worker = rig.deliverer.clone();
    rig.tracker
        .spawn(worker.run(shutdown.clone(), rig.tracker.clone()));
    held(async {
        sink.until(1).await;
        rig.deliverer.shared.in_flight.none_left().await;
    })
    .await;
    // Time advances now, to the worker's own timer.
    while sink.received().len() < 2 {
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    sink.until(2).await;
    held(rig.deliverer.shared.in_flight.none_left()).await;
    let attempts = rig.delivery(id).await.attempts;
    let wait = time::wall_age(attempts[0].at, attempts[1].at).as_secs_f64();
    assert!((0.75..1.5).contains(&wait), "{wait}");
    shutdown.cancel();
}
