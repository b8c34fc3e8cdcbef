//! Sample dispatches, finishes and settlements; each test changes the fields it is about.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::value::RawValue;

use crate::Store;
use crate::record::{
    Acceptance, AfterAttempt, Begun, Callback, Claim, ClaimLimits, Claimed, DeliveryAttempt,
    Finish, Finished, IdempotencyKey, KeyOwner, KeySpace, NewDelivery, NewDispatch, Settlement,
};
use forge_base::digest::sha256;
use forge_base::event::{NewEvent, kind};
use forge_base::id::{DeliveryId, DispatchId};

pub(crate) const RETENTION: Duration = Duration::from_secs(1000);
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(500);
pub const PROVIDER: &str = "echo";

/// Test time in seconds after its start.
pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

pub fn event(kind: &'static str, seconds: i64) -> NewEvent {
    NewEvent::new(kind, at(seconds)).with(&serde_json::json!({"at": seconds}))
}

pub fn callback(host: &str) -> Callback {
    Callback {
        url: format!("https://{host}/done"),
        origin: format!("https://{host}:443"),
    }
}

/// Owner of keys: everyone, or one caller for each other number.
pub fn owner(number: u8) -> KeyOwner {
    match number {
        0 => KeyOwner::EVERYONE,
        _ => KeyOwner::of("token", &[Some(&number.to_string())]),
    }
}

/// Dispatch accepted at second 0, with `start_by` at second 100 and a callback to `a.example`.
pub fn task(task_id: &str) -> NewDispatch {
    NewDispatch {
        id: DispatchId::new(),
        key: IdempotencyKey {
            owner: KeyOwner::EVERYONE,
            space: KeySpace::Task,
            value: task_id.to_owned(),
        },
        task_id: task_id.to_owned(),
        agent_id: "agent".to_owned(),
        run_id: None,
        trace_id: "trace".to_owned(),
        provider: PROVIDER.to_owned(),
        pinned: false,
        routing: raw(r#"[{"layer":0}]"#),
        request: raw(r#"{"message":"hello"}"#),
        fingerprint: sha256("hello"),
        attachments: Vec::new(),
        secrets: Some(b"sealed".to_vec()),
        session: None,
        priority: 0,
        accepted_at: at(0),
        not_before: None,
        start_by: at(100),
        callback: Some(callback("a.example")),
        events: vec![event(kind::ACCEPTED, 0), event(kind::QUEUED, 0)],
        start: None,
        is_held: false,
        is_bound: false,
        retry_of: None,
        queue_limit: 1_000_000,
    }
}

/// `ok` result at this second, with a delivery.
pub fn ok(seconds: i64) -> Finish {
    Finish {
        at: at(seconds),
        error_code: None,
        result: raw(r#"{"status":"ok"}"#),
        output: None,
        output_files: Vec::new(),
        events: vec![event(kind::COMPLETED, seconds)],
        delivery: Some(NewDelivery {
            give_up_after: GIVE_UP_AFTER,
        }),
        retention: RETENTION,
        charge: None,
        spending: None,
    }
}

pub fn failed(code: &str, seconds: i64) -> Finish {
    Finish {
        error_code: Some(code.to_owned()),
        events: vec![event(kind::FAILED, seconds)],
        ..ok(seconds)
    }
}

pub fn settlement(number: u32, seconds: i64, next: AfterAttempt) -> Settlement {
    Settlement {
        at: at(seconds),
        attempt: Some(DeliveryAttempt {
            number,
            at: at(seconds),
            duration_ms: 5,
            status: Some(200),
            error: None,
            answer: Some("thanks".to_owned()),
        }),
        next,
        events: vec![event(kind::CALLBACK_ATTEMPTED, seconds)],
        retention: RETENTION,
    }
}

pub async fn accept(store: &dyn Store, new: NewDispatch) -> DispatchId {
    let id = new.id;
    let answer = store.accept(new).await.unwrap();
    assert!(matches!(answer, Acceptance::Accepted { .. }), "{answer:?}");
    id
}

/// Claims up to `count` dispatches that may have three attempts.
pub async fn claim(store: &dyn Store, provider: &str, count: usize, seconds: i64) -> Vec<Claimed> {
    let limits = ClaimLimits {
        count,
        max_attempts: 3,
        home_grace: None,
    };
    let started = event(kind::STARTED, seconds);
    store.claim(provider, limits, started).await.unwrap()
}

/// Claims this dispatch, which has to be the first of the queue.
pub async fn begin(store: &dyn Store, id: DispatchId, seconds: i64) -> Begun {
    let claimed = claim(store, PROVIDER, 1, seconds).await.pop().unwrap();
    assert_eq!(claimed.begun.lease.id, id);
    claimed.begun
}

/// Accepts, runs and finishes a dispatch; returns its delivery, if any.
pub async fn run(
    store: &dyn Store,
    new: NewDispatch,
    finish: Finish,
) -> (DispatchId, Option<DeliveryId>) {
    let id = accept(store, new).await;
    let begun = begin(store, id, 1).await;
    let delivery = finish.delivery.as_ref().map(|_| DeliveryId::of(id));
    let claim = Claim::Attempt(begun.lease);
    let finished = store.finish(claim, finish).await.unwrap();
    assert!(matches!(finished, Finished::Recorded(_)));
    (id, delivery)
}

pub(crate) async fn ready(store: &dyn Store) -> Vec<DispatchId> {
    let ready = store.ready(PROVIDER, 100).await.unwrap();
    ready.into_iter().map(|ready| ready.id).collect()
}

/// Settlement with this retention.
pub fn keep_for(settlement: Settlement, seconds: u64) -> Settlement {
    Settlement {
        retention: Duration::from_secs(seconds),
        ..settlement
    }
}
