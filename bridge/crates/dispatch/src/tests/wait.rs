//! Reasons for which dispatches wait, as the record and the list show them.

use std::time::Duration;

use forge_base::id::DispatchId;
use forge_base::time;
use forge_store::node::{Node, NodeRecord};
use forge_store::record::{Home, NewDispatch};
use jiff::Timestamp;

use super::super::wait::{WaitKind, WaitReason};
use super::{Rig, new};

impl Rig {
    async fn reasons(&self, ids: &[DispatchId]) -> Vec<Option<WaitReason>> {
        let mut records = Vec::new();
        for id in ids {
            records.push(self.dispatch(*id).await);
        }
        let reasons = self.dispatcher.wait_reasons(&records).await;
        reasons.unwrap()
    }

    async fn reason(&self, id: DispatchId) -> WaitReason {
        let reason = self.reasons(&[id]).await.remove(0);
        reason.unwrap()
    }
}

#[tokio::test]
async fn one_that_runs_waits_for_nothing_and_the_rest_has_a_place() {
    let rig = Rig::new(1).await;
    let running = rig.queue(new()).await;
    rig.executed(1).await;
    let urgent = NewDispatch {
        priority: 5,
        start_by: time::after(Timestamp::now(), Duration::from_secs(600)),
        ..new()
    };
    let start_by = urgent.start_by;
    let (second, first) = (rig.queue(new()).await, rig.queue(urgent).await);
    let [none, second, first] = rig
        .reasons(&[running, second, first])
        .await
        .try_into()
        .unwrap();
    let (second, first) = (second.unwrap(), first.unwrap());
    assert_eq!(none, None);
    assert_eq!((first.kind, first.place), (WaitKind::Concurrency, Some(1)));
    assert_eq!(first.message, "probe runs 1 of 1, 0 wait before it");
    assert_eq!(first.given_up_at, Some(start_by));
    assert_eq!(
        (second.kind, second.place),
        (WaitKind::Concurrency, Some(2))
    );
}

#[tokio::test]
async fn one_behind_a_thousand_has_no_place() {
    let rig = Rig::new(1).await;
    rig.queue(new()).await;
    rig.executed(1).await;
    for _ in 0..1000 {
        rig.queue(new()).await;
    }
    let last = rig.queue(new()).await;
    let reason = rig.reason(last).await;
    assert_eq!((reason.kind, reason.place), (WaitKind::Concurrency, None));
    assert_eq!(
        reason.message,
        "probe runs 1 of 1, at least 1000 wait before it"
    );
}

#[tokio::test]
async fn what_a_dispatch_waits_for_is_named_before_the_slots() {
    let rig = Rig::new(1).await;
    let in_session = || NewDispatch {
        session: Some("s".to_owned()),
        ..new()
    };
    let running = rig.queue(in_session()).await;
    rig.executed(1).await;
    let same = rig.queue(in_session()).await;
    let reason = rig.reason(same).await;
    assert_eq!(
        (reason.kind, reason.dispatch_id),
        (WaitKind::Session, Some(running))
    );

    let later = NewDispatch {
        not_before: Some(time::after(Timestamp::now(), Duration::from_secs(600))),
        ..new()
    };
    let later = rig.reason(rig.queue(later).await).await;
    assert_eq!((later.kind, later.given_up_at), (WaitKind::NotBefore, None));
    let mut held = new();
    held.hold();
    let held = rig.reason(rig.queue(held).await).await;
    assert_eq!(held.kind, WaitKind::Approval);
    let elsewhere = NewDispatch {
        provider: "gone".to_owned(),
        ..new()
    };
    let elsewhere = rig.reason(rig.queue(elsewhere).await).await;
    assert_eq!(elsewhere.kind, WaitKind::AdapterMissing);

    rig.adapter.pause().await.unwrap();
    let reason = rig.reason(same).await;
    assert_eq!(
        (reason.kind, &*reason.message),
        (WaitKind::AdapterPaused, "probe is paused")
    );
    rig.adapter.resume().await.unwrap();
    rig.goes_offline().await;
    let reason = rig.reason(same).await;
    assert_eq!(reason.kind, WaitKind::AdapterOffline);
    assert!(
        reason.message.starts_with("probe is offline"),
        "{}",
        reason.message
    );
    rig.dispatcher.cancel(same).await.unwrap();
    assert_eq!(rig.reasons(&[same]).await, [None]);
}

#[tokio::test]
async fn one_of_a_node_that_is_away_runs_elsewhere_unless_it_is_bound_to_it() {
    let rig = Rig::new(1).await;
    let id = rig.queue(new()).await;
    let until = Timestamp::now();
    let gone = NodeRecord {
        id: "other".to_owned(),
        is_live: false,
        lease_until: Some(until),
        ..Node::alone("other".to_owned(), 1).record()
    };
    let record = rig.dispatch(id).await;
    let inner = &*rig.dispatcher.inner;
    for (is_bound, expected) in [
        (true, record.start_by),
        (false, time::after(until, inner.config.offline_grace)),
    ] {
        let home = Home {
            node: "other".to_owned(),
            is_bound,
        };
        let reason = |kind, message| WaitReason {
            kind,
            message,
            place: None,
            dispatch_id: None,
            node: None,
            given_up_at: None,
        };
        let found = inner.of_home(&record, &home, &gone, &reason);
        assert_eq!(
            (found.kind, found.given_up_at),
            (WaitKind::Node, Some(expected))
        );
        assert_eq!(found.node.as_deref(), Some("other"));
    }
}
