//! Queue: readiness, order, sessions and rerouting.

use super::Subject;
use super::sample::{PROVIDER, accept, at, begin, claim, event, failed, ok, ready, task};
use crate::record::{Claim, DispatchFilter, Lease, NewDispatch, Requeue, Reroute};
use crate::{Error, Store};
use forge_base::event::kind;
use forge_base::id::DispatchId;

fn in_session(task_id: &str) -> NewDispatch {
    NewDispatch {
        session: Some("s".to_owned()),
        ..task(task_id)
    }
}

/// Claims up to `count` dispatches.
async fn claimed(store: &dyn Store, provider: &str, count: usize) -> Vec<DispatchId> {
    let claimed = claim(store, provider, count, 1).await.into_iter();
    claimed.map(|one| one.begun.lease.id).collect()
}

async fn finish(store: &dyn Store, claim: Claim) {
    store.finish(claim, ok(9)).await.unwrap();
}

pub async fn priority_goes_before_age(subject: impl Subject) {
    let store = subject.open().await;
    let mut ids = Vec::new();
    for (task_id, priority) in [("a", 0), ("b", 5), ("c", -10), ("d", 5), ("e", 0)] {
        let new = NewDispatch {
            priority,
            ..task(task_id)
        };
        ids.push(accept(&*store, new).await);
    }
    let expected = [1, 3, 0, 4, 2].map(|place: usize| ids[place]);
    assert_eq!(ready(&*store).await, expected);
    assert_eq!(claimed(&*store, PROVIDER, 2).await, expected[..2]);
    assert_eq!(claimed(&*store, PROVIDER, 10).await, expected[2..]);
}

pub async fn ready_is_per_adapter_and_bounded(subject: impl Subject) {
    let store = subject.open().await;
    for task_id in ["a", "b", "c"] {
        accept(&*store, task(task_id)).await;
    }
    let other = NewDispatch {
        provider: "other".to_owned(),
        pinned: true,
        ..task("d")
    };
    let other = accept(&*store, other).await;
    assert_eq!(store.ready(PROVIDER, 2).await.unwrap().len(), 2);
    let found = store.ready("other", 10).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].id, found[0].pinned), (other, true));
    let queues = store.queues().await.unwrap();
    assert_eq!(queues, [("echo".to_owned(), 3), ("other".to_owned(), 1)]);
    assert_eq!(claimed(&*store, "other", 10).await, [other]);
    let queues = store.queues().await.unwrap();
    assert_eq!(queues, [("echo".to_owned(), 3)]);
}

pub async fn one_that_waits_for_its_time_is_promoted_then(subject: impl Subject) {
    let store = subject.open().await;
    let delayed = |task_id: &str, seconds| NewDispatch {
        not_before: Some(at(seconds)),
        ..task(task_id)
    };
    let later = accept(&*store, delayed("a", 50)).await;
    let sooner = accept(&*store, delayed("b", 40)).await;
    let past = accept(&*store, delayed("c", 0)).await;
    assert_eq!(ready(&*store).await, [past]);
    assert_eq!(store.counts().queued, 3);
    assert_eq!(store.next_queue_event().await.unwrap(), Some(at(40)));
    assert_eq!(store.promote(at(39), 10).await.unwrap(), 0);
    assert_eq!(store.promote(at(50), 1).await.unwrap(), 1);
    assert_eq!(ready(&*store).await, [sooner, past]);
    assert_eq!(store.promote(at(50), 10).await.unwrap(), 1);
    assert_eq!(ready(&*store).await, [later, sooner, past]);
    assert_eq!(store.next_queue_event().await.unwrap(), Some(at(100)));
}

pub async fn only_what_can_start_is_claimed(subject: impl Subject) {
    let store = subject.open().await;
    let first = accept(&*store, in_session("a")).await;
    accept(&*store, in_session("b")).await;
    let delayed = NewDispatch {
        not_before: Some(at(10)),
        ..task("c")
    };
    accept(&*store, delayed).await;
    let held = NewDispatch {
        is_held: true,
        ..task("d")
    };
    accept(&*store, held).await;
    let cancelled = accept(&*store, task("e")).await;
    store.request_cancel(cancelled, at(1)).await.unwrap();
    let alone = accept(&*store, task("f")).await;
    let elsewhere = NewDispatch {
        provider: "other".to_owned(),
        ..task("g")
    };
    accept(&*store, elsewhere).await;
    assert_eq!(claimed(&*store, PROVIDER, 10).await, [first, alone]);
    let issued = store.log_bounds().issued;
    assert_eq!(claimed(&*store, PROVIDER, 10).await, []);
    assert_eq!(claimed(&*store, "unknown", 10).await, []);
    assert_eq!(store.log_bounds().issued, issued);
    let counts = store.counts();
    assert_eq!((counts.queued, counts.running), (5, 2));
}

pub async fn a_last_attempt_runs_alone(subject: impl Subject) {
    let store = subject.open().await;
    let new = |task_id: &str, provider: &str| NewDispatch {
        provider: provider.to_owned(),
        ..task(task_id)
    };
    let mut ids = Vec::new();
    for (task_id, provider) in [("a", PROVIDER), ("b", PROVIDER), ("c", "other")] {
        ids.push(accept(&*store, new(task_id, provider)).await);
    }
    let back = async |provider: &str| {
        for claimed in claim(&*store, provider, 10, 1).await {
            let event = event(kind::RETRYING, 2);
            let claim = Claim::Attempt(claimed.begun.lease);
            store.requeue(claim, Requeue { event }).await.unwrap();
        }
    };
    for provider in [PROVIDER, "other", PROVIDER, "other"] {
        back(provider).await;
    }
    // Three attempts are allowed, and two have begun.
    let fresh = accept(&*store, task("d")).await;
    assert_eq!(claimed(&*store, PROVIDER, 2).await, [ids[0], fresh]);
    assert_eq!(claimed(&*store, PROVIDER, 10).await, []);
    assert_eq!(claimed(&*store, "other", 10).await, []);
    let lease = |id| Lease {
        id,
        attempt: 3,
        epoch: store.epoch(),
    };
    finish(&*store, Claim::Attempt(lease(ids[0]))).await;
    assert_eq!(claimed(&*store, "other", 10).await, [ids[2]]);
    let event = event(kind::RETRYING, 2);
    let requeue = Requeue { event };
    let claim = Claim::Attempt(lease(ids[2]));
    store.requeue(claim, requeue).await.unwrap();
    assert_eq!(claimed(&*store, PROVIDER, 10).await, [ids[1]]);

    // One that an earlier boot left running is not running any more.
    let store = subject.open().await;
    assert_eq!(claimed(&*store, "other", 10).await, [ids[2]]);
}

pub async fn those_that_never_started_in_time_are_overdue(subject: impl Subject) {
    let store = subject.open().await;
    let until = |task_id: &str, seconds| NewDispatch {
        start_by: at(seconds),
        ..task(task_id)
    };
    let second = accept(&*store, until("a", 20)).await;
    let first = accept(&*store, until("b", 10)).await;
    let running = NewDispatch {
        start: Some(event(kind::STARTED, 1)),
        ..until("c", 5)
    };
    accept(&*store, running).await;
    let cancelled = accept(&*store, until("d", 5)).await;
    store.request_cancel(cancelled, at(1)).await.unwrap();
    assert_eq!(store.next_queue_event().await.unwrap(), Some(at(10)));
    assert_eq!(store.overdue(at(9), 10).await.unwrap(), []);
    assert_eq!(store.overdue(at(20), 10).await.unwrap(), [first, second]);
    assert_eq!(store.overdue(at(20), 1).await.unwrap(), [first]);
    let claim = Claim::Unstarted(first);
    store
        .finish(claim, failed("queue_timeout", 20))
        .await
        .unwrap();
    assert_eq!(store.overdue(at(20), 10).await.unwrap(), [second]);
}

pub async fn a_session_runs_one_after_another(subject: impl Subject) {
    let store = subject.open().await;
    let first = accept(&*store, in_session("a")).await;
    let second = accept(&*store, in_session("b")).await;
    let urgent = NewDispatch {
        priority: 10,
        ..in_session("c")
    };
    let third = accept(&*store, urgent).await;
    let alone = accept(&*store, task("d")).await;
    assert_eq!(ready(&*store).await, [first, alone]);
    let blocked = async || {
        let page = store.dispatches(DispatchFilter {
            limit: 10,
            ..DispatchFilter::default()
        });
        let blocked = page.await.unwrap().items.into_iter();
        let blocked = blocked.filter(|dispatch| dispatch.is_blocked);
        blocked.map(|dispatch| dispatch.id).collect::<Vec<_>>()
    };
    assert_eq!(blocked().await, [third, second]);
    assert!(store.dispatch(second).await.unwrap().unwrap().is_blocked);
    let begun = begin(&*store, first, 1).await;
    assert_eq!(ready(&*store).await, [alone]);
    finish(&*store, Claim::Attempt(begun.lease)).await;
    assert_eq!(ready(&*store).await, [second, alone]);
    assert_eq!(blocked().await, [third]);
    finish(&*store, Claim::Unstarted(second)).await;
    assert_eq!(ready(&*store).await, [third, alone]);
    finish(&*store, Claim::Unstarted(third)).await;
    let fourth = accept(&*store, in_session("e")).await;
    assert_eq!(ready(&*store).await, [alone, fourth]);
}

pub async fn a_delayed_one_enters_its_session_when_promoted(subject: impl Subject) {
    let store = subject.open().await;
    let delayed = NewDispatch {
        not_before: Some(at(10)),
        ..in_session("a")
    };
    let delayed = accept(&*store, delayed).await;
    let second = accept(&*store, in_session("b")).await;
    assert_eq!(ready(&*store).await, [second]);
    assert_eq!(store.promote(at(10), 10).await.unwrap(), 1);
    let third = accept(&*store, in_session("c")).await;
    assert_eq!(ready(&*store).await, [second]);
    finish(&*store, Claim::Unstarted(second)).await;
    assert_eq!(ready(&*store).await, [delayed]);
    finish(&*store, Claim::Unstarted(delayed)).await;
    assert_eq!(ready(&*store).await, [third]);
}

pub async fn a_requeued_attempt_keeps_its_place(subject: impl Subject) {
    let store = subject.open().await;
    let first = accept(&*store, in_session("a")).await;
    let second = accept(&*store, in_session("b")).await;
    let begun = begin(&*store, first, 60).await;
    let requeue = Requeue {
        event: event(kind::RETRYING, 150),
    };
    store
        .requeue(Claim::Attempt(begun.lease.clone()), requeue)
        .await
        .unwrap();
    assert_eq!(ready(&*store).await, [first]);
    let record = store.dispatch(first).await.unwrap().unwrap();
    assert_eq!(record.attempts, 1);
    assert_eq!(record.first_started_at, Some(at(60)));
    // The new deadline allows the original wait of 100 s again.
    assert_eq!(record.start_by, at(250));
    assert_eq!(store.overdue(at(249), 10).await.unwrap(), [second]);
    let found = store.ready(PROVIDER, 1).await.unwrap();
    assert_eq!(found[0].attempts, 1);
    let again = begin(&*store, first, 151).await;
    assert_eq!(again.lease.attempt, 2);
    assert_eq!(again.dispatch.first_started_at, Some(at(60)));
    let stale = store.finish(Claim::Attempt(begun.lease), ok(9)).await;
    assert!(matches!(stale, Err(Error::Stale(_))));
    finish(&*store, Claim::Attempt(again.lease)).await;
    assert_eq!(ready(&*store).await, [second]);
}

pub async fn a_cancelled_one_in_a_session_lets_the_next_go_only_when_finished(
    subject: impl Subject,
) {
    let store = subject.open().await;
    let first = accept(&*store, in_session("a")).await;
    let second = accept(&*store, in_session("b")).await;
    store.request_cancel(first, at(1)).await.unwrap();
    assert_eq!(ready(&*store).await, []);
    assert_eq!(store.cancelled_in_queue(10).await.unwrap(), [first]);
    let claim = Claim::Unstarted(first);
    store.finish(claim, failed("cancelled", 2)).await.unwrap();
    assert_eq!(ready(&*store).await, [second]);
    assert_eq!(store.cancelled_in_queue(10).await.unwrap(), []);
}

fn to(id: DispatchId, provider: &str, session: Option<&str>) -> Reroute {
    Reroute {
        id,
        provider: provider.to_owned(),
        session: session.map(str::to_owned),
        routing: super::sample::raw(r#"["again"]"#),
    }
}

pub async fn rerouting_moves_queue_and_session(subject: impl Subject) {
    let store = subject.open().await;
    let first = accept(&*store, in_session("a")).await;
    let second = accept(&*store, in_session("b")).await;
    let there = NewDispatch {
        provider: "other".to_owned(),
        ..in_session("c")
    };
    let there = accept(&*store, there).await;
    store.reroute(to(first, "other", Some("s"))).await.unwrap();
    assert_eq!(ready(&*store).await, [second]);
    let others = || async { store.ready("other", 10).await.unwrap() };
    assert_eq!(others().await.len(), 1);
    assert_eq!(others().await[0].id, there);
    let queues = store.queues().await.unwrap();
    assert_eq!(queues, [("echo".to_owned(), 1), ("other".to_owned(), 2)]);
    finish(&*store, Claim::Unstarted(there)).await;
    assert_eq!(others().await[0].id, first);
    let record = store.dispatch(first).await.unwrap().unwrap();
    assert_eq!(record.provider, "other");
    assert_eq!(record.routing.get(), r#"["again"]"#);
    // Without a session it waits for no other dispatch.
    store.reroute(to(second, PROVIDER, None)).await.unwrap();
    assert_eq!(ready(&*store).await, [second]);
    let delayed = NewDispatch {
        not_before: Some(at(10)),
        ..task("d")
    };
    let delayed = accept(&*store, delayed).await;
    store.reroute(to(delayed, "other", None)).await.unwrap();
    assert_eq!(others().await.len(), 1);
    store.promote(at(10), 10).await.unwrap();
    assert_eq!(others().await.len(), 2);
}

pub async fn only_what_never_started_is_rerouted(subject: impl Subject) {
    let store = subject.open().await;
    let unknown = store.reroute(to(DispatchId::new(), "other", None)).await;
    assert!(matches!(unknown, Err(Error::NotFound)));
    let id = accept(&*store, task("a")).await;
    let begun = begin(&*store, id, 1).await;
    let running = store.reroute(to(id, "other", None)).await;
    assert!(matches!(running, Err(Error::Stale(_))));
    let requeue = Requeue {
        event: event(kind::RETRYING, 2),
    };
    let claim = Claim::Attempt(begun.lease);
    store.requeue(claim, requeue).await.unwrap();
    let started = store.reroute(to(id, "other", None)).await;
    assert!(matches!(started, Err(Error::Stale(_))));
    let cancelled = accept(&*store, task("b")).await;
    store.request_cancel(cancelled, at(1)).await.unwrap();
    let cancelled = store.reroute(to(cancelled, "other", None)).await;
    assert!(matches!(cancelled, Err(Error::Stale(_))));
    let moved = accept(&*store, task("c")).await;
    store.reroute(to(moved, "other", None)).await.unwrap();
    assert_eq!(claimed(&*store, PROVIDER, 10).await, [id]);
    assert_eq!(claimed(&*store, "other", 10).await, [moved]);
}

pub async fn sessions_of_two_adapters_do_not_meet(subject: impl Subject) {
    let store = subject.open().await;
    let here = accept(&*store, in_session("a")).await;
    let there = NewDispatch {
        provider: "other".to_owned(),
        ..in_session("b")
    };
    let there = accept(&*store, there).await;
    assert_eq!(ready(&*store).await, [here]);
    assert_eq!(store.ready("other", 10).await.unwrap()[0].id, there);
}
