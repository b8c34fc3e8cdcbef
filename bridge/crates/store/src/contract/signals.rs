//! Requirements on signals and their sessions.

use super::Subject;
use super::sample::{at, event};
use crate::record::{
    EventFilter, NewSignal, SignalRecord, SignalRecorded, SignalSession, SignalSource, SignalTotals,
};
use crate::signals::repeated;
use crate::{Error, Store};

pub(super) const STARTED: &str = "signal.session.started";
pub(super) const ENDED: &str = "signal.session.ended";

/// Session opened at second 0 with a key of its own.
pub fn session(id: &str) -> SignalSession {
    SignalSession {
        id: id.to_owned(),
        key_id: id.to_owned(),
        source: SignalSource::Agent,
        adapter: "claude-code".to_owned(),
        user_id: Some("user".to_owned()),
        project_id: None,
        client_session_id: Some(format!("client {id}")),
        owner: None,
        started_at: at(0),
        last_at: at(0),
        paused_at: None,
        ended_at: None,
        totals: SignalTotals::default(),
    }
}

/// Record with usage and a cost that arrives at this second.
pub fn record(seconds: i64) -> SignalRecord {
    SignalRecord {
        at: at(seconds),
        ts: at(seconds - 1000),
        kind: Some("PostToolUse".to_owned()),
        model: Some("model".to_owned()),
        tool: Some("Bash".to_owned()),
        user_id: Some("user".to_owned()),
        project_id: Some("project".to_owned()),
        error_code: None,
        tokens_in: Some(100),
        tokens_out: Some(10),
        cost_micros: Some(7),
        cache_read_tokens: Some(60),
        cache_write_tokens: Some(30),
        latency_ms: Some(1.5),
        drift_score: Some(0.25),
        confidence: Some(1.0),
        details: Some("{}".to_owned()),
        blocked: false,
        intervention_id: None,
    }
}

/// Signal in a stored session that repeats none.
pub fn signal(session_id: &str, seconds: i64) -> NewSignal {
    NewSignal {
        session_id: session_id.to_owned(),
        record: record(seconds),
        repeat_key: None,
        opens: None,
        ends: None,
        paused_at: None,
        events: Vec::new(),
        judge: None,
    }
}

/// The session after another one under the same key, opened at this second.
pub(super) fn successor(id: &str, of: &SignalSession, seconds: i64) -> SignalSession {
    SignalSession {
        id: id.to_owned(),
        started_at: at(seconds),
        last_at: at(seconds),
        ..of.clone()
    }
}

pub(super) async fn open(store: &dyn Store, session: SignalSession) {
    let started = vec![event(STARTED, 0)];
    store.open_signal_session(session, started).await.unwrap();
}

pub(super) async fn records(store: &dyn Store, signal: NewSignal) {
    let recorded = store.record_signal(signal).await.unwrap();
    assert!(matches!(recorded, SignalRecorded::New(_)), "{recorded:?}");
}

pub(super) async fn stored(store: &dyn Store, id: &str) -> (SignalSession, Vec<SignalRecord>) {
    store.signal_session(id, 10).await.unwrap().unwrap()
}

/// Types of all events, which belong to no adapter and no dispatch.
pub(super) async fn kinds(store: &dyn Store) -> Vec<String> {
    let all = EventFilter::default();
    let page = store.events(&all, 0, 100).await.unwrap();
    for event in &page.events {
        assert!(event.provider.is_none() && event.dispatch_id.is_none());
    }
    let events = page.events.iter();
    events.map(|event| event.kind.clone()).collect()
}

pub async fn a_record_counts_in_its_session(subject: impl Subject) {
    let store = subject.open().await;
    open(&*store, session("s")).await;
    open(&*store, session("other")).await;
    let plain = SignalRecord {
        kind: None,
        model: None,
        tool: None,
        user_id: None,
        project_id: None,
        error_code: Some("timeout".to_owned()),
        tokens_in: None,
        tokens_out: Some(5),
        cost_micros: None,
        cache_read_tokens: None,
        cache_write_tokens: None,
        latency_ms: None,
        drift_score: None,
        confidence: None,
        details: None,
        blocked: true,
        ..record(9)
    };
    let late = NewSignal {
        record: plain.clone(),
        events: vec![event("signal.blocked", 9)],
        ..signal("s", 9)
    };
    records(&*store, late).await;
    // A clock that was set back does not move the session back.
    for seconds in [4, 5] {
        records(&*store, signal("s", seconds)).await;
    }
    let store = subject.open().await;
    let (found, kept) = stored(&*store, "s").await;
    assert_eq!(kept, [record(5), record(4), plain]);
    let expected = SignalTotals {
        signals: 3,
        errors: 1,
        tokens_in: 200,
        tokens_out: 25,
        cost_micros: 14,
        unpriced: 1,
    };
    assert_eq!((found.totals, found.last_at), (expected, at(9)));
    let (_, newest) = store.signal_session("s", 1).await.unwrap().unwrap();
    assert_eq!(newest, [record(5)]);
    assert_eq!(stored(&*store, "other").await.0, session("other"));
    assert_eq!(kinds(&*store).await, [STARTED, STARTED, "signal.blocked"]);
}

pub async fn a_signal_of_an_unknown_session_is_not_found(subject: impl Subject) {
    let store = subject.open().await;
    open(&*store, session("s")).await;
    let unknown = NewSignal {
        opens: Some(session("elsewhere")),
        ends: Some(("s".to_owned(), at(1))),
        events: vec![event(ENDED, 1)],
        ..signal("none", 1)
    };
    let refused = store.record_signal(unknown).await;
    assert!(matches!(refused, Err(Error::NotFound)), "{refused:?}");
    let known = NewSignal {
        opens: Some(session("s")),
        ends: Some(("s".to_owned(), at(1))),
        events: vec![event(ENDED, 1)],
        ..signal("s", 1)
    };
    let refused = store.record_signal(known).await;
    assert!(
        matches!(refused, Err(Error::InvalidState(_))),
        "{refused:?}"
    );
    assert_eq!(stored(&*store, "s").await, (session("s"), Vec::new()));
    assert_eq!(store.signal_session("elsewhere", 1).await.unwrap(), None);
    assert_eq!(kinds(&*store).await, [STARTED]);
}

pub async fn a_repeat_writes_nothing(subject: impl Subject) {
    let store = subject.open().await;
    open(&*store, session("a")).await;
    open(&*store, session("b")).await;
    let keyed = |id: &str, seconds, repeat_key| NewSignal {
        repeat_key: Some([repeat_key; 32]),
        events: vec![event("signal.intervention", seconds)],
        ..signal(id, seconds)
    };
    let mut blocked = keyed("a", 1, 1);
    blocked.record.blocked = true;
    records(&*store, blocked).await;
    // Another key, and another session key.
    records(&*store, keyed("a", 2, 2)).await;
    records(&*store, keyed("b", 3, 1)).await;
    // None repeats one without a key.
    records(&*store, signal("a", 4)).await;
    records(&*store, signal("a", 4)).await;
    let store = subject.open().await;
    let before = (stored(&*store, "a").await, kinds(&*store).await);
    let after = SignalRecorded::Repeat("a".to_owned(), repeated(true, None));
    let again = store.record_signal(keyed("a", 5, 1)).await.unwrap();
    assert_eq!(again, after);
    // Also where it would open a successor under the same key.
    let successor = NewSignal {
        opens: Some(successor("a2", &session("a"), 6)),
        ends: Some(("a".to_owned(), at(4))),
        ..keyed("a2", 6, 1)
    };
    assert_eq!(store.record_signal(successor).await.unwrap(), after);
    assert_eq!(store.signal_session("a2", 1).await.unwrap(), None);
    assert_eq!((stored(&*store, "a").await, kinds(&*store).await), before);
    assert_eq!(before.0.0.totals.signals, 4);
}

pub async fn a_successor_opens_as_the_former_session_ends(subject: impl Subject) {
    let store = subject.open().await;
    open(&*store, session("a")).await;
    let keyed = |id: &str, repeat_key| NewSignal {
        repeat_key: Some([repeat_key; 32]),
        ..signal(id, 2000)
    };
    records(&*store, keyed("a", 1)).await;
    let next = successor("a2", &session("a"), 4000);
    let first = NewSignal {
        record: record(4000),
        opens: Some(next.clone()),
        ends: Some(("a".to_owned(), at(2000))),
        events: vec![event(ENDED, 4000), event(STARTED, 4000)],
        ..keyed("a2", 2)
    };
    records(&*store, first).await;
    let store = subject.open().await;
    let (former, _) = stored(&*store, "a").await;
    assert_eq!(
        (former.ended_at, former.totals.signals),
        (Some(at(2000)), 1)
    );
    let (opened, kept) = stored(&*store, "a2").await;
    assert_eq!((opened.key_id, opened.ended_at), (next.key_id, None));
    assert_eq!((opened.totals.signals, opened.last_at), (1, at(4000)));
    assert_eq!(kept, [record(4000)]);
    assert_eq!(kinds(&*store).await, [STARTED, ENDED, STARTED]);
    for (id, repeat_key, of) in [("a2", 1, "a"), ("a", 2, "a2"), ("a2", 2, "a2")] {
        let again = store.record_signal(keyed(id, repeat_key)).await.unwrap();
        let of = of.to_owned();
        let expected = SignalRecorded::Repeat(of, repeated(false, None));
        assert_eq!(again, expected, "{id} {repeat_key}");
    }
}

pub async fn old_signals_go_in_steps_and_their_sessions_after_them(subject: impl Subject) {
    let store = subject.open().await;
    for id in ["old", "silent", "alive", "new"] {
        let seconds = if id == "new" { 100 } else { 0 };
        open(&*store, successor(id, &session(id), seconds)).await;
    }
    let keyed = |seconds| NewSignal {
        repeat_key: Some([1; 32]),
        ..signal("old", seconds)
    };
    records(&*store, keyed(1)).await;
    for (id, seconds) in [("old", 2), ("alive", 3), ("alive", 50)] {
        records(&*store, signal(id, seconds)).await;
    }
    let mut steps = Vec::new();
    loop {
        let step = store.sweep_signals(at(50), 2).await.unwrap();
        steps.push((step.signals, step.sessions));
        if !step.more {
            break;
        }
    }
    assert!(steps.iter().all(|(signals, _)| *signals <= 2), "{steps:?}");
    let sum = |of: fn(&(u64, u64)) -> u64| steps.iter().map(of).sum::<u64>();
    assert_eq!((sum(|step| step.0), sum(|step| step.1)), (3, 2));
    let store = subject.open().await;
    for id in ["old", "silent"] {
        assert_eq!(store.signal_session(id, 1).await.unwrap(), None, "{id}");
    }
    let (alive, kept) = stored(&*store, "alive").await;
    assert_eq!((alive.totals.signals, kept), (2, vec![record(50)]));
    assert_eq!(stored(&*store, "new").await.0.totals.signals, 0);
    // Its id and the key of its signal are free again.
    open(&*store, session("old")).await;
    records(&*store, keyed(60)).await;
}
