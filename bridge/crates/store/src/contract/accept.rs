//! Keys, duplicates, take-overs and the bound of the queue.

use super::Subject;
use super::sample::{
    accept, at, begin, callback, event, failed, ok, owner, raw, run, settlement, task,
};
use crate::Error;
use crate::record::{
    Acceptance, AfterAttempt, Claim, Counts, DeliveryState, DispatchRecord, DispatchState,
    EventFilter, Finished, IdempotencyKey, KeyOwner, KeySpace, NewDispatch,
};
use forge_base::digest::sha256;
use forge_base::event::kind;

/// Request that differs from the sample's.
const OTHER: &str = r#"{"message":"other"}"#;

fn task_key(value: &str) -> IdempotencyKey {
    IdempotencyKey {
        owner: KeyOwner::EVERYONE,
        space: KeySpace::Task,
        value: value.to_owned(),
    }
}

fn with_header(value: &str, new: NewDispatch) -> NewDispatch {
    NewDispatch {
        key: IdempotencyKey {
            owner: KeyOwner::EVERYONE,
            space: KeySpace::Header,
            value: value.to_owned(),
        },
        ..new
    }
}

pub async fn an_accepted_dispatch_reads_as_it_was_given(subject: impl Subject) {
    let store = subject.open().await;
    assert!(store.recall(&task_key("t")).await.unwrap().is_none());
    let new = NewDispatch {
        run_id: Some("run".to_owned()),
        session: Some("s".to_owned()),
        priority: -3,
        pinned: true,
        not_before: Some(at(50)),
        ..task("t")
    };
    let id = accept(&*store, new).await;
    let known = store.recall(&task_key("t")).await.unwrap().unwrap();
    assert_eq!(known.fingerprint, sha256("hello"));
    let read = store.dispatch(id).await.unwrap().unwrap();
    for dispatch in [known.dispatch, read] {
        assert_eq!(dispatch.id, id);
        assert_eq!(dispatch.task_id, "t");
        assert_eq!(dispatch.agent_id, "agent");
        assert_eq!(dispatch.run_id.as_deref(), Some("run"));
        assert_eq!(dispatch.trace_id, "trace");
        assert_eq!(dispatch.provider, "echo");
        assert!(dispatch.pinned && !dispatch.cancel_requested);
        assert_eq!(dispatch.routing.get(), r#"[{"layer":0}]"#);
        assert_eq!(dispatch.session.as_deref(), Some("s"));
        assert_eq!(dispatch.priority, -3);
        assert_eq!(dispatch.state, DispatchState::Queued);
        assert_eq!(dispatch.attempts, 0);
        assert_eq!(dispatch.accepted_at, at(0));
        assert_eq!(dispatch.not_before, Some(at(50)));
        assert_eq!(dispatch.start_by, at(100));
        assert_eq!(dispatch.first_started_at, None);
        assert_eq!(dispatch.retry_of, None);
        assert_eq!(dispatch.callback, Some(callback("a.example")));
        assert!(dispatch.result.is_none());
    }
    assert_eq!(store.counts().queued, 1);
    assert_eq!(store.queues().await.unwrap(), [("echo".to_owned(), 1)]);
}

pub async fn the_same_body_is_a_duplicate_and_another_a_conflict(subject: impl Subject) {
    let store = subject.open().await;
    let id = accept(&*store, task("t")).await;
    let asking = |request| NewDispatch {
        request: raw(request),
        ..task("t")
    };
    for same in [r#"{"message":"hello"}"#, r#"{"message":"hello","try":2}"#] {
        let again = store.accept(asking(same)).await.unwrap();
        assert!(matches!(again, Acceptance::Duplicate(known) if known.id == id));
    }
    let other = NewDispatch {
        fingerprint: sha256(OTHER),
        ..asking(OTHER)
    };
    let other = store.accept(other).await.unwrap();
    assert!(matches!(other, Acceptance::Conflict(holder) if holder == id));
    begin(&*store, id, 1).await;
    let again = store.accept(task("t")).await.unwrap();
    assert!(matches!(again, Acceptance::Duplicate(known) if known.attempts == 1));
    assert_eq!(store.by_task("t", None, 10).await.unwrap().len(), 1);
}

pub async fn a_duplicate_of_a_finished_one_makes_its_delivery_due_again(subject: impl Subject) {
    let store = subject.open().await;
    let (_, delivery) = run(&*store, task("t"), ok(2)).await;
    let delivery = delivery.unwrap();
    let delivered = settlement(1, 3, AfterAttempt::Delivered);
    store.settle(delivery, delivered).await.unwrap();
    assert_eq!(store.counts().deliveries_pending, 0);
    let again = NewDispatch {
        accepted_at: at(10),
        ..task("t")
    };
    let again = store.accept(again).await.unwrap();
    assert!(matches!(again, Acceptance::Duplicate(_)));
    let delivery = store.delivery(delivery).await.unwrap().unwrap();
    assert_eq!(delivery.status, DeliveryState::Pending);
    assert_eq!(delivery.due_at, Some(at(10)));
    assert_eq!(delivery.settled_at, None);
    assert_eq!(store.counts().deliveries_pending, 1);
    assert_eq!(store.sweep(at(100_000), 10).await.unwrap().dispatches, 0);
}

pub async fn the_caller_names_what_it_repeats_unless_a_key_is_taken_over(subject: impl Subject) {
    let store = subject.open().await;
    let (old, _) = run(&*store, task("t"), failed("timeout", 2)).await;
    let named = NewDispatch {
        retry_of: Some(old),
        ..task("again")
    };
    let id = named.id;
    let answer = store.accept(named).await.unwrap();
    assert!(matches!(
        answer,
        Acceptance::Accepted { retry_of: None, .. }
    ));
    let of = |record: Option<DispatchRecord>| record.unwrap().retry_of;
    assert_eq!(of(store.dispatch(id).await.unwrap()), Some(old));
    let taken = NewDispatch {
        retry_of: Some(id),
        ..task("t")
    };
    let taking = taken.id;
    store.accept(taken).await.unwrap();
    assert_eq!(of(store.dispatch(taking).await.unwrap()), Some(old));
}

pub async fn a_failed_one_gives_its_task_key_to_a_new_one(subject: impl Subject) {
    let store = subject.open().await;
    let (old, delivery) = run(&*store, task("t"), failed("timeout", 2)).await;
    let new = NewDispatch {
        request: raw(OTHER),
        fingerprint: sha256(OTHER),
        accepted_at: at(10),
        ..task("t")
    };
    let id = new.id;
    let answer = store.accept(new).await.unwrap();
    assert!(matches!(answer, Acceptance::Accepted { retry_of: Some(of), .. } if of == old));
    let superseded = store.delivery(delivery.unwrap()).await.unwrap().unwrap();
    assert_eq!(superseded.status, DeliveryState::Superseded);
    assert_eq!(superseded.settled_at, Some(at(10)));
    assert_eq!(superseded.due_at, None);
    let known = store.recall(&task_key("t")).await.unwrap().unwrap();
    assert_eq!(
        (known.dispatch.id, known.dispatch.retry_of),
        (id, Some(old))
    );
    let late = store
        .settle(superseded.id, settlement(1, 11, AfterAttempt::Delivered))
        .await;
    assert!(matches!(late, Err(Error::InvalidState(_))));
    let tasks = store.by_task("t", None, 10).await.unwrap();
    assert_eq!(tasks.iter().map(|d| d.id).collect::<Vec<_>>(), [id, old]);
    // Retention starts at the take-over.
    assert_eq!(store.sweep(at(1009), 10).await.unwrap().dispatches, 0);
    assert_eq!(store.sweep(at(1010), 10).await.unwrap().dispatches, 1);
}

pub async fn a_dead_delivery_is_superseded_too(subject: impl Subject) {
    let store = subject.open().await;
    let (_, delivery) = run(&*store, task("t"), failed("timeout", 2)).await;
    let delivery = delivery.unwrap();
    let dead = settlement(1, 3, AfterAttempt::Dead);
    store.settle(delivery, dead).await.unwrap();
    assert_eq!(store.counts().deliveries_dead, 1);
    accept(&*store, task("t")).await;
    let delivery = store.delivery(delivery).await.unwrap().unwrap();
    assert_eq!(delivery.status, DeliveryState::Superseded);
    let expected = Counts {
        queued: 1,
        ..Counts::default()
    };
    assert_eq!(store.counts(), expected);
}

pub async fn a_header_key_is_never_taken_over(subject: impl Subject) {
    let store = subject.open().await;
    let new = || with_header("key", task("t"));
    let (id, _) = run(&*store, new(), failed("timeout", 2)).await;
    let same = store.accept(new()).await.unwrap();
    assert!(matches!(same, Acceptance::Duplicate(known) if known.id == id));
    let other = NewDispatch {
        request: raw(OTHER),
        fingerprint: sha256(OTHER),
        ..new()
    };
    let other = store.accept(other).await.unwrap();
    assert!(matches!(other, Acceptance::Conflict(holder) if holder == id));
}

pub async fn header_and_task_keys_do_not_meet(subject: impl Subject) {
    let store = subject.open().await;
    let header = accept(&*store, with_header("t", task("t"))).await;
    let plain = accept(&*store, task("t")).await;
    let other = accept(&*store, with_header("u", task("t"))).await;
    for (space, value, expected) in [
        (KeySpace::Header, "t", Some(header)),
        (KeySpace::Header, "u", Some(other)),
        (KeySpace::Task, "t", Some(plain)),
        (KeySpace::Task, "u", None),
    ] {
        let key = IdempotencyKey {
            owner: KeyOwner::EVERYONE,
            space,
            value: value.to_owned(),
        };
        let known = store.recall(&key).await.unwrap();
        assert_eq!(known.map(|known| known.dispatch.id), expected);
    }
}

pub async fn keys_of_different_owners_do_not_meet(subject: impl Subject) {
    let store = subject.open().await;
    let of = |new: NewDispatch, number, body: &str| NewDispatch {
        key: IdempotencyKey {
            owner: owner(number),
            ..new.key
        },
        fingerprint: sha256(body),
        ..new
    };
    let (task, keyed) = (|| task("t"), || with_header("key", task("u")));
    // Failed ones, whose keys only their owners take over, and ones with a key of a header.
    let (mut failed_ones, mut headers) = (Vec::new(), Vec::new());
    for number in 0..3 {
        let failing = of(task(), number, "a");
        failed_ones.push(run(&*store, failing, failed("timeout", 2)).await.0);
    }
    for number in 0..3 {
        headers.push(accept(&*store, of(keyed(), number, &number.to_string())).await);
    }
    for (number, (failed, header)) in (0..).zip(failed_ones.into_iter().zip(headers)) {
        let other = store.accept(of(keyed(), number, "other")).await.unwrap();
        assert!(matches!(other, Acceptance::Conflict(holder) if holder == header));
        let same = store
            .accept(of(keyed(), number, &number.to_string()))
            .await
            .unwrap();
        assert!(matches!(same, Acceptance::Duplicate(known) if known.id == header));
        let repeated = store.accept(of(task(), number, "a")).await.unwrap();
        assert!(
            matches!(repeated, Acceptance::Accepted { retry_of, .. } if retry_of == Some(failed))
        );
        let own = store.by_task("t", Some(owner(number)), 9).await.unwrap();
        let holds = own.iter().map(|dispatch| (dispatch.id, dispatch.retry_of));
        let holds: Vec<_> = holds.collect();
        assert_eq!((holds.len(), holds[0].1), (2, Some(failed)));
        assert_eq!(holds[1].0, failed);
    }
    assert_eq!(store.by_task("t", None, 9).await.unwrap().len(), 6);
    assert!(
        store
            .by_task("t", Some(owner(3)), 9)
            .await
            .unwrap()
            .is_empty()
    );
}

pub async fn a_task_key_must_be_the_task_id(subject: impl Subject) {
    let store = subject.open().await;
    let new = NewDispatch {
        key: task_key("other"),
        ..task("t")
    };
    let refused = store.accept(new).await;
    assert!(matches!(refused, Err(Error::InvalidState(_))));
    assert_eq!(store.counts().queued, 0);
}

pub async fn a_full_queue_refuses_new_ones_but_knows_duplicates(subject: impl Subject) {
    let store = subject.open().await;
    let limited = |task_id: &str| NewDispatch {
        queue_limit: 2,
        ..task(task_id)
    };
    let first = accept(&*store, limited("a")).await;
    accept(&*store, limited("b")).await;
    let full = store.accept(limited("c")).await.unwrap();
    assert!(matches!(full, Acceptance::QueueFull));
    let known = store.accept(limited("a")).await.unwrap();
    assert!(matches!(known, Acceptance::Duplicate(_)));
    begin(&*store, first, 1).await;
    accept(&*store, limited("c")).await;
    let gone = Claim::Unstarted(store.by_task("b", None, 1).await.unwrap()[0].id);
    store
        .finish(gone, failed("queue_timeout", 2))
        .await
        .unwrap();
    assert_eq!(store.counts().queued, 1);
}

pub async fn one_with_room_begins_at_once(subject: impl Subject) {
    let store = subject.open().await;
    let new = || NewDispatch {
        start: Some(event(kind::STARTED, 0)),
        session: Some("s".to_owned()),
        ..task("t")
    };
    let accepted = store.accept(new()).await.unwrap();
    let Acceptance::Accepted {
        begun: Some(begun), ..
    } = accepted
    else {
        panic!("{accepted:?}");
    };
    assert_eq!((begun.lease.attempt, begun.lease.epoch), (1, store.epoch()));
    assert_eq!(begun.secrets.as_deref(), Some(&b"sealed"[..]));
    assert_eq!(begun.dispatch.first_started_at, Some(at(0)));
    let id = begun.lease.id;
    let read = store.dispatch(id).await.unwrap().unwrap();
    assert_eq!(read.state, begun.dispatch.state);
    let counts = store.counts();
    assert_eq!((counts.queued, counts.running), (0, 1));
    let filter = EventFilter::default();
    let events = store.events(&filter, 0, 10).await.unwrap().events;
    let told: Vec<_> = events.iter().map(|e| (e.seq, e.attempt)).collect();
    assert_eq!(told, [(1, 0), (2, 0), (3, 1)]);
    let again = store.accept(new()).await.unwrap();
    assert!(matches!(again, Acceptance::Duplicate(known) if known.attempts == 1));
    let finished = store.finish(Claim::Attempt(begun.lease), ok(2)).await;
    assert!(matches!(finished, Ok(Finished::Recorded(_))));
}

pub async fn one_that_has_to_wait_does_not_begin(subject: impl Subject) {
    let store = subject.open().await;
    let in_session = |task_id: &str| NewDispatch {
        start: Some(event(kind::STARTED, 0)),
        session: Some("s".to_owned()),
        ..task(task_id)
    };
    let delayed = NewDispatch {
        not_before: Some(at(50)),
        ..in_session("a")
    };
    let first = store.accept(in_session("b")).await.unwrap();
    assert!(matches!(first, Acceptance::Accepted { begun: Some(_), .. }));
    for waiting in [delayed, in_session("c")] {
        let accepted = store.accept(waiting).await.unwrap();
        assert!(matches!(accepted, Acceptance::Accepted { begun: None, .. }));
    }
    let counts = store.counts();
    assert_eq!((counts.queued, counts.running), (2, 1));
}
