//! Questions to a store.

use std::collections::HashSet;
use std::fmt::Debug;

use forge_base::id::{DeliveryId, DispatchId};
use forge_store::Store;
use forge_store::contract::sample::{PROVIDER, at, owner};
use forge_store::destination::DueQuery;
use forge_store::record::{
    ApprovalFilter, ApprovalStatus, Content, DeliveryFilter, DispatchFilter, EventFilter,
    IdempotencyKey, InterventionFilter, KeySpace, RunFilter, SignalSessionFilter,
};

/// Answers of a store to its questions, each with its name.
pub(super) async fn answers(store: &dyn Store) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut note =
        |name: &str, answer: &dyn Debug| all.push((name.to_owned(), format!("{answer:#?}")));
    note("names", &(store.store_id(), store.log()));
    note("counts", &(store.counts(), store.log_bounds()));
    note("queues", &store.queues().await);
    note("next", &store.next_queue_event().await);
    note("overdue", &store.overdue(at(1000), 100).await);
    note("cancelled", &store.cancelled_in_queue(100).await);
    note("interrupted", &store.interrupted(100).await);
    for provider in [PROVIDER, "other"] {
        note("ready", &store.ready(provider, 100).await);
    }
    for after in 0..=store.log_bounds().issued {
        let of_all = EventFilter::default();
        note("events", &store.events(&of_all, after, 2).await);
    }
    let mut before = None;
    let mut dispatches: Vec<DispatchId> = Vec::new();
    loop {
        let filter = DispatchFilter {
            before,
            limit: 3,
            ..DispatchFilter::default()
        };
        let page = store.dispatches(filter).await.unwrap();
        dispatches.extend(page.items.iter().map(|one| one.id));
        note("dispatches", &page.items);
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    for id in dispatches {
        let whole = store.dispatch(id).await.unwrap().unwrap();
        note("of its task", &store.by_task(&whole.task_id, None, 9).await);
        note("dispatch", &whole);
        note("request", &store.request(id).await);
        note("last", &store.last_event(id).await);
        let own = EventFilter {
            dispatch: Some(id),
            ..EventFilter::default()
        };
        note("own events", &store.events(&own, 0, 100).await);
        for content in [
            Content::Output,
            Content::OutputFile(1),
            Content::Attachment(1),
        ] {
            note("content", &store.content(id, content, 262_140, 20).await);
        }
        note("delivery", &store.delivery(DeliveryId::of(id)).await);
        note(
            "payload",
            &store
                .payload(DeliveryId::of(id))
                .await
                .map(|one| (one.body, one.secrets)),
        );
    }
    for (space, value) in [
        (KeySpace::Header, "key"),
        (KeySpace::Task, "keyed"),
        (KeySpace::Task, "dead"),
    ] {
        for owner in [owner(0), owner(1)] {
            let value = value.to_owned();
            let key = IdempotencyKey {
                owner,
                space,
                value,
            };
            note("key", &store.recall(&key).await);
        }
    }
    let listed = DeliveryFilter {
        limit: 100,
        ..DeliveryFilter::default()
    };
    note("deliveries", &store.deliveries(listed).await);
    let due = DueQuery {
        now: at(1000),
        exclude: Vec::new(),
        in_flight: HashSet::new(),
        per_origin: 100,
        limit: 100,
    };
    note("due", &store.due(due).await);
    note("breakers", &store.open_breakers().await);
    for status in [
        ApprovalStatus::Waiting,
        ApprovalStatus::Approved,
        ApprovalStatus::Rejected,
    ] {
        let filter = ApprovalFilter {
            status,
            before: None,
            limit: 9,
        };
        note("approvals", &store.approvals(filter).await);
    }
    let runs = RunFilter {
        limit: 9,
        ..RunFilter::default()
    };
    let runs = store.runs(runs).await.unwrap();
    for one in &runs.items {
        note("run", &store.run(one.id).await);
        note("artifacts", &store.run_artifacts(one.id).await);
        note("artifact", &store.run_artifact(one.id, "a.md").await);
        let own = EventFilter {
            run: Some(one.id),
            ..EventFilter::default()
        };
        note("events of a run", &store.events(&own, 0, 100).await);
    }
    note("runs", &runs);
    note("live", &store.live_runs(None, 9).await);
    let sessions = SignalSessionFilter {
        limit: 9,
        ..SignalSessionFilter::default()
    };
    let sessions = store.signal_sessions(sessions).await.unwrap();
    for one in &sessions.items {
        note("signals", &store.signal_session(&one.id, 9).await);
    }
    note("sessions", &sessions);
    let interventions = InterventionFilter {
        limit: 9,
        ..InterventionFilter::default()
    };
    note("interventions", &store.interventions(interventions).await);
    note("open", &store.open_interventions(9).await);
    note("to forward", &store.signals_to_forward(9).await);
    note("sealed", &store.sealed_page(0, 3).await);
    all
}
