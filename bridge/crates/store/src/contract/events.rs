//! Event log: order, gaps, cursors, filters and retention.

use std::sync::Arc;

use super::Subject;
use super::sample::{RETENTION, accept, at, begin, event, ok, run, settlement, task};
use crate::Store;
use crate::record::{AfterAttempt, Claim, EventFilter, Finish, LogBounds, NewDispatch, Progress};
use forge_base::event::{Event, kind};
use forge_base::id::DeliveryId;

async fn all(store: &dyn Store, filter: &EventFilter) -> Vec<Arc<Event>> {
    let page = store.events(filter, 0, 10_000).await.unwrap();
    assert!(!page.more);
    assert_eq!(page.scanned, store.log_bounds().issued);
    page.events
}

fn positions(events: &[Arc<Event>]) -> Vec<u64> {
    events.iter().map(|event| event.id.position).collect()
}

pub async fn a_dispatch_counts_its_events_without_a_gap(subject: impl Subject) {
    let store = subject.open().await;
    let id = accept(&*store, task("t")).await;
    accept(&*store, task("between")).await;
    let lease = begin(&*store, id, 1).await.lease;
    let progress = Progress {
        events: vec![event("assistant.text", 2), event("assistant.text", 2)],
        ..Progress::default()
    };
    store.append(&lease, progress).await.unwrap();
    let finish = ok(3);
    let delivery = DeliveryId::of(id);
    store.finish(Claim::Attempt(lease), finish).await.unwrap();
    let settled = settlement(1, 4, AfterAttempt::Delivered);
    store.settle(delivery, settled).await.unwrap();
    let filter = EventFilter {
        dispatch: Some(id),
        ..EventFilter::default()
    };
    let events = all(&*store, &filter).await;
    let expected = [
        (1, kind::ACCEPTED, 0),
        (2, kind::QUEUED, 0),
        (3, kind::STARTED, 1),
        (4, "assistant.text", 1),
        (5, "assistant.text", 1),
        (6, kind::COMPLETED, 1),
        (7, kind::CALLBACK_ATTEMPTED, 1),
    ];
    let seen: Vec<_> = events
        .iter()
        .map(|event| (event.seq, event.kind.as_str(), event.attempt))
        .collect();
    assert_eq!(seen, expected);
    let second = &events[1];
    assert_eq!(second.dispatch_id, Some(id));
    assert_eq!(second.task_id.as_deref(), Some("t"));
    assert_eq!(second.agent_id.as_deref(), Some("agent"));
    assert_eq!(second.provider.as_deref(), Some("echo"));
    assert_eq!(second.trace_id.as_deref(), Some("trace"));
    assert_eq!(second.timestamp, at(0));
    assert_eq!(second.data.as_ref().unwrap().get(), r#"{"at":0}"#);
    let last = store.last_event(id).await.unwrap().unwrap();
    assert_eq!(last.id, events[6].id);
}

pub async fn a_reader_resumes_anywhere_and_sees_each_event_once(subject: impl Subject) {
    let store = subject.open().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(accept(&*store, task(&n.to_string())).await);
    }
    let one = EventFilter {
        dispatch: Some(ids[2]),
        ..EventFilter::default()
    };
    for filter in [EventFilter::default(), one] {
        let whole = positions(&all(&*store, &filter).await);
        for limit in 1..4 {
            let (mut after, mut seen) = (0, Vec::new());
            loop {
                let page = store.events(&filter, after, limit).await.unwrap();
                assert!(page.events.len() <= limit);
                seen.extend(positions(&page.events));
                after = page.scanned;
                if !page.more {
                    break;
                }
            }
            assert_eq!(seen, whole);
            assert_eq!(after, store.log_bounds().issued);
        }
        for (place, position) in whole.iter().enumerate() {
            let page = store.events(&filter, *position, 100).await.unwrap();
            assert_eq!(positions(&page.events), whole[place + 1..]);
        }
        let beyond = store.events(&filter, 1 << 40, 10).await.unwrap();
        assert_eq!((beyond.scanned, beyond.more), (1 << 40, false));
        let nothing = store.events(&filter, 0, 0).await.unwrap();
        assert_eq!((nothing.scanned, nothing.more), (0, true));
    }
}

pub async fn filters_choose_and_still_make_progress(subject: impl Subject) {
    let store = subject.open().await;
    for n in 0..4 {
        let new = NewDispatch {
            agent_id: format!("agent-{}", n % 2),
            provider: format!("provider-{}", n / 2),
            ..task(&n.to_string())
        };
        accept(&*store, new).await;
    }
    let text = |text: &str| Some(text.to_owned());
    let any = EventFilter::default;
    for (filter, expected) in [
        (any(), vec![1, 2, 3, 4, 5, 6, 7, 8]),
        (
            EventFilter {
                provider: text("provider-1"),
                ..any()
            },
            vec![5, 6, 7, 8],
        ),
        (
            EventFilter {
                agent_id: text("agent-0"),
                ..any()
            },
            vec![1, 2, 5, 6],
        ),
        (
            EventFilter {
                task_id: text("3"),
                ..any()
            },
            vec![7, 8],
        ),
        (
            EventFilter {
                kind: text(kind::QUEUED),
                ..any()
            },
            vec![2, 4, 6, 8],
        ),
        (
            EventFilter {
                agent_id: text("agent-1"),
                kind: text(kind::ACCEPTED),
                ..any()
            },
            vec![3, 7],
        ),
        (
            EventFilter {
                provider: text("unknown"),
                ..any()
            },
            vec![],
        ),
    ] {
        let events = all(&*store, &filter).await;
        assert_eq!(positions(&events), expected, "{filter:?}");
        let part = store.events(&filter, 0, 3).await.unwrap();
        assert_eq!((part.scanned, part.more), (3, true), "{filter:?}");
        let within = expected.iter().filter(|position| **position <= 3);
        assert_eq!(part.events.len(), within.count(), "{filter:?}");
    }
}

pub async fn events_of_no_dispatch_stand_in_the_log(subject: impl Subject) {
    let store = subject.open().await;
    accept(&*store, task("t")).await;
    let health = vec![
        event(kind::ADAPTER_HEALTH, 1),
        event(kind::ADAPTER_EVENT, 2),
    ];
    store.append_unbound("echo", health).await.unwrap();
    store.append_unbound("echo", Vec::new()).await.unwrap();
    let events = all(&*store, &EventFilter::default()).await;
    assert_eq!(positions(&events), [1, 2, 3, 4]);
    let last = &events[3];
    assert_eq!((last.seq, last.attempt), (0, 0));
    assert_eq!(last.provider.as_deref(), Some("echo"));
    assert!(last.dispatch_id.is_none() && last.task_id.is_none());
    assert!(last.agent_id.is_none() && last.trace_id.is_none());
    let task = EventFilter {
        task_id: Some("t".to_owned()),
        ..EventFilter::default()
    };
    assert_eq!(positions(&all(&*store, &task).await), [1, 2]);
}

pub async fn an_id_is_never_issued_twice(subject: impl Subject) {
    let store = subject.open().await;
    let stays = NewDispatch {
        not_before: Some(at(50)),
        ..task("stays")
    };
    accept(&*store, stays).await;
    let finish = Finish {
        delivery: None,
        ..ok(2)
    };
    let (gone, _) = run(&*store, task("goes"), finish).await;
    let issued = store.log_bounds().issued;
    assert_eq!(issued, 6);
    let swept = store.sweep(at(2) + RETENTION, 10).await.unwrap();
    assert_eq!((swept.dispatches, swept.more), (1, false));
    let expected = LogBounds { issued, removed: 6 };
    assert_eq!(store.log_bounds(), expected);
    assert!(store.dispatch(gone).await.unwrap().is_none());
    assert!(store.last_event(gone).await.unwrap().is_none());

    let store = subject.open().await;
    assert_eq!(store.log_bounds(), expected);
    accept(&*store, task("new")).await;
    let page = store.events(&EventFilter::default(), 0, 100).await.unwrap();
    assert_eq!(positions(&page.events), [1, 2, 7, 8]);
    assert_eq!(store.log_bounds().issued, 8);
}

pub async fn the_log_keeps_its_name(subject: impl Subject) {
    let store = subject.open().await;
    let (id, log) = (store.store_id().to_owned(), store.log().clone());
    let store = subject.open().await;
    assert_eq!((store.store_id(), store.log()), (id.as_str(), &log));
}

pub async fn readers_are_woken_by_what_is_committed(subject: impl Subject) {
    let store = subject.open().await;
    let mut changes = store.changes();
    assert_eq!(*changes.borrow_and_update(), 0);
    accept(&*store, task("t")).await;
    changes.changed().await.unwrap();
    assert_eq!(*changes.borrow_and_update(), 2);
    store.accept(task("t")).await.unwrap();
    assert!(!changes.has_changed().unwrap());
}

pub async fn old_events_of_no_dispatch_go(subject: impl Subject) {
    let store = subject.open().await;
    for seconds in [0, 10] {
        let health = vec![event(kind::ADAPTER_HEALTH, seconds)];
        store.append_unbound("echo", health).await.unwrap();
    }
    let week = 7 * 24 * 60 * 60;
    store.sweep(at(week), 10).await.unwrap();
    assert_eq!(store.log_bounds().removed, 0);
    store.sweep(at(week + 1), 10).await.unwrap();
    assert_eq!(store.log_bounds().removed, 1);
    let page = store.events(&EventFilter::default(), 0, 10).await.unwrap();
    assert_eq!(positions(&page.events), [2]);
}

pub async fn sweeping_goes_in_steps_and_takes_only_what_is_past(subject: impl Subject) {
    let store = subject.open().await;
    let finish = |seconds| Finish {
        delivery: None,
        ..ok(seconds)
    };
    for (task_id, seconds) in [("a", 2), ("b", 3), ("c", 4)] {
        run(&*store, task(task_id), finish(seconds)).await;
    }
    let (pending, _) = run(&*store, task("pending"), ok(2)).await;
    let queued = accept(&*store, task("queued")).await;
    let later = at(3) + RETENTION;
    let first = store.sweep(later, 1).await.unwrap();
    assert_eq!((first.dispatches, first.more), (1, true));
    assert!(store.by_task("a", None, 1).await.unwrap().is_empty());
    let second = store.sweep(later, 1).await.unwrap();
    assert_eq!((second.dispatches, second.more), (1, false));
    let third = store.sweep(later, 1).await.unwrap();
    assert_eq!((third.dispatches, third.more), (0, false));
    assert_eq!(store.by_task("c", None, 1).await.unwrap().len(), 1);
    assert!(store.dispatch(pending).await.unwrap().is_some());
    assert!(store.dispatch(queued).await.unwrap().is_some());
    // The key is free again.
    accept(&*store, task("a")).await;
}
