//! Requirements on sessions of signals.

use std::sync::Arc;

use super::Subject;
use super::sample::{at, event};
use super::signals::{
    ENDED, STARTED, kinds, open, record, records, session, signal, stored, successor,
};
use crate::Error;
use crate::record::{NewSignal, SignalSession, SignalSessionFilter, SignalSource};

pub async fn a_session_is_stored_with_its_events(subject: impl Subject) {
    let store = subject.open().await;
    open(&*store, session("s")).await;
    let again = store.open_signal_session(session("s"), vec![event(STARTED, 1)]);
    let refused = again.await;
    assert!(
        matches!(refused, Err(Error::InvalidState(_))),
        "{refused:?}"
    );
    let full = SignalSession {
        source: SignalSource::Engine,
        user_id: None,
        project_id: Some("project".to_owned()),
        client_session_id: None,
        owner: Some([9; 32]),
        paused_at: Some(at(4)),
        ended_at: Some(at(5)),
        ..session("full")
    };
    open(&*store, full.clone()).await;
    let store = subject.open().await;
    assert_eq!(stored(&*store, "s").await, (session("s"), Vec::new()));
    assert_eq!(stored(&*store, "full").await, (full, Vec::new()));
    assert_eq!(store.signal_session("none", 10).await.unwrap(), None);
    assert_eq!(kinds(&*store).await, [STARTED, STARTED]);
}

pub async fn a_session_ends_once(subject: impl Subject) {
    let store = subject.open().await;
    for id in ["a", "b", "c"] {
        open(&*store, session(id)).await;
    }
    let last = NewSignal {
        ends: Some(("a".to_owned(), at(3))),
        events: vec![event(ENDED, 3)],
        ..signal("a", 3)
    };
    records(&*store, last).await;
    let ends = ["a", "b", "none"].map(|id| (id.to_owned(), at(7)));
    let ended = vec![event(ENDED, 7)];
    store
        .end_signal_sessions(ends.to_vec(), ended)
        .await
        .unwrap();
    let again = NewSignal {
        ends: Some(("b".to_owned(), at(9))),
        ..signal("b", 9)
    };
    records(&*store, again).await;
    let store = subject.open().await;
    for (id, ended_at) in [("a", Some(at(3))), ("b", Some(at(7))), ("c", None)] {
        assert_eq!(stored(&*store, id).await.0.ended_at, ended_at, "{id}");
    }
    let expected = [STARTED, STARTED, STARTED, ENDED, ENDED];
    assert_eq!(kinds(&*store).await, expected);
}

pub async fn a_signal_pauses_its_session_and_the_next_resumes_it(subject: impl Subject) {
    let store = subject.open().await;
    open(&*store, session("s")).await;
    for (seconds, paused_at) in [(1, Some(at(1))), (2, None), (3, Some(at(3)))] {
        let new = NewSignal {
            paused_at,
            ..signal("s", seconds)
        };
        records(&*store, new).await;
        assert_eq!(stored(&*store, "s").await.0.paused_at, paused_at);
    }
    let store = subject.open().await;
    let (paused, _) = stored(&*store, "s").await;
    assert_eq!((paused.paused_at, paused.ended_at), (Some(at(3)), None));
}

pub async fn recent_sessions_are_listed_by_their_id(subject: impl Subject) {
    let store = subject.open().await;
    for id in ["d", "b", "a", "c", "e"] {
        open(&*store, session(id)).await;
    }
    let engines = SignalSession {
        source: SignalSource::Engine,
        last_at: at(100),
        ..session("aa")
    };
    open(&*store, engines.clone()).await;
    for (id, seconds) in [("a", 100), ("b", 99), ("c", 101), ("e", 100)] {
        records(&*store, signal(id, seconds)).await;
    }
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.recent_signal_sessions(SignalSource::Agent, at(100), after, 2);
        let page = page.await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.id.clone());
        found.extend(page.into_iter().map(|session| session.id));
    }
    assert_eq!(found, ["a", "c", "e"]);
    for (source, expected) in [
        (SignalSource::Agent, (5, stored(&*store, "a").await.0)),
        (SignalSource::Engine, (1, engines)),
    ] {
        let all = store.recent_signal_sessions(source, at(0), None, 10);
        let mut all = all.await.unwrap();
        assert_eq!((all.len(), all.remove(0)), expected);
    }
}

pub async fn sessions_are_listed_newest_first_and_filtered(subject: impl Subject) {
    let store = subject.open().await;
    let text = |text: &str| Some(text.to_owned());
    // In the order of their starts, and of their ids where they start together.
    for (id, seconds, adapter, user_id, project_id, ended_at) in [
        ("2", 20, "cursor", None, text("p"), None),
        ("1", 10, "claude-code", text("u"), None, Some(at(11))),
        ("3", 30, "claude-code", text("u"), text("p"), None),
        ("4", 30, "cursor", text("v"), None, Some(at(31))),
        ("5", 30, "claude-code", text("v"), None, None),
    ] {
        let new = SignalSession {
            adapter: adapter.to_owned(),
            user_id,
            project_id,
            ended_at,
            ..successor(id, &session(id), seconds)
        };
        open(&*store, new).await;
    }
    let any = || SignalSessionFilter {
        limit: 2,
        ..SignalSessionFilter::default()
    };
    let cursor = SignalSessionFilter {
        adapter: text("cursor"),
        ..any()
    };
    let user = SignalSessionFilter {
        user: text("u"),
        ..any()
    };
    let project = SignalSessionFilter {
        project: text("p"),
        ..any()
    };
    let active = |active| SignalSessionFilter {
        active: Some(active),
        ..any()
    };
    let both = SignalSessionFilter {
        adapter: text("claude-code"),
        ..active(true)
    };
    for (filter, expected) in [
        (any(), vec!["5", "4", "3", "2", "1"]),
        (cursor, vec!["4", "2"]),
        (user, vec!["3", "1"]),
        (project, vec!["3", "2"]),
        (active(true), vec!["5", "3", "2"]),
        (active(false), vec!["4", "1"]),
        (both, vec!["5", "3"]),
    ] {
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let page = SignalSessionFilter {
                before,
                ..filter.clone()
            };
            let page = store.signal_sessions(page).await.unwrap();
            assert!(page.items.len() <= 2);
            found.extend(page.items.into_iter().map(|session| session.id));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        assert_eq!(found, expected, "{filter:?}");
    }
}

pub async fn records_are_read_on_from_the_position_that_was_kept(subject: impl Subject) {
    let store = subject.open().await;
    for id in ["a", "b"] {
        open(&*store, session(id)).await;
    }
    records(&*store, signal("a", 1)).await;
    assert_eq!(store.signals_to_forward(10).await.unwrap(), None);
    let newest = store.mark_signals(Arc::new(|| {})).await.unwrap();
    store.keep_forwarded(newest).await.unwrap();
    let none = Some(Vec::new());
    assert_eq!(store.signals_to_forward(10).await.unwrap(), none);
    for (id, seconds) in [("b", 2), ("a", 3), ("b", 4)] {
        records(&*store, signal(id, seconds)).await;
    }
    let store = subject.open().await;
    let read = |limit| {
        let store = Arc::clone(&store);
        async move { store.signals_to_forward(limit).await.unwrap().unwrap() }
    };
    let entries = read(10).await;
    let seen: Vec<_> = entries
        .iter()
        .map(|one| (one.session.id.as_str(), one.is_first, one.tokens))
        .collect();
    let expected = [("b", true, 110), ("a", false, 220), ("b", false, 220)];
    assert_eq!(seen, expected);
    assert_eq!(entries[0].record, record(2));
    assert_eq!(entries[1].session, stored(&*store, "a").await.0);
    assert_eq!(read(2).await, entries[..2]);
    store.keep_forwarded(entries[1].position).await.unwrap();
    assert_eq!(read(10).await, entries[2..]);
    store.keep_forwarded(entries[2].position).await.unwrap();
    assert_eq!(read(10).await, []);
}

/// As many records as were forwarded arrive after all of those were removed.
pub async fn the_position_of_a_removed_record_is_not_given_again(subject: impl Subject) {
    let store = subject.open().await;
    store.keep_forwarded(0).await.unwrap();
    for (id, seconds) in [("a", 0), ("b", 200), ("c", 400)] {
        let store = subject.open().await;
        open(&*store, successor(id, &session(id), seconds)).await;
        for more in [1, 2] {
            records(&*store, signal(id, seconds + more)).await;
        }
        let entries = store.signals_to_forward(10).await.unwrap().unwrap();
        let sessions: Vec<_> = entries.iter().map(|one| &*one.session.id).collect();
        assert_eq!(sessions, [id, id]);
        store.keep_forwarded(entries[1].position).await.unwrap();
        while store
            .sweep_signals(at(seconds + 100), 10)
            .await
            .unwrap()
            .more
        {}
        let kept = store.signals_to_forward(10).await.unwrap();
        assert_eq!(kept, Some(Vec::new()));
        assert_eq!(store.signal_session(id, 1).await.unwrap(), None);
    }
}
