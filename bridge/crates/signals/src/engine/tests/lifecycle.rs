//! Sessions of the engine: how they open, pause, end and follow each other.

use super::*;

/// Seconds after the last signal at which a session is still, or no longer, the same.
#[tokio::test]
async fn a_gap_of_the_timeout_ends_a_session() {
    tokio::time::pause();
    for (gap, sessions) in [(1799, 1), (1800, 2), (1801, 2)] {
        let fixture = Fixture::another(Config::default()).await;
        fixture.send(&start("s")).await;
        tokio::time::advance(Duration::from_secs(gap)).await;
        let answer = fixture.send(&drift("s")).await;
        assert_eq!(answer.session_id, "s");
        let stored = fixture.stored().await;
        assert_eq!(stored.len(), sessions, "{gap}");
        let (first, _) = &stored[0];
        let ended_at = (sessions == 2).then_some(first.last_at);
        assert_eq!(first.ended_at, ended_at, "{gap}");
    }
}

#[tokio::test]
async fn an_unknown_session_is_opened_by_any_signal() {
    let fixture = Fixture::plain().await;
    assert!(fixture.send(&drift("a")).await.logged);
    assert!(fixture.send(&end("b")).await.logged);
    let stored = fixture.stored().await;
    assert_eq!(
        (&stored[0].0.adapter, stored[0].0.ended_at),
        (&"unknown".to_owned(), None)
    );
    assert_eq!(stored[1].0.ended_at, Some(stored[1].0.last_at));
    // It begins after its first signal too.
    fixture.send(&start("a")).await;
    assert_eq!(fixture.counts().await, [2, 1]);
}

#[tokio::test]
async fn a_session_without_an_id_is_assigned_one_that_names_it() {
    let fixture = Fixture::plain().await;
    let [opened, other] = [
        fixture.send(&minimal()[0]).await.session_id,
        fixture.send(&minimal()[3]).await.session_id,
    ];
    assert!(
        opened.starts_with("sess_") && opened != other,
        "{opened} {other}"
    );
    assert_eq!(fixture.send(&drift(&opened)).await.session_id, opened);
    assert_eq!(fixture.send(&end(&opened)).await.session_id, opened);
    // Its successor has the same id on the wire.
    assert_eq!(fixture.send(&drift(&opened)).await.session_id, opened);
    let mut counts = fixture.counts().await;
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 3]);
}

#[tokio::test]
async fn a_session_ends_once_and_a_later_signal_opens_a_successor() {
    let mut fixture = Fixture::plain().await;
    fixture.send(&start("s")).await;
    assert!(fixture.send(&end("s")).await.logged);
    let again = Answer {
        action: Action::Noop,
        session_id: "s".to_owned(),
        logged: false,
        signal_id: None,
    };
    assert_eq!(fixture.send(&end("s")).await, again);
    fixture.restart().await;
    assert_eq!(fixture.send(&end("s")).await, again);
    assert_eq!(fixture.counts().await, [2]);
    // The same bytes have the same answer.
    let exact = with(&end("t"), "ts", "2025-05-29T10:00:00.001Z".into());
    let first = fixture.send(&exact).await;
    assert!(first.logged);
    assert_eq!(fixture.send(&exact).await, first);
    assert!(!fixture.send(&end("t")).await.logged);
    assert_eq!(fixture.counts().await, [2, 1]);
    assert_eq!(fixture.send(&drift("s")).await.session_id, "s");
    let stored = fixture.stored().await;
    let (first, second) = (&stored[0].0, &stored[2].0);
    assert_ne!(first.id, second.id);
    assert_eq!(
        (first.client_session_id.as_deref(), &first.key_id),
        (Some("s"), &second.key_id)
    );
    assert_eq!(
        (&second.adapter, second.ended_at),
        (&"tool".to_owned(), None)
    );
    let (started, ended) = ("signal.session.started", "signal.session.ended");
    let expected = [started, ended, started, ended, started];
    assert_eq!(fixture.events().await, expected);
    fixture.restart().await;
    fixture.send(&drift("s")).await;
    assert_eq!(fixture.counts().await, [2, 1, 2]);
}

#[tokio::test]
async fn a_pause_suspends_the_timeout_for_a_day() {
    let mut fixture = Fixture::plain().await;
    fixture.send(&start("s")).await;
    fixture.send(&pause("s")).await;
    let (day, second) = (LONGEST_PAUSE, Duration::from_secs(1));
    tokio::time::advance(day - second).await;
    fixture.engine.look().await;
    fixture.restart().await;
    let paused_at = fixture.stored().await[0].0.paused_at;
    assert!(paused_at.is_some());
    // Any signal resumes, and the timeout holds again.
    fixture.send(&drift("s")).await;
    assert_eq!(fixture.stored().await[0].0.paused_at, None);
    assert_eq!(fixture.counts().await, [3]);
    tokio::time::advance(Duration::from_secs(1800)).await;
    fixture.engine.look().await;
    assert!(fixture.stored().await[0].0.ended_at.is_some());
    // A pause has an end.
    fixture.send(&pause("s")).await;
    tokio::time::advance(day).await;
    fixture.engine.look().await;
    let stored = fixture.stored().await;
    assert_eq!(stored.len(), 2);
    assert!(stored[1].0.ended_at.is_some());
    let (started, paused, ended) = (
        "signal.session.started",
        "signal.session.paused",
        "signal.session.ended",
    );
    let expected = [started, paused, ended, started, paused, ended];
    assert_eq!(fixture.events().await, expected);
}

#[tokio::test]
async fn two_tokens_cannot_touch_the_sessions_of_each_other() {
    let fixture = Fixture::plain().await;
    fixture.send_by(1, &start("s")).await;
    fixture.send_by(2, &end("s")).await;
    fixture.send_by(2, &heartbeat()).await;
    fixture.send_by(1, &drift("s")).await;
    let stored = fixture.stored().await;
    let of = |token: u8| {
        let own = stored
            .iter()
            .filter(move |(session, _)| session.owner == Some([token; 32]));
        own.map(|(session, _)| session).collect::<Vec<_>>()
    };
    let [first] = of(1)[..] else {
        panic!("{stored:?}");
    };
    assert_eq!((first.totals.signals, first.ended_at), (2, None));
    assert_eq!(first.user_id.as_deref(), Some("user 1"));
    assert_eq!(of(2).len(), 2);
}

#[tokio::test]
async fn two_adapters_have_sessions_and_heartbeats_of_their_own() {
    let fixture = Fixture::plain().await;
    fixture.send(&start("a")).await;
    fixture
        .send(&with(&start("b"), "adapter_id", "other".into()))
        .await;
    let beat = fixture.send(&heartbeat()).await;
    assert_eq!((beat.session_id.as_str(), beat.logged), ("a", true));
    assert_eq!(fixture.counts().await, [2, 1]);
}

#[tokio::test]
async fn a_heartbeat_is_counted_for_the_live_sessions_of_its_adapter() {
    let fixture = Fixture::plain().await;
    // Without a session it opens one, which the next one finds.
    let first = fixture.send(&heartbeat()).await;
    assert!(first.session_id.starts_with("sess_") && first.logged);
    assert_eq!(
        fixture.send(&heartbeat()).await.session_id,
        first.session_id
    );
    fixture.send(&end(&first.session_id)).await;
    for id in ["a", "b", "c", "d"] {
        tokio::time::advance(Duration::from_secs(1)).await;
        fixture.send(&start(id)).await;
    }
    fixture.send(&end("d")).await;
    fixture.send(&pause("a")).await;
    let beat = fixture.send(&heartbeat()).await;
    assert_eq!((beat.session_id.as_str(), beat.logged), ("c", true));
    assert_eq!(fixture.counts().await, [3, 3, 2, 2, 2]);
    // The user of the paused one is still away.
    assert!(fixture.stored().await[1].0.paused_at.is_some());
}

#[tokio::test]
async fn heartbeats_that_stop_are_noticed_once() {
    let fixture = Fixture::plain().await;
    fixture.send(&start("never")).await;
    fixture.send(&end("never")).await;
    fixture.send(&start("s")).await;
    fixture.send(&heartbeat()).await;
    let lost = async || {
        fixture.engine.look().await;
        let events = fixture.events().await;
        let lost = events
            .iter()
            .filter(|kind| *kind == "signal.heartbeat_lost");
        lost.count()
    };
    tokio::time::advance(Duration::from_secs(89)).await;
    assert_eq!(lost().await, 0);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(lost().await, 1);
    tokio::time::advance(Duration::from_secs(90)).await;
    assert_eq!(lost().await, 1);
    assert_eq!(fixture.engine.meters().heartbeats_lost.get(), 1);
    fixture.send(&heartbeat()).await;
    tokio::time::advance(Duration::from_secs(90)).await;
    assert_eq!(lost().await, 2);
}

#[tokio::test]
async fn an_acknowledgement_of_an_unknown_intervention_is_logged() {
    let fixture = Fixture::plain().await;
    let acknowledged = with(&minimal()[7], "session_id", "s".into());
    for _ in 0..2 {
        let answer = fixture.send(&acknowledged).await;
        assert_eq!((answer.action, answer.logged), (Action::Log, true));
    }
    assert_eq!(fixture.events().await, ["signal.session.started"]);
}

#[tokio::test]
async fn live_sessions_are_bounded() {
    let config = Config {
        max_sessions: 2,
        ..Config::default()
    };
    let fixture = Fixture::new(config).await;
    fixture.send(&start("a")).await;
    fixture.send(&start("b")).await;
    let full = fixture.receive(1, &start("c")).await;
    assert_eq!(full, Err(ReceiveError::Full(2)));
    assert!(fixture.send(&drift("b")).await.logged);
    fixture.send(&end("a")).await;
    assert!(fixture.send(&start("c")).await.logged);
    assert_eq!(fixture.engine.sessions(), 2);
}

#[tokio::test]
async fn old_sessions_are_forgotten_in_memory() {
    let fixture = Fixture::plain().await;
    fixture.send(&start("a")).await;
    fixture.send(&end("a")).await;
    tokio::time::advance(LONGEST_PAUSE).await;
    fixture.engine.look().await;
    let known = || {
        let sessions = &fixture.engine.inner.sessions;
        sessions.matching(fixture.clock.now(), |_| true).len()
    };
    assert_eq!(known(), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    fixture.engine.look().await;
    assert_eq!(known(), 0);
}

#[tokio::test]
async fn a_clock_that_is_set_back_keeps_no_session_alive() {
    let fixture = Fixture::plain().await;
    fixture.send(&start("a")).await;
    fixture.clock.set(jiff::SignedDuration::from_hours(-1));
    fixture.engine.look().await;
    assert_eq!(fixture.engine.sessions(), 1);
    tokio::time::advance(Config::default().session_timeout).await;
    fixture.engine.look().await;
    assert_eq!(fixture.engine.sessions(), 0);
}
