//! Adapters that violate the contract: each call ends with a clear result, and no other adapter is affected.

use std::time::Duration;

use forge_adapter_api::HealthStatus;
use forge_plugin_host::{Adapter, Call, Item, Registry, Relayed};
use tokio::sync::mpsc;

use super::{Place, SOON, appears, assert_well, execute, listen, run, start};

/// Starts the rogue and, as a bystander, echo.
async fn rogue(place: &Place) -> (Registry, Adapter, mpsc::Receiver<Relayed>) {
    rogue_with(place, Duration::from_secs(10)).await
}

/// Starts both with this call timeout, which is short only in tests of it, since a busy machine is slow as well.
async fn rogue_with(
    place: &Place,
    patience: Duration,
) -> (Registry, Adapter, mpsc::Receiver<Relayed>) {
    place.compile("rogue", "rogue/rogue.c", &[]);
    let mut setup = place.setup(&["rogue", "echo"]);
    setup.config.call_timeout = patience;
    setup.config.event_bytes = 64 * 1024;
    setup.config.queue_bytes = 128 * 1024;
    setup.config.execution_bytes = 16 * 1024 * 1024;
    let (registry, relayed) = start(setup).await;
    let rogue = registry.get("rogue").unwrap();
    (registry, rogue, relayed)
}

async fn last(mut call: Call) -> Item {
    loop {
        let item = tokio::time::timeout(SOON, call.next()).await.unwrap();
        if matches!(item, Item::Done(_)) {
            return item;
        }
    }
}

async fn assert_unharmed(registry: &Registry) {
    for adapter in registry.adapters() {
        assert_eq!(adapter.health().status, HealthStatus::Healthy);
        assert_well(&adapter).await;
    }
    registry.shutdown(SOON).await;
}

fn kinds(items: &[Item]) -> Vec<&str> {
    items
        .iter()
        .map(|item| match item {
            Item::Event(event) => event.kind.as_str(),
            Item::Dropped(_) => "dropped",
            Item::Done(_) => "done",
        })
        .collect()
}

#[tokio::test]
async fn bad_answers_have_clear_results() {
    let place = Place::new();
    let (registry, rogue, _relayed) = rogue(&place).await;
    let large = execute(&rogue, "output:50000000").unwrap();
    let Item::Done(Err(error)) = last(large).await else {
        panic!("50 MB were taken");
    };
    let kept = &error.details.unwrap()["output"];
    assert_eq!(kept.as_str().unwrap(), "x".repeat(1024 * 1024));
    let table = [
        ("threads", None),
        ("large:104857600", Some("output_too_large")),
        ("length", Some("protocol_violation")),
        ("free", Some("protocol_violation")),
        ("null", Some("protocol_violation")),
        ("status", Some("protocol_violation")),
        ("error-text", Some("protocol_violation")),
        ("refuse", Some("adapter_error")),
        ("abandon", Some("adapter_error")),
    ];
    for (model, code) in table {
        let (_, answer) = run(&rogue, model).await;
        assert_eq!(answer.err().as_deref(), code, "{model}");
    }
    assert_unharmed(&registry).await;
}

#[tokio::test]
async fn of_two_answers_the_first_counts_and_the_second_is_refused() {
    let place = Place::new();
    let (registry, rogue, mut relayed) = rogue(&place).await;
    assert_eq!(run(&rogue, "twice").await.1.unwrap()["output"], "done");
    let second = loop {
        let event = relayed.recv().await.unwrap().event;
        if event.kind == "adapter.event" {
            break event.data.unwrap();
        }
    };
    assert_eq!(second["type"], "second");
    assert_eq!(second["data"]["code"], -1);
    assert_unharmed(&registry).await;
}

#[tokio::test]
async fn events_that_are_none_are_left_out() {
    let place = Place::new();
    let (registry, rogue, _relayed) = rogue(&place).await;
    let (items, answer) = run(&rogue, "garbage").await;
    assert_eq!(kinds(&items), ["fine"]);
    assert!(answer.is_ok());
    let (items, answer) = run(&rogue, "large-event").await;
    assert_eq!(items, [Item::Dropped(1)]);
    assert!(answer.is_ok());
    assert_unharmed(&registry).await;
}

#[tokio::test]
async fn a_flood_is_bounded_and_every_lost_event_counted() {
    const FLOOD: u64 = 200_000;
    let place = Place::new();
    let (registry, rogue, _relayed) = rogue(&place).await;
    let (items, answer) = run(&rogue, &format!("flood:{FLOOD}")).await;
    assert!(answer.is_ok());
    let mut next = 0;
    for item in &items {
        match item {
            Item::Event(event) => {
                let n = event.data.as_ref().unwrap()["n"].as_u64().unwrap();
                assert_eq!(n, next, "gaps are where they are told to be");
                next += 1;
            }
            Item::Dropped(count) => next += count,
            Item::Done(_) => panic!("done comes last"),
        }
    }
    assert_eq!(next, FLOOD);
    assert!(items.iter().any(|item| matches!(item, Item::Dropped(_))));
    assert_unharmed(&registry).await;
}

#[tokio::test]
async fn events_without_end_end_the_call() {
    let place = Place::new();
    let (registry, rogue, _relayed) = rogue(&place).await;
    let (_, answer) = run(&rogue, "endless").await;
    assert_eq!(answer.unwrap_err(), "output_too_large");
    cancels(&rogue, 1).await;
    assert_unharmed(&registry).await;
}

/// Waits until the rogue has received this number of cancellations.
async fn cancels(rogue: &Adapter, wanted: u64) {
    let asked = async {
        loop {
            let count = rogue.call("cancels", b"{}".to_vec(), SOON).await.unwrap();
            if count == wanted.to_string().as_bytes() {
                break;
            }
        }
    };
    tokio::time::timeout(SOON, asked).await.unwrap();
}

#[tokio::test]
async fn a_call_that_is_never_answered_is_cancelled_when_dropped() {
    let place = Place::new();
    let (registry, rogue, _relayed) = rogue(&place).await;
    drop(started(&rogue, "never").await);
    cancels(&rogue, 1).await;
    assert_unharmed(&registry).await;
}

#[tokio::test]
async fn an_answer_after_the_cancel_is_refused_and_harmless() {
    let place = Place::new();
    let (registry, rogue, _relayed) = rogue(&place).await;
    let report = place.folder.path().join("report");
    drop(started(&rogue, &format!("after:{}", report.display())).await);
    assert_eq!(appears(&report).await, "-1");
    assert_unharmed(&registry).await;
}

/// Starts a call and waits until a later one is answered, so that it has reached the adapter.
async fn started(rogue: &Adapter, model: &str) -> Call {
    let call = execute(rogue, model).unwrap();
    assert_well(rogue).await;
    call
}

#[tokio::test]
async fn a_blocked_start_is_noticed_fails_its_calls_and_heals() {
    let place = Place::new();
    let (registry, rogue, _relayed) = rogue_with(&place, Duration::from_millis(800)).await;
    let gate = place.folder.path().join("gate");
    let blocked = execute(&rogue, &format!("block:{}", gate.display())).unwrap();
    let behind = execute(&rogue, "ok").unwrap();
    for call in [blocked, behind] {
        assert_eq!(listen(call).await.1.unwrap_err(), "adapter_unavailable");
    }
    let health = rogue.health();
    assert_eq!(health.status, HealthStatus::Offline);
    assert_eq!(health.message.as_deref(), Some("blocked in start"));
    assert_eq!(
        execute(&rogue, "ok").unwrap_err().code,
        "adapter_unavailable"
    );
    assert_well(&registry.get("echo").unwrap()).await;

    std::fs::write(&gate, "").unwrap();
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    let healed = async {
        while rogue.health().status != HealthStatus::Healthy {
            tick.tick().await;
        }
    };
    tokio::time::timeout(SOON, healed).await.unwrap();
    assert_unharmed(&registry).await;
}

#[tokio::test]
async fn an_adapter_that_stays_blocked_does_not_hold_up_the_end() {
    let place = Place::new();
    let (registry, rogue, _relayed) = rogue_with(&place, Duration::from_millis(800)).await;
    let call = execute(&rogue, "block:/nonexistent/gate").unwrap();
    assert_eq!(listen(call).await.1.unwrap_err(), "adapter_unavailable");
    let ended = registry.shutdown(Duration::from_millis(300));
    tokio::time::timeout(SOON, ended).await.unwrap();
}

#[tokio::test]
async fn what_comes_after_destroy_is_refused_and_harmless() {
    let place = Place::new();
    let (registry, rogue, _relayed) = rogue(&place).await;
    let report = place.folder.path().join("report");
    let call = execute(&rogue, &format!("late:{}", report.display())).unwrap();
    registry.shutdown(SOON).await;
    assert_eq!(listen(call).await.1.unwrap_err(), "adapter_unavailable");
    // `complete` returned -1, and both `emit` returned 2.
    assert_eq!(appears(&report).await, "-1 2 2");
}
