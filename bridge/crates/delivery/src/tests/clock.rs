//! Deliveries of a worker whose wall clock is set.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;

use super::breaker::{Worker, give_up_on, is_stored, until};
use super::{Rig, held};
use forge_store::record::DeliveryState;
use forge_store::roles::Records as _;
use forge_test_support::callback::{Answer, CallbackSink};

const HOUR: SignedDuration = SignedDuration::from_hours(1);

/// Lets seconds pass, one after the other, until the condition is true; panics if it is not by then.
async fn within(seconds: u32, what: &str, condition: impl AsyncFn() -> bool) {
    for _ in 0..seconds {
        tokio::time::advance(Duration::from_secs(1)).await;
        // Real sockets need some rounds of the runtime.
        for _ in 0..2_000 {
            if held(condition()).await {
                return;
            }
        }
    }
    panic!("not within {seconds} s: {what}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_made_after_its_wait_whatever_the_clock_does() {
    for (step, restarts) in [(-HOUR, false), (-HOUR, true), (HOUR, false)] {
        let sink = CallbackSink::start().await;
        sink.script(vec![Answer::status(503), Answer::status(204)]);
        let mut rig = Rig::new().await;
        let mut worker = Worker::start(&rig);
        let id = rig.owe(&sink.url("/"), json!({})).await;
        rig.deliverer.wake();
        until("it fails", async || {
            rig.delivery(id).await.attempt_count == 1
        })
        .await;
        rig.clock.set(step);
        if restarts {
            drop(worker);
            rig.restart();
            worker = Worker::start(&rig);
        }
        // A second until the step is noticed, and 1.2 s at most.
        within(4, "it is tried again", async || {
            rig.delivery(id).await.status == DeliveryState::Delivered
        })
        .await;
        let delivery = rig.delivery(id).await;
        assert_eq!(delivery.attempt_count, 2);
        drop(worker);
    }
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_is_tried_after_its_wait_whatever_the_clock_does() {
    for (step, restarts) in [(-HOUR, false), (-HOUR, true), (HOUR, false)] {
        let sink = CallbackSink::start().await;
        let mut rig = Rig::new().await;
        let mut worker = Worker::start(&rig);
        give_up_on(&rig, &sink).await;
        sink.answer(Answer::status(200));
        rig.clock.set(step);
        if restarts {
            drop(worker);
            rig.restart();
            worker = Worker::start(&rig);
        }
        within(33, "all are delivered", async || {
            rig.store.counts().deliveries_pending == 0
        })
        .await;
        until("it is closed", async || is_stored(&rig, 0).await).await;
        drop(worker);
    }
}
