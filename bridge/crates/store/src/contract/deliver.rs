//! Due deliveries, their order and end, and replay.

use std::collections::HashSet;

use super::Subject;
use super::sample::{
    GIVE_UP_AFTER, RETENTION, accept, at, callback, failed, ok, run, settlement, task,
};
use crate::destination::DueQuery;
use crate::record::{AfterAttempt, Claim, DeliveryState, Finish, NewDispatch, Replay};
use crate::{Error, Store};
use forge_base::id::{DeliveryId, DispatchId};

fn query(seconds: i64) -> DueQuery {
    DueQuery {
        now: at(seconds),
        exclude: Vec::new(),
        per_origin: 100,
        limit: 100,
        in_flight: HashSet::new(),
    }
}

/// Finishes a dispatch with a callback to this host; returns its delivery.
async fn owed(store: &dyn Store, host: &str, seconds: i64) -> DeliveryId {
    let new = NewDispatch {
        callback: Some(callback(host)),
        ..task(&DispatchId::new().to_string())
    };
    let dispatch = accept(store, new).await;
    store
        .finish(Claim::Unstarted(dispatch), ok(seconds))
        .await
        .unwrap();
    DeliveryId::of(dispatch)
}

async fn due(store: &dyn Store, query: DueQuery) -> Vec<DeliveryId> {
    let due = store.due(query).await.unwrap();
    due.into_iter().map(|delivery| delivery.id).collect()
}

pub async fn a_finished_dispatch_owes_its_delivery_at_once(subject: impl Subject) {
    let store = subject.open().await;
    let (dispatch, delivery) = run(&*store, task("t"), ok(10)).await;
    let delivery = delivery.unwrap();
    assert_eq!(store.next_due(&[]).await.unwrap(), Some(at(10)));
    assert_eq!(due(&*store, query(9)).await, []);
    let found = store.due(query(10)).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].id, found[0].dispatch), (delivery, dispatch));
    assert_eq!(found[0].callback, callback("a.example"));
    assert_eq!((found[0].attempts, found[0].since), (0, at(10)));
    let record = store.delivery(delivery).await.unwrap().unwrap();
    assert_eq!(record.status, DeliveryState::Pending);
    assert_eq!(record.task_id, "t");
    assert_eq!(record.url, "https://a.example/done");
    assert_eq!(record.created_at, at(10));
    assert_eq!(record.due_at, Some(at(10)));
    assert_eq!(store.deliveries_of(dispatch).await.unwrap().len(), 1);
    assert_eq!(store.counts().deliveries_pending, 1);
}

pub async fn without_a_callback_nothing_is_owed(subject: impl Subject) {
    let store = subject.open().await;
    let finish = Finish {
        delivery: None,
        ..ok(10)
    };
    let (dispatch, _) = run(&*store, task("t"), finish).await;
    assert_eq!(store.next_due(&[]).await.unwrap(), None);
    assert_eq!(due(&*store, query(100)).await, []);
    assert!(store.deliveries_of(dispatch).await.unwrap().is_empty());
    let unknown = DeliveryId::new();
    assert!(store.delivery(unknown).await.unwrap().is_none());
    assert!(matches!(store.payload(unknown).await, Err(Error::NotFound)));
    let settled = settlement(1, 1, AfterAttempt::Delivered);
    let settled = store.settle(unknown, settled).await;
    assert!(matches!(settled, Err(Error::NotFound)));
}

pub async fn an_attempt_moves_the_due_time_or_ends_the_delivery(subject: impl Subject) {
    let store = subject.open().await;
    let one = owed(&*store, "a.example", 10).await;
    let retry = settlement(1, 11, AfterAttempt::Retry { due: at(20) });
    store.settle(one, retry).await.unwrap();
    assert_eq!(due(&*store, query(19)).await, []);
    let found = store.due(query(20)).await.unwrap();
    assert_eq!((found[0].attempts, found[0].since), (1, at(10)));
    store
        .settle(one, settlement(2, 21, AfterAttempt::Dead))
        .await
        .unwrap();
    let record = store.delivery(one).await.unwrap().unwrap();
    assert_eq!(record.status, DeliveryState::Dead);
    assert_eq!((record.due_at, record.settled_at), (None, Some(at(21))));
    assert_eq!(record.attempt_count, 2);
    assert_eq!(
        record.attempts[0],
        settlement(1, 11, AfterAttempt::Dead).attempt.unwrap()
    );
    let counts = store.counts();
    assert_eq!((counts.deliveries_pending, counts.deliveries_dead), (0, 1));
    let again = store
        .settle(one, settlement(3, 22, AfterAttempt::Delivered))
        .await;
    assert!(matches!(again, Err(Error::InvalidState(_))));
    let other = owed(&*store, "a.example", 10).await;
    store
        .settle(other, settlement(1, 30, AfterAttempt::Delivered))
        .await
        .unwrap();
    assert_eq!(store.counts().deliveries_pending, 0);
    assert_eq!(store.next_due(&[]).await.unwrap(), None);
}

pub async fn one_receiver_does_not_hide_the_others(subject: impl Subject) {
    let store = subject.open().await;
    let mut slow = Vec::new();
    for _ in 0..20 {
        slow.push(owed(&*store, "a.example", 10).await);
    }
    let quick = owed(&*store, "b.example", 11).await;
    let few = DueQuery {
        per_origin: 2,
        ..query(20)
    };
    assert_eq!(due(&*store, few.clone()).await, [slow[0], slow[1], quick]);
    let busy = DueQuery {
        in_flight: HashSet::from([slow[0], slow[1]]),
        ..few.clone()
    };
    let mut found = due(&*store, busy).await;
    found.sort();
    let mut expected = vec![slow[2], slow[3], quick];
    expected.sort();
    assert_eq!(found, expected);
    let excluded = vec![callback("a.example").origin];
    let without = DueQuery {
        exclude: excluded.clone(),
        ..few
    };
    assert_eq!(due(&*store, without).await, [quick]);
    assert_eq!(store.next_due(&[]).await.unwrap(), Some(at(10)));
    assert_eq!(store.next_due(&excluded).await.unwrap(), Some(at(11)));
}

pub async fn every_receiver_gets_its_turn(subject: impl Subject) {
    let store = subject.open().await;
    let mut all = Vec::new();
    for host in ["a.example", "b.example", "c.example", "d.example"] {
        all.push(owed(&*store, host, 10).await);
    }
    let few = DueQuery {
        limit: 3,
        ..query(20)
    };
    let mut seen = due(&*store, few.clone()).await;
    assert_eq!(seen.len(), 3);
    seen.extend(due(&*store, few).await);
    all.retain(|id| !seen.contains(id));
    assert_eq!(all, []);
}

pub async fn the_first_5_and_the_last_20_attempts_are_kept(subject: impl Subject) {
    let store = subject.open().await;
    let one = owed(&*store, "a.example", 10).await;
    for number in 1..=40 {
        let retry = AfterAttempt::Retry {
            due: at(i64::from(number)),
        };
        let settled = settlement(number, i64::from(number), retry);
        store.settle(one, settled).await.unwrap();
    }
    let record = store.delivery(one).await.unwrap().unwrap();
    let numbers: Vec<u32> = record.attempts.iter().map(|one| one.number).collect();
    let expected: Vec<u32> = (1..=5).chain(21..=40).collect();
    assert_eq!(numbers, expected);
    assert_eq!(record.attempt_count, 40);
}

pub async fn one_is_replayed_whatever_its_state(subject: impl Subject) {
    let store = subject.open().await;
    let unknown = Replay::One(DeliveryId::new());
    let counted = store.count_replay(&unknown).await;
    assert!(matches!(counted, Err(Error::NotFound)), "{counted:?}");
    let unknown = store.replay(unknown, at(1)).await;
    assert!(matches!(unknown, Err(Error::NotFound)));
    let one = owed(&*store, "a.example", 10).await;
    for (number, next) in [
        (1, AfterAttempt::Delivered),
        (2, AfterAttempt::Dead),
        (3, AfterAttempt::Retry { due: at(1000) }),
    ] {
        let settled = settlement(number, 20, next);
        store.settle(one, settled).await.unwrap();
        let replayed = store.replay(Replay::One(one), at(50)).await.unwrap();
        assert_eq!(replayed, 1);
        let counts = store.counts();
        assert_eq!((counts.deliveries_pending, counts.deliveries_dead), (1, 0));
        let found = store.due(query(50)).await.unwrap();
        assert_eq!((found[0].attempts, found[0].since), (number, at(50)));
        assert_eq!(store.sweep(at(100_000), 10).await.unwrap().dispatches, 0);
    }
    let settled = settlement(4, 60, AfterAttempt::Delivered);
    store.settle(one, settled).await.unwrap();
    let later = at(60) + RETENTION;
    assert_eq!(store.sweep(later, 10).await.unwrap().dispatches, 1);
}

pub async fn many_are_replayed_by_host_time_and_state(subject: impl Subject) {
    let store = subject.open().await;
    let mut ids = Vec::new();
    for (host, created, next) in [
        ("a.example", 10, AfterAttempt::Dead),
        ("a.example", 20, AfterAttempt::Dead),
        ("b.example", 20, AfterAttempt::Dead),
        ("a.example", 20, AfterAttempt::Delivered),
    ] {
        let id = owed(&*store, host, created).await;
        store.settle(id, settlement(1, 30, next)).await.unwrap();
        ids.push(id);
    }
    let many = |host: Option<&str>, since: Option<i64>, status| Replay::Many {
        host: host.map(str::to_owned),
        since: since.map(at),
        status,
    };
    use DeliveryState::{Dead, Delivered};
    for (replay, expected) in [
        (many(Some("c.example"), None, Dead), vec![]),
        (many(Some("a.example:80"), None, Dead), vec![]),
        (many(Some("a.example:443"), Some(15), Dead), vec![1]),
        (many(None, None, Dead), vec![0, 2]),
        (many(Some("a.example"), None, Delivered), vec![3]),
        (many(None, None, Dead), vec![]),
    ] {
        let counted = store.count_replay(&replay).await.unwrap();
        assert_eq!(counted, expected.len() as u64, "{replay:?}");
        let count = store.replay(replay.clone(), at(50)).await.unwrap();
        assert_eq!(count, expected.len() as u64, "{replay:?}");
        for place in expected {
            let record = store.delivery(ids[place]).await.unwrap().unwrap();
            assert_eq!(record.due_at, Some(at(50)), "{replay:?}");
        }
    }
    assert_eq!(store.counts().deliveries_pending, 4);
}

pub async fn what_is_due_survives_a_restart(subject: impl Subject) {
    let store = subject.open().await;
    let pending = owed(&*store, "a.example", 10).await;
    let dead = owed(&*store, "b.example", 10).await;
    store
        .settle(dead, settlement(1, 11, AfterAttempt::Dead))
        .await
        .unwrap();
    let (_, delivery) = run(&*store, task("t"), failed("timeout", 12)).await;
    let store = subject.open().await;
    let mut expected = vec![pending, delivery.unwrap()];
    expected.sort();
    let mut found = due(&*store, query(20)).await;
    found.sort();
    assert_eq!(found, expected);
    let counts = store.counts();
    assert_eq!((counts.deliveries_pending, counts.deliveries_dead), (2, 1));
}

pub async fn what_waits_beyond_its_time_is_overdue_until_it_ends_without_an_attempt(
    subject: impl Subject,
) {
    let store = subject.open().await;
    let origin = callback("a.example").origin;
    let first = owed(&*store, "a.example", 10).await;
    let later = owed(&*store, "a.example", 20).await;
    let other = owed(&*store, "b.example", 10).await;
    let waits = owed(&*store, "a.example", 10).await;
    let retry = AfterAttempt::Retry { due: at(10_000) };
    store.settle(waits, settlement(1, 11, retry)).await.unwrap();
    let end = 10 + i64::try_from(GIVE_UP_AFTER.as_secs()).unwrap();
    let overdue = async |seconds: i64, limit: usize| {
        let found = store.overdue_deliveries(&origin, at(seconds), limit).await;
        found
            .unwrap()
            .into_iter()
            .map(|due| due.id)
            .collect::<Vec<_>>()
    };
    assert_eq!(overdue(end - 1, 10).await, []);
    assert_eq!(overdue(end, 10).await, [first]);
    assert_eq!(overdue(end + 10, 10).await, [first, later]);
    assert_eq!(overdue(end + 10, 1).await, [first]);

    let mut ended = settlement(0, end, AfterAttempt::Dead);
    ended.attempt = None;
    store.settle(first, ended).await.unwrap();
    let record = store.delivery(first).await.unwrap().unwrap();
    assert_eq!(record.status, DeliveryState::Dead);
    assert_eq!((record.attempt_count, record.attempts.len()), (0, 0));
    assert_eq!(record.settled_at, Some(at(end)));
    assert_eq!(overdue(end + 10, 10).await, [later]);

    // A replay restarts the time limit.
    store.replay(Replay::One(first), at(end)).await.unwrap();
    assert_eq!(overdue(end + 10, 10).await, [later]);
    let state = store.delivery(other).await.unwrap().unwrap().status;
    assert_eq!(state, DeliveryState::Pending);
}

pub async fn after_the_clock_was_set_back_a_wait_is_as_long_as_it_was(subject: impl Subject) {
    let store = subject.open().await;
    let times = async |id| {
        let record = store.delivery(id).await.unwrap().unwrap();
        let attempts = record.attempts.iter();
        (
            record.due_at,
            attempts.map(|attempt| attempt.at).collect::<Vec<_>>(),
        )
    };
    // Before the present time, ahead of it, and decided before and due after.
    let past = owed(&*store, "a.example", 10).await;
    let fresh = owed(&*store, "b.example", 4_000).await;
    let waiting = owed(&*store, "a.example", 3_990).await;
    let before = owed(&*store, "c.example", 80).await;
    let retry =
        |number, seconds, due| settlement(number, seconds, AfterAttempt::Retry { due: at(due) });
    store.settle(waiting, retry(1, 3_991, 3_992)).await.unwrap();
    store.settle(waiting, retry(2, 4_000, 4_064)).await.unwrap();
    store.settle(before, retry(1, 90, 400)).await.unwrap();
    let dead = owed(&*store, "a.example", 4_000).await;
    store
        .settle(dead, settlement(1, 4_001, AfterAttempt::Dead))
        .await
        .unwrap();
    assert_eq!(store.follow_clock(at(5_000)).await.unwrap(), 0);
    assert_eq!(store.follow_clock(at(100)).await.unwrap(), 2);
    assert_eq!(times(past).await, (Some(at(10)), vec![]));
    assert_eq!(times(fresh).await, (Some(at(100)), vec![]));
    assert_eq!(times(before).await, (Some(at(400)), vec![at(90)]));
    assert_eq!(
        times(waiting).await,
        (Some(at(164)), vec![at(3_991), at(100)])
    );
    assert_eq!(times(dead).await, (None, vec![at(4_001)]));
    let found = store.due(query(164)).await.unwrap();
    let since = |id| found.iter().find(|due| due.id == id).unwrap().since;
    assert_eq!((since(fresh), since(waiting)), (at(100), at(90)));
    // Again, and after a second step.
    assert_eq!(store.follow_clock(at(110)).await.unwrap(), 0);
    assert_eq!(store.follow_clock(at(60)).await.unwrap(), 3);
    assert_eq!(times(fresh).await, (Some(at(60)), vec![]));
    assert_eq!(times(before).await, (Some(at(370)), vec![at(60)]));
    assert_eq!(times(waiting).await.0, Some(at(124)));
}
