//! Benchmark of the store: a dispatch is accepted and begun, finished, settled. With 1 in flight each of the first
//! two steps waits for its own sync; with 64 they share syncs. Then the claims of the scheduler, with a backlog.

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::Criterion;
use forge_base::event::{NewEvent, kind};
use forge_base::id::{DeliveryId, DispatchId};
use forge_store::record::{
    Acceptance, AfterAttempt, Callback, Claim, ClaimLimits, Claimed, DeliveryAttempt, Finish,
    IdempotencyKey, KeyOwner, KeySpace, NewDelivery, NewDispatch, Requeue, Settlement, Spending,
};
use forge_store::{Config, Store};
use forge_store_sqlite::Sqlite;
use jiff::Timestamp;
use serde_json::value::RawValue;
use tokio::task::JoinSet;

const PENDING: usize = 1_000_000;
const TOGETHER: usize = 1_000;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made");
    // Beside the sources: the benchmark measures the disk, and /tmp might be in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a folder can be made");
    let store = Sqlite::open(&Config::default(), folder.path()).expect("the store opens");
    let store: Arc<dyn Store> = Arc::new(store);
    let mut criterion = Criterion::default().configure_from_args();
    for in_flight in [1, 64] {
        criterion.bench_function(&format!("life of a dispatch, {in_flight} in flight"), |b| {
            b.iter(|| {
                runtime.block_on(async {
                    let mut lives = JoinSet::new();
                    for _ in 0..in_flight {
                        lives.spawn(life(Arc::clone(&store)));
                    }
                    lives.join_all().await
                })
            });
        });
    }
    runtime.block_on(pend(&store));
    for count in [1, 64] {
        criterion.bench_function(&format!("claim of {count} of {PENDING}"), |b| {
            b.iter_custom(|times| {
                (0..times)
                    .map(|_| runtime.block_on(claim(&store, count)))
                    .sum()
            });
        });
    }
    criterion.final_summary();
    runtime.block_on(store.close());
}

/// Fills the queue with dispatches that wait only for a free slot.
async fn pend(store: &Arc<dyn Store>) {
    for _ in 0..PENDING / TOGETHER {
        let mut accepts = JoinSet::new();
        for _ in 0..TOGETHER {
            let (store, start) = (Arc::clone(store), None);
            accepts.spawn(async move {
                store
                    .accept(NewDispatch {
                        start,
                        ..dispatch()
                    })
                    .await
            });
        }
        for accepted in accepts.join_all().await {
            accepted.expect("it is accepted");
        }
    }
}

/// Time of a claim. What it got is put back.
async fn claim(store: &Arc<dyn Store>, count: usize) -> Duration {
    let limits = ClaimLimits {
        count,
        max_attempts: u32::MAX,
        home_grace: None,
    };
    let event = |kind| NewEvent::new(kind, Timestamp::now());
    let begun = Instant::now();
    let claimed = store.claim("echo", limits, event(kind::STARTED)).await;
    let elapsed = begun.elapsed();
    let claimed = claimed.expect("it answers");
    assert_eq!(claimed.len(), count);
    let mut requeues = JoinSet::new();
    for Claimed { begun, .. } in claimed {
        let (store, event) = (Arc::clone(store), event(kind::RETRYING));
        let claim = Claim::Attempt(begun.lease);
        requeues.spawn(async move { store.requeue(claim, Requeue { event }).await });
    }
    for requeued in requeues.join_all().await {
        requeued.expect("it is put back");
    }
    elapsed
}

async fn life(store: Arc<dyn Store>) {
    let accepted = store.accept(dispatch()).await.expect("it is accepted");
    let Acceptance::Accepted {
        begun: Some(begun), ..
    } = accepted
    else {
        panic!("it begins at once: {accepted:?}");
    };
    let finish = finish();
    let delivery = DeliveryId::of(begun.lease.id);
    let claim = Claim::Attempt(begun.lease);
    store.finish(claim, finish).await.expect("it is finished");
    let settled = store.settle(delivery, settlement()).await;
    settled.expect("it is settled");
}

fn dispatch() -> NewDispatch {
    let id = DispatchId::new();
    let now = Timestamp::now();
    NewDispatch {
        id,
        key: IdempotencyKey {
            owner: KeyOwner::EVERYONE,
            space: KeySpace::Task,
            value: id.to_string(),
        },
        task_id: id.to_string(),
        agent_id: "bench".to_owned(),
        run_id: Some("run-bench".to_owned()),
        trace_id: "0af7651916cd43dd8448eb211c80319c".to_owned(),
        provider: "echo".to_owned(),
        pinned: true,
        routing: raw(r#"{"among":["echo"]}"#),
        request: raw(&format!(r#"{{"message":"{}"}}"#, "lorem ipsum ".repeat(60))),
        fingerprint: [0; 32],
        attachments: Vec::new(),
        secrets: None,
        session: None,
        priority: 0,
        accepted_at: now,
        not_before: None,
        start_by: Timestamp::MAX,
        callback: Some(callback()),
        events: vec![
            NewEvent::new(kind::ACCEPTED, now),
            NewEvent::new(kind::QUEUED, now),
        ],
        is_held: false,
        is_bound: false,
        retry_of: None,
        start: Some(NewEvent::new(kind::STARTED, now)),
        queue_limit: u64::MAX,
    }
}

fn finish() -> Finish {
    let now = Timestamp::now();
    Finish {
        at: now,
        error_code: None,
        result: raw(&format!(r#"{{"output":"{}"}}"#, "lorem ipsum ".repeat(80))),
        output: None,
        output_files: Vec::new(),
        events: vec![NewEvent::new(kind::COMPLETED, now)],
        delivery: Some(NewDelivery {
            give_up_after: Duration::from_secs(3600),
        }),
        retention: Duration::from_secs(3600),
        charge: None,
        spending: Some(Spending {
            model: Some("claude-sonnet".to_owned()),
            tokens_in: Some(100),
            tokens_out: Some(200),
            cost_micros: Some(3_300),
        }),
    }
}

fn settlement() -> Settlement {
    let now = Timestamp::now();
    Settlement {
        at: now,
        attempt: Some(DeliveryAttempt {
            number: 1,
            at: now,
            duration_ms: 1,
            status: Some(200),
            error: None,
            answer: None,
        }),
        next: AfterAttempt::Delivered,
        events: vec![NewEvent::new(kind::CALLBACK_DELIVERED, now)],
        retention: Duration::from_secs(3600),
    }
}

fn callback() -> Callback {
    Callback {
        url: "https://example.com/callback".to_owned(),
        origin: "https://example.com:443".to_owned(),
    }
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).expect("it is JSON")
}
