//! Claims between the mark in the store and the start of the executions: cancellations, a stop, failures, changes of the
//! adapter.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forge_adapter_api::AdapterError;
use forge_store::record::{DispatchState, NewDispatch};
use forge_store::roles::{Accept as _, Records as _};
use jiff::Timestamp;
use serde_json::json;
use serde_json::value::to_raw_value;
use tokio::time::Instant;

use super::super::attempt::CRASHED;
use super::{PATIENCE, Rig, new, request, until};

/// The first of the two that follow once the mark and the cancel request are in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum First {
    Signal,
    Registration,
}

#[tokio::test]
async fn a_cancel_between_the_mark_and_the_registration_is_not_missed() {
    for first in [First::Signal, First::Registration] {
        let rig = Rig::new(1).await;
        rig.gated.claims.close();
        rig.gated.cancels.close();
        let id = rig.queue(new()).await;
        rig.claimed(1).await;
        let dispatcher = rig.dispatcher.clone();
        let cancel = rig.spawn(async move { dispatcher.cancel(id).await });
        rig.gated.cancels.reached(1).await;
        assert!(rig.dispatch(id).await.cancel_requested);
        if first == First::Registration {
            rig.gated.claims.open();
            rig.executed(1).await;
            assert_eq!(rig.probe.cancelled(), 0);
        }
        rig.gated.cancels.open();
        assert_eq!(cancel.await.unwrap().unwrap(), Some(true));
        rig.gated.claims.open();
        // Nothing else ends an execution of the probe.
        assert_eq!(rig.finished(id).await, "cancelled", "{first:?}");
        assert_eq!(rig.probe.cancelled(), 1);
        rig.is_free().await;
    }
}

#[tokio::test]
async fn an_attempt_that_is_claimed_while_the_former_one_still_ends_is_cancelled() {
    let rig = Rig::new(2).await;
    let id = rig.queue(new()).await;
    rig.executed(1).await;
    rig.gated.requeues.close();
    rig.probe
        .answer(Err(AdapterError::new(CRASHED, "it is gone")));
    rig.gated.requeues.reached(1).await;
    rig.probe.last();
    rig.dispatcher.wake();
    rig.executed(2).await;
    assert_eq!(rig.dispatch(id).await.attempts, 2);
    assert_eq!(rig.dispatcher.cancel(id).await.unwrap(), Some(true));
    assert_eq!(rig.finished(id).await, "cancelled");
    rig.gated.requeues.open();
    rig.is_free().await;
}

#[tokio::test]
async fn a_drain_waits_for_what_is_being_claimed() {
    let rig = Rig::new(2).await;
    rig.gated.claims.close();
    let ids = [rig.queue(new()).await, rig.queue(new()).await];
    rig.gated.claims.reached(1).await;
    let marked = rig.store.counts().running;
    assert!(marked > 0);
    // Ends the round in the middle of its claim.
    rig.shutdown.cancel();
    let dispatcher = rig.dispatcher.clone();
    let later = Instant::now() + PATIENCE;
    let drain = rig.spawn(async move { dispatcher.drain(later, later).await });
    until("the drain", async || {
        rig.dispatcher
            .inner
            .running
            .open_claim()
            .is_none()
            .then_some(())
    })
    .await;
    rig.gated.claims.open();
    rig.executed(usize::try_from(marked).unwrap()).await;
    assert!(!drain.is_finished());
    rig.probe.answer(Ok("done"));
    drain.await.unwrap();
    let mut finished = 0;
    for id in ids {
        let state = rig.dispatch(id).await.state;
        finished += u64::from(matches!(state, DispatchState::Finished { .. }));
    }
    assert_eq!((finished, rig.store.counts().running), (marked, 0));
    rig.is_free().await;
}

#[tokio::test]
async fn a_claim_that_outlives_the_grace_of_a_drain_is_given_back() {
    let (rig, [running, claimed]) = Rig::claiming().await;
    rig.shutdown.cancel();
    let dispatcher = rig.dispatcher.clone();
    let (now, later) = (Instant::now(), Instant::now() + PATIENCE);
    let drain = rig.spawn(async move { dispatcher.drain(now, later).await });
    let queued = async |id| (rig.dispatch(id).await.state == DispatchState::Queued).then_some(());
    until("the stop of the executions", async || queued(running).await).await;
    rig.gated.claims.open();
    drain.await.unwrap();
    assert!(queued(claimed).await.is_some());
    assert_eq!(rig.dispatch(claimed).await.attempts, 1);
    rig.is_free().await;
}

#[tokio::test]
async fn what_cannot_be_read_ends_alone() {
    let rig = Rig::new(3).await;
    rig.adapter.pause().await.unwrap();
    let before = rig.queue(new()).await;
    let unreadable = NewDispatch {
        request: to_raw_value(&json!({"fromLater": true})).unwrap(),
        ..new()
    };
    let unreadable = rig.queue(unreadable).await;
    let after = rig.queue(new()).await;
    rig.adapter.resume().await.unwrap();
    rig.dispatcher.wake();
    assert_eq!(rig.finished(unreadable).await, "record_unreadable");
    rig.executed(2).await;
    rig.probe.answer(Ok("done"));
    for id in [before, after] {
        assert_eq!(rig.finished(id).await, "");
    }
    rig.is_free().await;
}

#[tokio::test]
async fn what_is_claimed_starts_whatever_becomes_of_its_adapter() {
    for change in ["pause", "offline", "reload"] {
        let rig = Rig::new(1).await;
        rig.gated.claims.close();
        let id = rig.queue(new()).await;
        rig.claimed(1).await;
        match change {
            "pause" => rig.adapter.pause().await.unwrap(),
            "offline" => rig.goes_offline().await,
            _ => rig.adapter.reload().await.unwrap(),
        }
        rig.gated.claims.open();
        rig.executed(1).await;
        if change == "reload" {
            let leaving = rig.adapter.leaving();
            assert_eq!(leaving.len(), 1, "it runs on the generation of its permit");
            assert_eq!(leaving[0].running, 1);
        }
        rig.probe.answer(Ok("done"));
        assert_eq!(rig.finished(id).await, "", "{change}");
        rig.is_free().await;
    }
}

#[tokio::test]
async fn what_finds_the_slots_reserved_by_a_claim_starts_after_it() {
    let rig = Rig::new(2).await;
    rig.gated.claims.close();
    let delayed = NewDispatch {
        not_before: Some(Timestamp::MAX),
        ..new()
    };
    rig.store.accept(delayed).await.unwrap();
    rig.queue(new()).await;
    rig.claimed(1).await;
    assert_eq!(rig.adapter.running(), 2, "one slot will not be used");
    let late = new();
    let id = late.id;
    let accepted = rig.dispatcher.accept(Box::new(late), Box::new(request()));
    accepted.await.unwrap();
    assert_eq!(rig.dispatch(id).await.state, DispatchState::Queued);
    rig.gated.claims.open();
    rig.executed(2).await;
    assert_eq!(rig.dispatch(id).await.attempts, 1);
}

#[tokio::test]
async fn a_claim_that_fails_gives_the_slots_back_and_is_repeated() {
    let rig = Rig::new(1).await;
    rig.gated.is_down.store(true, Ordering::SeqCst);
    let id = rig.queue(new()).await;
    until("a claim to fail", async || {
        (rig.gated.failed.load(Ordering::SeqCst) > 0).then_some(())
    })
    .await;
    rig.is_free().await;
    rig.gated.is_down.store(false, Ordering::SeqCst);
    rig.executed(1).await;
    rig.probe.answer(Ok("done"));
    assert_eq!(rig.finished(id).await, "");
    rig.is_free().await;
}

#[tokio::test]
async fn last_attempts_run_one_at_a_time_and_delay_no_other() {
    let rig = Rig::new(4).await;
    rig.adapter.pause().await.unwrap();
    let tried = [rig.queue(new()).await, rig.queue(new()).await];
    // Three attempts are allowed.
    rig.attempt_all().await;
    rig.attempt_all().await;
    let fresh = rig.queue(new()).await;
    rig.adapter.resume().await.unwrap();
    rig.dispatcher.wake();
    rig.executed(2).await;
    let attempts = async |id| rig.dispatch(id).await.attempts;
    assert_eq!(attempts(fresh).await, 1);
    assert_eq!(attempts(tried[0]).await + attempts(tried[1]).await, 5);
    rig.probe.answer(Ok("done"));
    let begun = Instant::now();
    for id in [tried[0], tried[1], fresh] {
        assert_eq!(rig.finished(id).await, "");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "its end wakes the next"
    );
    rig.is_free().await;
}

#[tokio::test]
async fn a_slot_takes_the_next_dispatch_while_a_round_waits_for_its_claim() {
    let (rig, [first, second]) = Rig::claiming().await;
    let (third, request) = (Box::new(new()), Box::new(request()));
    let id = third.id;
    rig.dispatcher.accept(third, request).await.unwrap();
    rig.probe.answer(Ok("done"));
    assert_eq!(rig.finished(first).await, "");
    rig.gated.claims.reached(2).await;
    rig.gated.claims.open();
    for id in [second, id] {
        assert_eq!(rig.finished(id).await, "");
    }
    rig.is_free().await;
}
