//! Tests of `event_fanout`.

use super::super::testing::event;
use super::*;
use forge_store::memory::Memory;

fn fanout() -> EventFanout {
    EventFanout::new(Arc::new(Memory::new()), CancellationToken::new())
}

fn of(provider: &str) -> EventFilter {
    EventFilter {
        provider: Some(provider.to_owned()),
        ..EventFilter::default()
    }
}

/// Positions of the pending events and the end position; `[0]` and a position if the log has to be read.
fn look(subscriber: &mut Subscriber, position: u64) -> (Vec<u64>, u64) {
    match subscriber.since(position) {
        Pending::Told(events, told) => {
            (events.iter().map(|event| event.id.position).collect(), told)
        }
        Pending::After(position) => (vec![0], position),
    }
}

fn told(positions: &[u64], told: u64) -> (Vec<u64>, u64) {
    (positions.to_vec(), told)
}

fn for_the_log(after: u64) -> (Vec<u64>, u64) {
    (vec![0], after)
}

async fn say(fanout: &EventFanout, provider: &str) {
    let said = fanout.store().append_unbound(provider, vec![event("e")]);
    said.await.unwrap();
}

#[tokio::test]
async fn each_hears_of_its_own_and_how_far_there_is_nothing() {
    let fanout = fanout();
    let mut all = fanout.subscribe(&EventFilter::default());
    let mut of_a = fanout.subscribe(&of("a"));
    assert_eq!(look(&mut of_a, 0), told(&[], 0));
    for (provider, for_a) in [
        ("a", told(&[1], 1)),
        ("b", told(&[], 2)),
        ("a", told(&[3], 3)),
    ] {
        let before = fanout.store().log_bounds().issued;
        assert_eq!(look(&mut all, before), told(&[], before));
        say(&fanout, provider).await;
        all.changed(&EventFilter::default()).await;
        assert_eq!(look(&mut all, before), told(&[before + 1], before + 1));
        let seen = if before == 2 { 1 } else { before };
        assert_eq!(look(&mut of_a, seen), for_a);
    }
}

#[tokio::test]
async fn who_waits_for_something_else_is_not_woken() {
    let fanout = fanout();
    let _listeners = ["a", "a", "b"].map(|provider| fanout.subscribe(&of(provider)));
    let mut position = 0;
    for (providers, woken) in [
        (&["c"][..], 0),
        (&["b"], 1),
        (&["a", "a"], 3),
        (&["a", "c"], 2),
    ] {
        for provider in providers {
            say(&fanout, provider).await;
        }
        let all = EventFilter::default();
        let page = fanout.store().events(&all, position, PAGE).await.unwrap();
        position = page.scanned;
        let told = fanout.0.topics().publish(&page.events, position);
        assert_eq!(told, woken, "{providers:?}");
    }
}

#[tokio::test]
async fn who_is_far_behind_or_comes_later_looks_for_itself() {
    let fanout = fanout();
    let mut early = fanout.subscribe(&of("a"));
    let count = 3 * REMEMBERED as u64;
    for _ in 0..count {
        say(&fanout, "a").await;
    }
    while look(&mut early, count - 1) != told(&[count], count) {
        early.changed(&of("a")).await;
    }
    assert_eq!(look(&mut early, 1), for_the_log(1));
    let oldest = count - REMEMBERED as u64;
    let newest: Vec<u64> = (oldest + 1..=count).collect();
    assert_eq!(look(&mut early, oldest), told(&newest, count));
    let mut late = fanout.subscribe(&of("b"));
    assert_eq!(look(&mut late, 1), for_the_log(1));
    assert_eq!(look(&mut late, count), told(&[], count));
}

#[tokio::test]
async fn a_large_event_is_read_from_the_log() {
    let fanout = fanout();
    let mut subscriber = fanout.subscribe(&EventFilter::default());
    say(&fanout, "a").await;
    let mut large = event("e");
    large.data = serde_json::value::to_raw_value(&"x".repeat(KEPT_BYTES)).ok();
    let said = fanout.store().append_unbound("a", vec![large]).await;
    said.unwrap();
    while fanout.0.topics().told < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(look(&mut subscriber, 1), for_the_log(1));
    assert_eq!(look(&mut subscriber, 2), told(&[], 2));
}

#[tokio::test]
async fn a_type_of_event_is_a_topic_of_its_own() {
    let fanout = fanout();
    let filter = EventFilter {
        kind: Some("f".to_owned()),
        ..of("a")
    };
    let mut subscriber = fanout.subscribe(&filter);
    let events = ["e", "f", "e"].map(event).to_vec();
    let said = fanout.store().append_unbound("a", events).await;
    said.unwrap();
    assert!(subscriber.changed(&filter).await);
    assert_eq!(look(&mut subscriber, 0), told(&[2], 3));
    fanout.closing().cancel();
    assert!(!subscriber.changed(&filter).await);
}

#[tokio::test]
async fn nothing_is_read_without_subscribers_and_again_for_the_next() {
    let fanout = fanout();
    drop(fanout.subscribe(&of("a")));
    say(&fanout, "a").await;
    while fanout.0.topics().is_read {
        tokio::task::yield_now().await;
    }
    let mut next = fanout.subscribe(&of("a"));
    say(&fanout, "a").await;
    next.changed(&of("a")).await;
    assert_eq!(look(&mut next, 1), told(&[2], 2));
}

#[tokio::test]
async fn a_telling_that_broke_off_sends_its_listeners_to_the_log() {
    let fanout = fanout();
    let mut subscriber = fanout.subscribe(&of("a"));
    say(&fanout, "a").await;
    while fanout.0.topics().told < 1 {
        tokio::task::yield_now().await;
    }
    fanout.0.topics().by_topic.clear();
    assert_eq!(look(&mut subscriber, 1), told(&[], 1));
    subscriber.changed(&of("a")).await;
    assert_eq!(look(&mut subscriber, 0), for_the_log(0));
    assert_eq!(look(&mut subscriber, 1), told(&[], 1));
    say(&fanout, "a").await;
    subscriber.changed(&of("a")).await;
    assert_eq!(look(&mut subscriber, 1), told(&[2], 2));
}
