//! Signals on their way to disk: repeats, a store that is away, and many at once.

use super::*;

fn post_tool(session: &str) -> Value {
    json!({
        "type": "post-tool", "adapter": "tool", "session_id": session, "metadata": {"tokens_in": 10},
    })
}

#[tokio::test]
async fn a_repeat_has_the_same_answer_and_is_counted_once() {
    let mut fixture = Fixture::plain().await;
    let exact = with(&post_tool("s"), "ts", "2025-05-29T10:00:00.001Z".into());
    let millis = with(&post_tool("s"), "ts", json!(1_748_512_800_001_u64));
    let mut named = with(&post_tool("s"), "call_id", "c".into());
    for signal in [&exact, &millis, &named] {
        let first = fixture.send(signal).await;
        assert_eq!(fixture.send(signal).await, first);
    }
    named["metadata"]["tokens_in"] = 11.into();
    assert!(fixture.send(&named).await.logged);
    // Two calls within one second can be alike, and so can those without a time.
    let rough = with(&post_tool("s"), "ts", "2025-05-29T10:00:00Z".into());
    for signal in [&rough, &rough, &post_tool("s"), &post_tool("s")] {
        fixture.send(signal).await;
    }
    assert_eq!(fixture.counts().await, [7]);
    // Of another session, or of another token, it is no repeat.
    fixture.send(&with(&exact, "session_id", "t".into())).await;
    fixture.send_by(2, &exact).await;
    assert_eq!(fixture.counts().await, [7, 1, 1]);
    fixture.restart().await;
    for signal in [&exact, &millis, &named] {
        assert!(fixture.send(signal).await.logged);
    }
    fixture.send(&end("s")).await;
    // In the successor it is one too.
    fixture.send(&drift("s")).await;
    fixture.send(&exact).await;
    let mut counts = fixture.counts().await;
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 1, 8]);
    let received: Vec<_> = fixture.engine.meters().received().collect();
    assert_eq!(received[..2], [("stored", 2), ("repeated", 4)]);
}

#[tokio::test]
async fn a_store_that_is_away_delays_no_answer_by_more_than_a_second() {
    let fixture = Fixture::plain().await;
    let disk = &fixture.disk;
    fixture.send(&start("s")).await;
    disk.is_away.store(true, Ordering::Relaxed);
    for signal in [drift("s"), pause("s"), end("s"), start("new"), drift("new")] {
        let begun = Instant::now();
        let answer = fixture.send(&signal).await;
        assert!(
            !answer.logged && begun.elapsed() < Duration::from_millis(1),
            "{signal}"
        );
        assert_eq!(answer.action, Action::Noop);
    }
    disk.hangs.store(true, Ordering::Relaxed);
    for signal in [drift("s"), pause("s"), drift("new"), start("other")] {
        let begun = Instant::now();
        let answers = join_all([fixture.send(&signal), fixture.send(&signal)]).await;
        assert!(answers.iter().all(|answer| !answer.logged), "{signal}");
        assert!(
            begun.elapsed() < STORE_TIMEOUT + Duration::from_millis(2),
            "{signal}"
        );
    }
    disk.is_away.store(false, Ordering::Relaxed);
    disk.hangs.store(false, Ordering::Relaxed);
    // The end that was lost is sent again.
    for signal in [end("s"), drift("new"), drift("other")] {
        assert!(fixture.send(&signal).await.logged, "{signal}");
    }
    let stored = fixture.stored().await;
    let of = |id: &str| {
        let mut all = stored.iter();
        let found = all.find(|(session, _)| session.client_session_id.as_deref() == Some(id));
        found.unwrap().0.clone()
    };
    assert_eq!(
        (of("s").totals.signals, of("s").ended_at.is_some()),
        (2, true)
    );
    assert_eq!(
        (of("new").totals.signals, of("other").totals.signals),
        (1, 1)
    );
    assert_eq!(stored.len(), 3);
    let received: Vec<_> = fixture.engine.meters().received().collect();
    assert!(received.contains(&("lost", 13)), "{received:?}");
}

/// Many signals of one session at once, some of which end or pause it: each is counted in exactly one session.
#[tokio::test]
async fn concurrent_signals_are_each_counted_once() {
    let fixture = Fixture::plain().await;
    let signals = [post_tool("s"), end("s"), pause("s"), start("s")];
    let sends = (0..200).map(|number| {
        let signal = match number % 10 {
            7 => &signals[1],
            8 => &signals[2],
            9 => &signals[3],
            _ => &signals[0],
        };
        fixture.send(signal)
    });
    join_all(sends).await;
    let stored = fixture.stored().await;
    let usage = stored.iter().map(|(session, _)| session.totals.tokens_in);
    assert_eq!(usage.sum::<u64>(), 140 * 10);
    let open = stored
        .iter()
        .filter(|(session, _)| session.ended_at.is_none());
    assert!(open.count() <= 1);
}
