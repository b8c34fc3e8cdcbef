//! Retries after a failed attempt, observed by the receiver.

use std::time::Duration;

use serde_json::json;

use super::{Rig, header, held};
use forge_base::event::kind;
use forge_base::time;
use forge_store::record::{DeliveryState, Replay};
use forge_store::roles::Outbox;
use forge_test_support::callback::{Answer, CallbackSink};

#[tokio::test(start_paused = true)]
async fn it_is_tried_until_it_is_taken_with_one_id_and_fresh_timestamps() {
    let sink = CallbackSink::start().await;
    sink.script(vec![
        Answer::status(500).body("no"),
        Answer::close(),
        Answer::status(404),
        Answer::status(204),
    ]);
    let rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({})).await;
    rig.round().await;
    for plain in [1.0, 2.0, 4.0] {
        assert_eq!(rig.delivery(id).await.status, DeliveryState::Pending);
        let wait = rig.next_round().await.as_secs_f64();
        assert!((plain * 0.79..plain * 1.21).contains(&wait), "{wait}");
    }
    let delivery = rig.delivery(id).await;
    assert_eq!(delivery.status, DeliveryState::Delivered);
    let attempts = delivery.attempts;
    let statuses: Vec<_> = attempts.iter().map(|a| a.status).collect();
    assert_eq!(statuses, [Some(500), None, Some(404), Some(204)]);
    assert_eq!(attempts[0].answer.as_deref(), Some("no"));
    assert!(attempts[1].error.as_deref().unwrap().contains("closed"));

    let received = sink.received();
    let numbers: Vec<_> = received
        .iter()
        .map(|r| header(r, "x-forge-delivery-attempt"))
        .collect();
    assert_eq!(numbers, ["1", "2", "3", "4"]);
    assert!(
        received
            .iter()
            .all(|r| header(r, "webhook-id") == id.to_string())
    );
    let stamps: Vec<i64> = received
        .iter()
        .map(|r| header(r, "webhook-timestamp").parse().unwrap())
        .collect();
    assert!(
        stamps.is_sorted() && stamps[3] - stamps[0] >= 5,
        "{stamps:?}"
    );
    let kinds: Vec<_> = rig.callback_events(id).await;
    assert_eq!(kinds.len(), 5);
    assert_eq!(kinds[4].0, kind::CALLBACK_DELIVERED);
}

#[tokio::test(start_paused = true)]
async fn a_delivery_is_settled_at_the_end_of_its_last_attempt() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(200).after(Duration::from_secs(5)));
    let rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({})).await;
    rig.deliverer.tick(&rig.tracker).await.unwrap();
    held(sink.until(1)).await;
    tokio::time::advance(Duration::from_secs(5)).await;
    held(rig.deliverer.shared.in_flight.none_left()).await;
    let delivery = rig.delivery(id).await;
    let attempt = &delivery.attempts[0];
    assert!(attempt.duration_ms >= 5000, "{attempt:?}");
    let took = time::wall_age(attempt.at, delivery.settled_at.unwrap());
    assert_eq!(took.as_millis(), u128::from(attempt.duration_ms));
}

#[tokio::test(start_paused = true)]
async fn what_a_receiver_rules_out_is_a_dead_letter_at_once() {
    let sink = CallbackSink::start().await;
    let elsewhere = sink.url("/elsewhere");
    sink.answer_with(move |request| match request.path.as_str() {
        "/302" => Answer::redirect(&elsewhere),
        path => Answer::status(path[1..].parse().unwrap()),
    });
    let rig = Rig::new().await;
    let mut owed = Vec::new();
    for path in ["/302", "/400", "/410", "/413", "/422"] {
        owed.push((path, rig.owe(&sink.url(path), json!({})).await));
    }
    rig.round().await;
    for (path, id) in owed {
        let delivery = rig.delivery(id).await;
        assert_eq!(delivery.status, DeliveryState::Dead, "{path}");
        assert_eq!(delivery.attempt_count, 1, "{path}");
        let (kind, data) = rig.callback_events(id).await.pop().unwrap();
        assert_eq!(kind, kind::CALLBACK_DEAD);
        let reason = data["reason"].as_str().unwrap();
        assert!(reason.ends_with(&path[1..]), "{reason}");
    }
    assert_eq!(sink.received().len(), 5, "redirects are not followed");
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_asks_for_time_gets_it() {
    let sink = CallbackSink::start().await;
    sink.script(vec![
        Answer::status(429).header("Retry-After", "120"),
        Answer::status(503).header("Retry-After", "999999"),
        Answer::status(200),
    ]);
    let rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({})).await;
    rig.round().await;
    assert_eq!(rig.next_round().await.as_secs_f64().round(), 120.0);
    assert_eq!(rig.next_round().await.as_secs_f64().round(), 86_400.0);
    assert_eq!(rig.delivery(id).await.status, DeliveryState::Delivered);
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_hangs_is_given_thirty_seconds() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::hang());
    let rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({})).await;
    rig.deliverer.tick(&rig.tracker).await.unwrap();
    sink.until(1).await;
    held(tokio::time::advance(Duration::from_secs(29))).await;
    assert_eq!(rig.delivery(id).await.attempt_count, 0);
    held(async {
        tokio::time::advance(Duration::from_secs(2)).await;
        rig.deliverer.shared.in_flight.none_left().await;
    })
    .await;
    let delivery = rig.delivery(id).await;
    assert_eq!(delivery.status, DeliveryState::Pending);
    assert!(
        delivery.attempts[0]
            .error
            .as_deref()
            .unwrap()
            .contains("30s")
    );
}

#[tokio::test(start_paused = true)]
async fn a_policy_ends_when_it_says_and_a_replay_restarts_it() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(500));
    for (retry, expected) in [
        (json!("compat"), 4),
        (json!({ "maxElapsedSeconds": 5.5 }), 3),
        (json!({ "maxElapsedSeconds": 0.5 }), 1),
    ] {
        let rig = Rig::new().await;
        let id = rig.owe(&sink.url("/"), json!({ "retry": retry })).await;
        for series in 1..=2 {
            rig.round().await;
            while rig.store.next_due(&[]).await.unwrap().is_some() {
                rig.next_round().await;
            }
            let delivery = rig.delivery(id).await;
            assert_eq!(delivery.status, DeliveryState::Dead);
            assert_eq!(delivery.attempt_count, series * expected, "{retry}");
            tokio::time::advance(Duration::from_secs(60)).await;
            let now = rig.clock.now();
            rig.store.replay(Replay::One(id), now).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_three_days_it_is_a_dead_letter() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(503));
    let rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({ "retry": "default" })).await;
    let start = rig.clock.now();
    rig.round().await;
    while rig.store.next_due(&[]).await.unwrap().is_some() {
        rig.next_round().await;
    }
    let hours = time::wall_age(start, rig.clock.now()).as_secs() / 3600;
    assert!((70..=72).contains(&hours), "{hours}");
    let delivery = rig.delivery(id).await;
    assert_eq!(delivery.status, DeliveryState::Dead);
    assert_eq!(delivery.attempts.len(), 25);
    let (_, data) = rig.callback_events(id).await.pop().unwrap();
    let reason = data["reason"].as_str().unwrap();
    assert!(reason.starts_with("given up after"), "{reason}");
}
