//! Attempts: leases, cancel versus finish, interruption, the result.

use super::Subject;
use super::sample::{
    PROVIDER, RETENTION, accept, at, begin, claim, event, failed, ok, raw, ready, run, task,
};
use crate::Error;
use crate::record::{
    CancelRequest, Claim, Claimed, Content, DispatchState, Finish, Finished, NewDispatch, Progress,
    Recorded, Requeue,
};
use forge_base::event::kind;
use forge_base::id::{DeliveryId, DispatchId};

pub async fn an_attempt_is_handed_all_that_it_needs(subject: impl Subject) {
    let store = subject.open().await;
    let id = accept(&*store, task("t")).await;
    let claimed = claim(&*store, PROVIDER, 1, 5).await.pop().unwrap();
    let Claimed { begun, request } = claimed;
    assert_eq!(begun.lease.id, id);
    assert_eq!((begun.lease.attempt, begun.lease.epoch), (1, store.epoch()));
    assert_eq!(request.get(), r#"{"message":"hello"}"#);
    assert_eq!(begun.secrets.as_deref(), Some(&b"sealed"[..]));
    assert!(begun.recorded_session.is_none() && begun.spent.is_none());
    let running = DispatchState::Running {
        attempt: 1,
        started_at: at(5),
    };
    let read = store.dispatch(id).await.unwrap().unwrap();
    for dispatch in [begun.dispatch, read] {
        assert_eq!(dispatch.state, running);
        assert_eq!(dispatch.attempts, 1);
        assert_eq!(dispatch.first_started_at, Some(at(5)));
    }
    let counts = store.counts();
    assert_eq!((counts.queued, counts.running), (0, 1));
    let last = store.last_event(id).await.unwrap().unwrap();
    assert_eq!((&*last.kind, last.seq, last.attempt), (kind::STARTED, 3, 1));
}

pub async fn a_stale_lease_writes_nothing(subject: impl Subject) {
    let store = subject.open().await;
    let id = accept(&*store, task("t")).await;
    let lease = begin(&*store, id, 1).await.lease;
    let mut other_attempt = lease.clone();
    other_attempt.attempt += 1;
    let mut other_epoch = lease.clone();
    other_epoch.epoch += 1;
    let issued = store.log_bounds().issued;
    for stale in [other_attempt, other_epoch] {
        let progress = Progress {
            events: vec![event("assistant.text", 2)],
            ..Progress::default()
        };
        let append = store.append(&stale, progress).await;
        assert!(matches!(append, Err(Error::Stale(_))));
        let finish = store.finish(Claim::Attempt(stale.clone()), ok(2)).await;
        assert!(matches!(finish, Err(Error::Stale(_))));
        let requeue = Requeue {
            event: event(kind::RETRYING, 2),
        };
        let requeue = store.requeue(Claim::Attempt(stale), requeue).await;
        assert!(matches!(requeue, Err(Error::Stale(_))));
    }
    let unstarted = store.finish(Claim::Unstarted(id), ok(2)).await;
    assert!(matches!(unstarted, Err(Error::Stale(_))));
    let interrupted = Claim::Interrupted { id, attempt: 1 };
    let interrupted = store.finish(interrupted, ok(2)).await;
    assert!(matches!(interrupted, Err(Error::Stale(_))));
    assert_eq!(store.log_bounds().issued, issued);
    let claim = Claim::Attempt(lease.clone());
    store.finish(claim, ok(3)).await.unwrap();
    let late = store.append(&lease, Progress::default()).await;
    assert!(matches!(late, Err(Error::Stale(_))));
}

pub async fn what_an_attempt_recorded_is_there_for_the_next(subject: impl Subject) {
    let store = subject.open().await;
    let id = accept(&*store, task("t")).await;
    let lease = begin(&*store, id, 1).await.lease;
    let progress = Progress {
        events: Vec::new(),
        session: Some("runtime-session".to_owned()),
        spent: Some(raw(r#"{"tokens":1}"#)),
        charge: None,
    };
    store.append(&lease, progress).await.unwrap();
    let progress = Progress {
        spent: Some(raw(r#"{"tokens":2}"#)),
        ..Progress::default()
    };
    store.append(&lease, progress).await.unwrap();
    let requeue = Requeue {
        event: event(kind::RETRYING, 2),
    };
    store.requeue(Claim::Attempt(lease), requeue).await.unwrap();
    let counts = store.counts();
    assert_eq!((counts.queued, counts.running), (1, 0));
    let begun = begin(&*store, id, 3).await;
    assert_eq!(begun.recorded_session.as_deref(), Some("runtime-session"));
    assert_eq!(begun.spent.unwrap().get(), r#"{"tokens":2}"#);
}

pub async fn a_result_carries_its_events(subject: impl Subject) {
    let store = subject.open().await;
    let id = accept(&*store, task("t")).await;
    let begun = begin(&*store, id, 1).await;
    let progress = Progress {
        events: vec![event("assistant.text", 2), event("assistant.text", 2)],
        ..Progress::default()
    };
    store.append(&begun.lease, progress).await.unwrap();
    let finish = ok(3);
    let delivery = DeliveryId::of(id);
    let finished = store.finish(Claim::Attempt(begun.lease), finish).await;
    let Finished::Recorded(Recorded { totals, body }) = finished.unwrap() else {
        panic!("no cancel was requested");
    };
    assert_eq!(totals.count, 6);
    assert_eq!(totals.last, store.log_bounds().issued);
    let cursor = store.log().cursor(totals.last);
    let expected = format!(r#"{{"status":"ok","events":{{"count":6,"lastCursor":"{cursor}"}}}}"#);
    assert_eq!(body, expected);
    let dispatch = store.dispatch(id).await.unwrap().unwrap();
    assert_eq!(dispatch.result.unwrap().get(), expected);
    let finished = DispatchState::Finished {
        at: at(3),
        error_code: None,
    };
    assert_eq!(dispatch.state, finished);
    let payload = store.payload(delivery).await.unwrap();
    assert_eq!(payload.body, expected.as_bytes());
    assert_eq!(payload.trace_id, "trace");
    assert_eq!(payload.request.get(), r#"{"message":"hello"}"#);
    assert_eq!(payload.secrets.as_deref(), Some(&b"sealed"[..]));
}

pub async fn a_result_that_is_no_object_is_refused_whole(subject: impl Subject) {
    let store = subject.open().await;
    let id = accept(&*store, task("t")).await;
    let begun = begin(&*store, id, 1).await;
    let issued = store.log_bounds().issued;
    let list = Finish {
        result: raw("[]"),
        ..ok(2)
    };
    let refused = store
        .finish(Claim::Attempt(begun.lease.clone()), list)
        .await;
    assert!(matches!(refused, Err(Error::InvalidState(_))));
    assert_eq!(store.log_bounds().issued, issued);
    assert_eq!(store.counts().running, 1);
    store
        .finish(Claim::Attempt(begun.lease), ok(2))
        .await
        .unwrap();
}

pub async fn a_cancel_before_the_finish_wins(subject: impl Subject) {
    let store = subject.open().await;
    let id = accept(&*store, task("t")).await;
    let lease = begin(&*store, id, 1).await.lease;
    let answer = store.request_cancel(id, at(2)).await.unwrap();
    assert_eq!(answer, CancelRequest::Running { attempt: 1 });
    assert!(store.dispatch(id).await.unwrap().unwrap().cancel_requested);
    for finish in [ok(3), failed("timeout", 3)] {
        let refused = store.finish(Claim::Attempt(lease.clone()), finish).await;
        assert_eq!(refused.unwrap(), Finished::CancelRequested);
    }
    assert_eq!(store.counts().deliveries_pending, 0);
    let claim = Claim::Attempt(lease);
    let recorded = store.finish(claim, failed("cancelled", 3)).await.unwrap();
    assert!(matches!(recorded, Finished::Recorded(_)));
    assert_eq!(store.counts().deliveries_pending, 1);
}

pub async fn a_cancel_after_the_finish_is_too_late(subject: impl Subject) {
    let store = subject.open().await;
    let (id, _) = run(&*store, task("t"), ok(2)).await;
    let answer = store.request_cancel(id, at(3)).await.unwrap();
    assert_eq!(answer, CancelRequest::Finished);
    assert!(!store.dispatch(id).await.unwrap().unwrap().cancel_requested);
    let unknown = store.request_cancel(DispatchId::new(), at(3)).await;
    assert_eq!(unknown.unwrap(), CancelRequest::Unknown);
    let queued = accept(&*store, task("u")).await;
    for _ in 0..2 {
        let answer = store.request_cancel(queued, at(3)).await.unwrap();
        assert_eq!(answer, CancelRequest::Queued);
    }
    assert_eq!(store.counts().queued, 1);
}

pub async fn a_cancelled_attempt_does_not_go_back_to_the_queue(subject: impl Subject) {
    let store = subject.open().await;
    let id = accept(&*store, task("t")).await;
    let lease = begin(&*store, id, 1).await.lease;
    store.request_cancel(id, at(2)).await.unwrap();
    let requeue = Requeue {
        event: event(kind::RETRYING, 3),
    };
    let refused = store.requeue(Claim::Attempt(lease), requeue).await;
    assert!(matches!(refused, Err(Error::InvalidState(_))));
}

pub async fn what_ran_at_a_crash_is_found_at_the_next_boot(subject: impl Subject) {
    let store = subject.open().await;
    let first = accept(&*store, task("a")).await;
    let second = accept(&*store, task("b")).await;
    let queued = accept(&*store, task("c")).await;
    let cancelled = accept(&*store, task("d")).await;
    store.request_cancel(cancelled, at(1)).await.unwrap();
    let lease = begin(&*store, first, 1).await.lease;
    begin(&*store, second, 1).await;
    let progress = Progress {
        session: Some("runtime-session".to_owned()),
        ..Progress::default()
    };
    store.append(&lease, progress).await.unwrap();
    store.request_cancel(first, at(2)).await.unwrap();
    assert!(store.interrupted(10).await.unwrap().is_empty());
    let epoch = store.epoch();

    let store = subject.open().await;
    assert_eq!(store.epoch(), epoch + 1);
    let counts = store.counts();
    assert_eq!((counts.queued, counts.running), (2, 2));
    assert_eq!(store.queues().await.unwrap(), [("echo".to_owned(), 2)]);
    let found = store.interrupted(10).await.unwrap();
    let ids: Vec<_> = found.iter().map(|one| one.dispatch.id).collect();
    assert_eq!(ids, [first, second]);
    assert_eq!(found[0].attempt, 1);
    assert_eq!(found[0].request.get(), r#"{"message":"hello"}"#);
    let session = found[0].recorded_session.as_deref();
    assert_eq!(session, Some("runtime-session"));
    assert!(found[0].cancel_requested && !found[1].cancel_requested);
    assert_eq!(store.interrupted(1).await.unwrap().len(), 1);
    assert_eq!(ready(&*store).await, [queued]);
    assert_eq!(store.cancelled_in_queue(10).await.unwrap(), [cancelled]);
    let late = store.append(&lease, Progress::default()).await;
    assert!(matches!(late, Err(Error::Stale(_))));
}

pub async fn only_the_interrupted_claim_ends_what_a_crash_left(subject: impl Subject) {
    let store = subject.open().await;
    let first = accept(&*store, task("a")).await;
    let second = accept(&*store, task("b")).await;
    let lease = begin(&*store, first, 1).await.lease;
    begin(&*store, second, 1).await;

    let store = subject.open().await;
    let old = store.finish(Claim::Attempt(lease), ok(5)).await;
    assert!(matches!(old, Err(Error::Stale(_))));
    let claim = |id, attempt| Claim::Interrupted { id, attempt };
    let wrong = store.finish(claim(first, 2), ok(5)).await;
    assert!(matches!(wrong, Err(Error::Stale(_))));
    let finished = store
        .finish(claim(first, 1), failed("interrupted", 5))
        .await;
    assert!(matches!(finished.unwrap(), Finished::Recorded(_)));
    let requeue = || Requeue {
        event: event(kind::RETRYING, 5),
    };
    store.requeue(claim(second, 1), requeue()).await.unwrap();
    let twice = store.requeue(claim(second, 1), requeue()).await;
    assert!(matches!(twice, Err(Error::Stale(_))));
    let twice = store.requeue(Claim::Unstarted(second), requeue()).await;
    assert!(matches!(twice, Err(Error::InvalidState(_))));
    assert!(store.interrupted(10).await.unwrap().is_empty());
    let begun = begin(&*store, second, 6).await;
    assert_eq!((begun.lease.attempt, begun.lease.epoch), (2, store.epoch()));
}

pub async fn contents_are_read_in_pieces(subject: impl Subject) {
    let store = subject.open().await;
    let text: String = (0..700_000u32)
        .map(|n| char::from(b'a' + u8::try_from(n % 26).unwrap()))
        .collect();
    let finish = Finish {
        output: Some(text.clone()),
        output_files: vec![b"first".to_vec(), Vec::new(), vec![7; 300_000]],
        delivery: None,
        ..ok(2)
    };
    let new = NewDispatch {
        attachments: vec![b"picture".to_vec(), b"page".to_vec()],
        ..task("t")
    };
    let (id, _) = run(&*store, new, finish).await;
    for (content, expected) in [
        (Content::OutputFile(0), Some((5, &b"first"[..]))),
        // Nothing is stored of an empty one.
        (Content::OutputFile(1), None),
        (Content::OutputFile(2), Some((300_000, &[7; 8]))),
        (Content::OutputFile(3), None),
        (Content::Attachment(0), Some((7, b"picture"))),
        (Content::Attachment(1), Some((4, b"page"))),
        (Content::Attachment(2), None),
    ] {
        let piece = store.content(id, content, 0, 8).await.unwrap();
        let found = piece.as_ref().map(|piece| (piece.total, &*piece.bytes));
        assert_eq!(found, expected, "{content:?}");
    }
    for (offset, limit, start, end) in [
        (0, usize::MAX, 0, 700_000),
        (0, 10, 0, 10),
        (262_140, 10, 262_140, 262_150),
        (100_000, 500_000, 100_000, 600_000),
        (699_999, 10, 699_999, 700_000),
        (700_000, 10, 700_000, 700_000),
        (u64::MAX, 10, 700_000, 700_000),
    ] {
        let piece = store
            .content(id, Content::Output, offset, limit)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(piece.total, 700_000);
        assert!(piece.bytes == text.as_bytes()[start..end], "from {offset}");
    }
    let (short, _) = run(&*store, task("u"), ok(2)).await;
    assert!(
        store
            .content(short, Content::Output, 0, 10)
            .await
            .unwrap()
            .is_none()
    );
    let unknown = store
        .content(DispatchId::new(), Content::Output, 0, 10)
        .await
        .unwrap();
    assert!(unknown.is_none());
    assert_eq!(
        store.sweep(at(2) + RETENTION, 10).await.unwrap().dispatches,
        1
    );
    assert!(
        store
            .content(id, Content::Output, 0, 10)
            .await
            .unwrap()
            .is_none()
    );
}

pub async fn claims_on_what_is_unknown_are_not_found(subject: impl Subject) {
    let store = subject.open().await;
    let unknown = DispatchId::new();
    let finished = store.finish(Claim::Unstarted(unknown), ok(1)).await;
    assert!(matches!(finished, Err(Error::NotFound)));
    assert!(store.dispatch(unknown).await.unwrap().is_none());
    assert!(store.last_event(unknown).await.unwrap().is_none());
}
