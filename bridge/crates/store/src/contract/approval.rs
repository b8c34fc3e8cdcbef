//! Requirements on held dispatches and the decisions about them.

use super::Subject;
use super::sample::{PROVIDER, accept, at, claim, event, failed, ready, task};
use crate::record::{
    ApprovalFilter, ApprovalStatus, CancelRequest, Claim, Decision, DispatchState, Finished,
    NewDispatch,
};
use crate::{Error, Store};
use forge_base::event::kind;
use forge_base::id::DispatchId;

use ApprovalStatus::{Approved, Rejected, Waiting};

fn held(task_id: &str) -> NewDispatch {
    NewDispatch {
        is_held: true,
        start: Some(event(kind::STARTED, 0)),
        ..task(task_id)
    }
}

fn decision(seconds: i64) -> Decision {
    Decision {
        at: at(seconds),
        by: "operator".to_owned(),
        reason: Some("seen".to_owned()),
    }
}

async fn approve(store: &dyn Store, id: DispatchId, seconds: i64) -> Result<(), Error> {
    let approved = event(kind::APPROVAL_APPROVED, seconds);
    store.approve(id, decision(seconds), approved).await
}

async fn reject(store: &dyn Store, id: DispatchId, seconds: i64) -> Result<Finished, Error> {
    let claim = Claim::Rejected(id, decision(seconds));
    store
        .finish(claim, failed("blocked_by_policy", seconds))
        .await
}

/// The dispatches of a list, and the time of the decision about each.
async fn list(store: &dyn Store, status: ApprovalStatus) -> Vec<(DispatchId, Option<Decision>)> {
    let filter = ApprovalFilter {
        status,
        before: None,
        limit: 10,
    };
    let page = store.approvals(filter).await.unwrap();
    assert!(page.next.is_none());
    let items = page.items.into_iter();
    items.map(|one| (one.dispatch.id, one.decision)).collect()
}

pub async fn a_held_one_starts_only_when_approved(subject: impl Subject) {
    let store = subject.open().await;
    let id = accept(&*store, held("a")).await;
    let dispatch = store.dispatch(id).await.unwrap().unwrap();
    assert!(dispatch.is_held && dispatch.state == DispatchState::Queued);
    assert_eq!(ready(&*store).await, []);
    assert_eq!(store.counts().queued, 1);
    assert!(claim(&*store, PROVIDER, 1, 1).await.is_empty());
    assert_eq!(list(&*store, Waiting).await, [(id, None)]);

    let store = subject.open().await;
    assert_eq!(
        list(&*store, Waiting).await,
        [(id, None)],
        "after a restart"
    );
    assert_eq!(store.counts().queued, 1);
    approve(&*store, id, 2).await.unwrap();
    assert_eq!(ready(&*store).await, [id]);
    assert_eq!(list(&*store, Waiting).await, []);
    assert_eq!(list(&*store, Approved).await, [(id, Some(decision(2)))]);
    let last = store.last_event(id).await.unwrap().unwrap();
    assert_eq!((&*last.kind, last.seq), (kind::APPROVAL_APPROVED, 3));
    assert!(!store.dispatch(id).await.unwrap().unwrap().is_held);
}

pub async fn a_rejection_finishes_it_with_its_delivery(subject: impl Subject) {
    let store = subject.open().await;
    let id = accept(&*store, held("a")).await;
    let finished = reject(&*store, id, 3).await.unwrap();
    assert!(matches!(finished, Finished::Recorded(_)));
    assert_eq!(list(&*store, Waiting).await, []);
    assert_eq!(list(&*store, Rejected).await, [(id, Some(decision(3)))]);
    assert_eq!(store.deliveries_of(id).await.unwrap().len(), 1);
    assert_eq!(store.counts().queued, 0);
}

pub async fn only_the_first_decision_counts(subject: impl Subject) {
    let store = subject.open().await;
    let approved = accept(&*store, held("a")).await;
    approve(&*store, approved, 1).await.unwrap();
    let rejected = accept(&*store, held("b")).await;
    reject(&*store, rejected, 1).await.unwrap();
    let cancelled = accept(&*store, held("c")).await;
    let asked = store.request_cancel(cancelled, at(1)).await.unwrap();
    assert_eq!(asked, CancelRequest::Queued);
    let never = accept(&*store, task("d")).await;
    for id in [approved, rejected, cancelled, never] {
        let again = approve(&*store, id, 2).await;
        assert!(matches!(again, Err(Error::InvalidState(_))), "{again:?}");
        let again = reject(&*store, id, 2).await;
        assert!(matches!(again, Err(Error::Stale(_))), "{again:?}");
    }
    assert_eq!(list(&*store, Waiting).await, []);
    let unknown = DispatchId::new();
    assert!(matches!(
        approve(&*store, unknown, 1).await,
        Err(Error::NotFound)
    ));
}

pub async fn a_held_one_is_overdue_and_delayed_as_any_other(subject: impl Subject) {
    let store = subject.open().await;
    let delayed = NewDispatch {
        not_before: Some(at(50)),
        ..held("a")
    };
    let id = accept(&*store, delayed).await;
    assert_eq!(store.overdue(at(100), 5).await.unwrap(), [id]);
    assert_eq!(store.next_queue_event().await.unwrap(), Some(at(100)));
    assert_eq!(store.promote(at(60), 5).await.unwrap(), 0);
    approve(&*store, id, 10).await.unwrap();
    assert_eq!(ready(&*store).await, [], "it still waits for its time");
    assert_eq!(store.promote(at(60), 5).await.unwrap(), 1);
    assert_eq!(ready(&*store).await, [id]);
}

pub async fn approvals_are_listed_newest_first_in_pages(subject: impl Subject) {
    let store = subject.open().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(accept(&*store, held(&n.to_string())).await);
    }
    for status in [Waiting, Approved] {
        if status == Approved {
            for (n, id) in ids.iter().enumerate() {
                approve(&*store, *id, i64::try_from(n).unwrap())
                    .await
                    .unwrap();
            }
        }
        let (mut found, mut before) = (Vec::new(), None);
        loop {
            let filter = ApprovalFilter {
                status,
                before,
                limit: 2,
            };
            let page = store.approvals(filter).await.unwrap();
            found.extend(page.items.iter().map(|one| one.dispatch.id));
            match page.next {
                Some(next) => before = Some(next),
                None => break,
            }
        }
        found.reverse();
        assert_eq!(found, ids);
    }
}
