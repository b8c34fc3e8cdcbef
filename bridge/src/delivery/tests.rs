//! The worker against the model store and a real receiver, on virtual time.

use std::future::Future;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretSlice};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;

use super::sign::Signer;
use super::{Config, Deliverer, Origin, Setup};
use crate::event::{NewEvent, kind};
use crate::id::{DeliveryId, DispatchId};
use crate::net;
use crate::net::guard::Guard;
use crate::net::sink::{Answer, CallbackSink, Received};
use crate::store::Store;
use crate::store::memory::Memory;
use crate::store::record::{
    Acceptance, Callback, Claim, Delivery, DeliveryState, EventFilter, Finish, Finished,
    IdempotencyKey, KeySpace, NewDelivery, NewDispatch, Replay,
};
use crate::time::{self, Clock};
use crate::vault::Vault;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const RESULT: &str = r#"{"status":"ok","output":"grüße"}"#;

struct Rig {
    store: Arc<Memory>,
    signer: Signer,
    vault: Vault,
    clock: Clock,
    config: Config,
    deliverer: Deliverer,
    tracker: TaskTracker,
}

impl Rig {
    async fn new() -> Self {
        Self::with(Config::default()).await
    }

    async fn with(config: Config) -> Self {
        let store = Arc::new(Memory::new());
        let vault = Vault::from_key(&SecretSlice::from(vec![7; 32])).unwrap();
        let signer = Signer::open(&config, &*store, &vault).await.unwrap();
        let clock = Clock::tokio();
        Self {
            deliverer: deliverer(&store, &vault, &signer, clock, &config),
            tracker: TaskTracker::new(),
            store,
            signer,
            vault,
            clock,
            config,
        }
    }

    /// Another deliverer over the same store, as after a restart.
    fn restart(&mut self) {
        self.deliverer = deliverer(
            &self.store,
            &self.vault,
            &self.signer,
            self.clock,
            &self.config,
        );
    }

    /// A finished dispatch that owes its result to this URL.
    async fn owe(&self, url: &str, callback: Value) -> DeliveryId {
        self.owe_with_secrets(url, callback, None).await
    }

    async fn owe_with_secrets(
        &self,
        url: &str,
        callback: Value,
        secrets: Option<Value>,
    ) -> DeliveryId {
        let (id, delivery) = (DispatchId::new(), DeliveryId::new());
        let now = self.clock.now();
        let to = Callback {
            url: url.to_owned(),
            origin: net::origin(&Url::parse(url).unwrap()),
        };
        let accepted = self.store.accept(NewDispatch {
            id,
            key: IdempotencyKey {
                space: KeySpace::Task,
                value: id.to_string(),
            },
            fingerprint: [0; 32],
            task_id: id.to_string(),
            agent_id: "agent".into(),
            run_id: None,
            trace_id: TRACE.into(),
            provider: "echo".into(),
            pinned: false,
            routing: raw(&json!([])),
            request: raw(&json!({ "taskId": "t", "callback": callback })),
            secrets: secrets.map(|secrets| {
                let context = format!("dispatch:{id}");
                self.vault.seal(&context, secrets.to_string().as_bytes())
            }),
            session: None,
            priority: 0,
            accepted_at: now,
            not_before: None,
            start_by: time::after(now, Duration::from_secs(60)),
            callback: Some(to.clone()),
            events: Vec::new(),
            queue_limit: 1_000_000,
        });
        assert!(matches!(
            accepted.await.unwrap(),
            Acceptance::Accepted { .. }
        ));
        let finished = self.store.finish(
            Claim::Unstarted(id),
            Finish {
                at: now,
                error_code: None,
                result: RawValue::from_string(RESULT.into()).unwrap(),
                output: None,
                events: vec![NewEvent::new(kind::COMPLETED, now, None)],
                delivery: Some(NewDelivery {
                    id: delivery,
                    callback: to,
                }),
                retention: Duration::from_secs(60),
            },
        );
        assert!(matches!(finished.await.unwrap(), Finished::Recorded(_)));
        delivery
    }

    /// Attempts what is due and waits until all of it is settled.
    async fn round(&self) {
        held(async {
            self.deliverer.tick(&self.tracker).await.unwrap();
            self.deliverer.shared.flights.none_left().await;
        })
        .await;
    }

    /// Moves time to the next attempt, makes it, and says how long the wait was.
    async fn next_round(&self) -> Duration {
        let due = self.store.next_due(&[]).await.unwrap().unwrap();
        let wait = time::between(self.clock.now(), due);
        // Timers go by milliseconds.
        tokio::time::advance(wait + Duration::from_millis(1)).await;
        self.round().await;
        wait
    }

    async fn delivery(&self, id: DeliveryId) -> Delivery {
        self.store.delivery(id).await.unwrap().unwrap()
    }

    async fn callback_events(&self, id: DeliveryId) -> Vec<(String, Value)> {
        let filter = EventFilter {
            dispatch: Some(self.delivery(id).await.dispatch_id),
            ..EventFilter::default()
        };
        let page = self.store.events(&filter, 0, 1000).await.unwrap();
        let callbacks = page.events.into_iter();
        callbacks
            .filter(|event| event.kind.starts_with("callback."))
            .map(|event| {
                let data = serde_json::from_str(event.data.unwrap().get()).unwrap();
                (event.kind, data)
            })
            .collect()
    }
}

fn deliverer(
    store: &Arc<Memory>,
    vault: &Vault,
    signer: &Signer,
    clock: Clock,
    config: &Config,
) -> Deliverer {
    let guard = Guard::new(&["loopback".to_owned()]).unwrap();
    Deliverer::new(Setup {
        store: Arc::clone(store) as Arc<dyn Store>,
        client: net::Client::new(&net::Config::default(), guard).unwrap(),
        signer: signer.clone(),
        vault: vault.clone(),
        clock,
        config: config.clone(),
        retention: Duration::from_secs(60),
    })
}

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

/// Runs this while paused time stands still: a runtime with a blocking task at work does not move
/// it, so real sockets never lose against virtual timeouts.
async fn held<T>(work: impl Future<Output = T>) -> T {
    let (release, released) = mpsc::channel::<()>();
    let holder = tokio::task::spawn_blocking(move || {
        let waited = released.recv_timeout(Duration::from_secs(20));
        assert_ne!(waited, Err(mpsc::RecvTimeoutError::Timeout), "it hangs");
    });
    let done = work.await;
    drop(release);
    holder.await.unwrap();
    done
}

fn header<'a>(request: &'a Received, name: &str) -> &'a str {
    request.headers.get(name).map_or("", String::as_str)
}

#[tokio::test(start_paused = true)]
async fn a_callback_carries_what_the_contract_says() {
    let sink = CallbackSink::start().await;
    let rig = Rig::new().await;
    let id = rig
        .owe(
            &sink.url("/hook?x=1"),
            json!({ "headers": { "x-team": "blue" } }),
        )
        .await;
    rig.round().await;

    let request = &sink.received()[0];
    assert_eq!(
        (request.method.as_str(), request.path.as_str()),
        ("POST", "/hook?x=1")
    );
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!(body["output"], "grüße");
    assert_eq!(body["events"]["count"], 1);
    for (name, expected) in [
        ("webhook-id", id.to_string()),
        ("idempotency-key", id.to_string()),
        ("content-type", "application/json".into()),
        (
            "user-agent",
            format!("forge-bridge/{}", env!("CARGO_PKG_VERSION")),
        ),
        ("x-forge-delivery-attempt", "1".into()),
        ("x-team", "blue".into()),
        ("authorization", String::new()),
    ] {
        assert_eq!(header(request, name), expected, "{name}");
    }
    let traceparent = header(request, "traceparent");
    assert!(
        traceparent.starts_with(&format!("00-{TRACE}-")),
        "{traceparent}"
    );

    let secret = rig.signer.describe().remove(0).secrets.remove(0);
    let oracle = Webhook::new(secret.expose_secret()).unwrap();
    let timestamp = header(request, "webhook-timestamp").parse().unwrap();
    let signed = oracle.sign(&id.to_string(), timestamp, &request.body);
    assert_eq!(signed.unwrap(), header(request, "webhook-signature"));

    assert_eq!(rig.delivery(id).await.status, DeliveryState::Delivered);
    let events = rig.callback_events(id).await;
    assert_eq!(events.len(), 2);
    assert_eq!(events[0].0, kind::CALLBACK_ATTEMPTED);
    assert_eq!(events[0].1["status"], 200);
    assert_eq!(events[0].1["deliveryId"], id.to_string());
    assert_eq!(events[1].0, kind::CALLBACK_DELIVERED);
    assert_eq!(rig.store.next_due(&[]).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn the_dispatchs_own_secrets_go_before_those_of_the_origin() {
    let sink = CallbackSink::start().await;
    let own = format!("whsec_{}", BASE64_STANDARD.encode([9; 32]));
    let config = Config {
        origins: [(
            sink.url(""),
            Origin {
                secrets: Vec::new(),
                bearer: Some("of-the-origin".into()),
            },
        )]
        .into(),
        ..Config::default()
    };
    let rig = Rig::with(config).await;
    let secrets = json!({ "bearer": "of-the-dispatch", "secret": own });
    rig.owe_with_secrets(&sink.url("/a"), json!({}), Some(secrets))
        .await;
    rig.owe(&sink.url("/b"), json!({})).await;
    rig.round().await;

    for request in sink.received() {
        let (bearer, own_key) = match request.path.as_str() {
            "/a" => ("Bearer of-the-dispatch", true),
            _ => ("Bearer of-the-origin", false),
        };
        assert_eq!(header(&request, "authorization"), bearer);
        let timestamp = header(&request, "webhook-timestamp").parse().unwrap();
        let signed = Webhook::new(&own).unwrap().sign(
            header(&request, "webhook-id"),
            timestamp,
            &request.body,
        );
        let same = signed.unwrap() == header(&request, "webhook-signature");
        assert_eq!(same, own_key, "{}", request.path);
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_tried_until_it_is_taken_with_one_id_and_fresh_timestamps() {
    let sink = CallbackSink::start().await;
    sink.script(vec![
        Answer::status(500).body("no"),
        Answer::close(),
        Answer::status(404),
        Answer::status(204),
    ]);
    let rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({})).await;
    rig.round().await;
    for plain in [1.0, 2.0, 4.0] {
        assert_eq!(rig.delivery(id).await.status, DeliveryState::Pending);
        let wait = rig.next_round().await.as_secs_f64();
        assert!((plain * 0.79..plain * 1.21).contains(&wait), "{wait}");
    }
    let delivery = rig.delivery(id).await;
    assert_eq!(delivery.status, DeliveryState::Delivered);
    let attempts = delivery.attempts;
    let statuses: Vec<_> = attempts.iter().map(|a| a.status).collect();
    assert_eq!(statuses, [Some(500), None, Some(404), Some(204)]);
    assert_eq!(attempts[0].answer.as_deref(), Some("no"));
    assert!(attempts[1].error.as_deref().unwrap().contains("closed"));

    let received = sink.received();
    let numbers: Vec<_> = received
        .iter()
        .map(|r| header(r, "x-forge-delivery-attempt"))
        .collect();
    assert_eq!(numbers, ["1", "2", "3", "4"]);
    assert!(
        received
            .iter()
            .all(|r| header(r, "webhook-id") == id.to_string())
    );
    let stamps: Vec<i64> = received
        .iter()
        .map(|r| header(r, "webhook-timestamp").parse().unwrap())
        .collect();
    assert!(
        stamps.is_sorted() && stamps[3] - stamps[0] >= 5,
        "{stamps:?}"
    );
    let kinds: Vec<_> = rig.callback_events(id).await;
    assert_eq!(kinds.len(), 5);
    assert_eq!(kinds[4].0, kind::CALLBACK_DELIVERED);
}

#[tokio::test(start_paused = true)]
async fn what_a_receiver_rules_out_is_a_dead_letter_at_once() {
    let sink = CallbackSink::start().await;
    let elsewhere = sink.url("/elsewhere");
    sink.answer_with(move |request| match request.path.as_str() {
        "/302" => Answer::redirect(&elsewhere),
        path => Answer::status(path[1..].parse().unwrap()),
    });
    let rig = Rig::new().await;
    let mut owed = Vec::new();
    for path in ["/302", "/400", "/410", "/413", "/422"] {
        owed.push((path, rig.owe(&sink.url(path), json!({})).await));
    }
    rig.round().await;
    for (path, id) in owed {
        let delivery = rig.delivery(id).await;
        assert_eq!(delivery.status, DeliveryState::Dead, "{path}");
        assert_eq!(delivery.attempt_count, 1, "{path}");
        let (kind, data) = rig.callback_events(id).await.pop().unwrap();
        assert_eq!(kind, kind::CALLBACK_DEAD);
        let reason = data["reason"].as_str().unwrap();
        assert!(reason.ends_with(&path[1..]), "{reason}");
    }
    assert_eq!(sink.received().len(), 5, "redirects are not followed");
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_asks_for_time_gets_it() {
    let sink = CallbackSink::start().await;
    sink.script(vec![
        Answer::status(429).header("Retry-After", "120"),
        Answer::status(503).header("Retry-After", "999999"),
        Answer::status(200),
    ]);
    let rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({})).await;
    rig.round().await;
    assert_eq!(rig.next_round().await.as_secs_f64().round(), 120.0);
    assert_eq!(rig.next_round().await.as_secs_f64().round(), 86_400.0);
    assert_eq!(rig.delivery(id).await.status, DeliveryState::Delivered);
}

#[tokio::test(start_paused = true)]
async fn a_receiver_that_hangs_is_given_thirty_seconds() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::hang());
    let rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({})).await;
    rig.deliverer.tick(&rig.tracker).await.unwrap();
    sink.until(1).await;
    held(tokio::time::advance(Duration::from_secs(29))).await;
    assert_eq!(rig.delivery(id).await.attempt_count, 0);
    held(async {
        tokio::time::advance(Duration::from_secs(2)).await;
        rig.deliverer.shared.flights.none_left().await;
    })
    .await;
    let delivery = rig.delivery(id).await;
    assert_eq!(delivery.status, DeliveryState::Pending);
    assert!(
        delivery.attempts[0]
            .error
            .as_deref()
            .unwrap()
            .contains("30s")
    );
}

#[tokio::test(start_paused = true)]
async fn a_policy_ends_when_it_says_and_a_replay_begins_it_anew() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(500));
    for (retry, expected) in [
        (json!("compat"), 4),
        (json!({ "maxElapsedSeconds": 5.5 }), 3),
        (json!({ "maxElapsedSeconds": 0.5 }), 1),
    ] {
        let rig = Rig::new().await;
        let id = rig.owe(&sink.url("/"), json!({ "retry": retry })).await;
        for series in 1..=2 {
            rig.round().await;
            while rig.store.next_due(&[]).await.unwrap().is_some() {
                rig.next_round().await;
            }
            let delivery = rig.delivery(id).await;
            assert_eq!(delivery.status, DeliveryState::Dead);
            assert_eq!(delivery.attempt_count, series * expected, "{retry}");
            tokio::time::advance(Duration::from_secs(60)).await;
            let now = rig.clock.now();
            rig.store.replay(Replay::One(id), now).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_three_days_it_is_a_dead_letter() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(503));
    let rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({ "retry": "default" })).await;
    let start = rig.clock.now();
    rig.round().await;
    while rig.store.next_due(&[]).await.unwrap().is_some() {
        rig.next_round().await;
    }
    let hours = time::between(start, rig.clock.now()).as_secs() / 3600;
    assert!((70..=72).contains(&hours), "{hours}");
    let delivery = rig.delivery(id).await;
    assert_eq!(delivery.status, DeliveryState::Dead);
    assert_eq!(delivery.attempts.len(), 25);
    let (_, data) = rig.callback_events(id).await.pop().unwrap();
    let reason = data["reason"].as_str().unwrap();
    assert!(reason.starts_with("given up after"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_dead_receiver_delays_nobody_else() {
    let (dead, alive) = (CallbackSink::start().await, CallbackSink::start().await);
    dead.answer(Answer::hang());
    let rig = Rig::new().await;
    for _ in 0..100 {
        rig.owe(&dead.url("/"), json!({})).await;
    }
    let shutdown = CancellationToken::new();
    let worker = rig.deliverer.clone();
    rig.tracker
        .spawn(worker.run(shutdown.clone(), rig.tracker.clone()));
    dead.until(8).await;
    for _ in 0..40 {
        rig.owe(&alive.url("/"), json!({})).await;
    }
    rig.deliverer.wake();
    alive.until(40).await;
    assert_eq!(dead.received().len(), 8, "no more than its own slots");

    // The next attempt of a living receiver is not hidden behind those that hang.
    alive.script(vec![Answer::status(500)]);
    let id = rig.owe(&alive.url("/"), json!({})).await;
    rig.deliverer.wake();
    alive.until(41).await;
    alive.answer(Answer::status(200));
    held(async {
        while rig.delivery(id).await.status != DeliveryState::Delivered {
            tokio::time::advance(Duration::from_millis(50)).await;
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(rig.delivery(id).await.attempt_count, 2);
    assert_eq!(dead.received().len(), 8);

    shutdown.cancel();
    rig.deliverer.drain(Instant::now()).await;
    rig.tracker.close();
    rig.tracker.wait().await;
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_the_shutdown_cuts_off_is_made_again() {
    let sink = CallbackSink::start().await;
    sink.script(vec![Answer::hang(), Answer::status(200)]);
    let mut rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({})).await;
    let shutdown = CancellationToken::new();
    let worker = rig.deliverer.clone();
    rig.tracker
        .spawn(worker.run(shutdown.clone(), rig.tracker.clone()));
    sink.until(1).await;
    shutdown.cancel();
    rig.deliverer
        .drain(Instant::now() + Duration::from_secs(5))
        .await;
    rig.tracker.close();
    rig.tracker.wait().await;
    assert_eq!(rig.delivery(id).await.attempt_count, 0);

    rig.restart();
    rig.round().await;
    let received = sink.received();
    assert_eq!(received.len(), 2);
    assert!(
        received
            .iter()
            .all(|r| header(r, "webhook-id") == id.to_string())
    );
    assert_eq!(rig.delivery(id).await.status, DeliveryState::Delivered);
}

#[tokio::test(start_paused = true)]
async fn what_is_due_is_finished_before_the_shutdown() {
    let sink = CallbackSink::start().await;
    let rig = Rig::new().await;
    let mut owed = Vec::new();
    for _ in 0..30 {
        owed.push(rig.owe(&sink.url("/"), json!({})).await);
    }
    let shutdown = CancellationToken::new();
    let worker = rig.deliverer.clone();
    rig.tracker
        .spawn(worker.run(shutdown.clone(), rig.tracker.clone()));
    held(
        rig.deliverer
            .finish_due(Instant::now() + Duration::from_secs(20)),
    )
    .await;
    shutdown.cancel();
    for id in owed {
        assert_eq!(rig.delivery(id).await.status, DeliveryState::Delivered);
    }
}

#[tokio::test(start_paused = true)]
async fn the_worker_wakes_itself_when_a_retry_is_due() {
    let sink = CallbackSink::start().await;
    sink.script(vec![Answer::status(500), Answer::status(200)]);
    let rig = Rig::new().await;
    let id = rig.owe(&sink.url("/"), json!({})).await;
    let shutdown = CancellationToken::new();
    let worker = rig.deliverer.clone();
    rig.tracker
        .spawn(worker.run(shutdown.clone(), rig.tracker.clone()));
    held(async {
        sink.until(1).await;
        rig.deliverer.shared.flights.none_left().await;
    })
    .await;
    // Nothing holds time now: it moves to the worker's own timer.
    while sink.received().len() < 2 {
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    sink.until(2).await;
    held(rig.deliverer.shared.flights.none_left()).await;
    let attempts = rig.delivery(id).await.attempts;
    let wait = time::between(attempts[0].at, attempts[1].at).as_secs_f64();
    assert!((0.75..1.5).contains(&wait), "{wait}");
    shutdown.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_dispatch_whose_secrets_cannot_be_opened_waits_for_the_key() {
    let sink = CallbackSink::start().await;
    let mut rig = Rig::new().await;
    let secrets = Some(json!({ "bearer": "b" }));
    let id = rig
        .owe_with_secrets(&sink.url("/"), json!({}), secrets)
        .await;
    let right = std::mem::replace(
        &mut rig.vault,
        Vault::from_key(&SecretSlice::from(vec![8; 32])).unwrap(),
    );
    rig.restart();
    rig.round().await;
    let delivery = rig.delivery(id).await;
    assert_eq!(delivery.status, DeliveryState::Pending);
    let error = delivery.attempts[0].error.as_deref().unwrap();
    assert!(error.contains("another key"), "{error}");
    assert!(sink.received().is_empty());

    rig.vault = right;
    rig.restart();
    rig.next_round().await;
    assert_eq!(rig.delivery(id).await.status, DeliveryState::Delivered);
    assert_eq!(header(&sink.received()[0], "authorization"), "Bearer b");
}

#[test]
fn a_time_before_its_start_is_no_wait() {
    let now = Timestamp::now();
    assert_eq!(time::between(now, Timestamp::UNIX_EPOCH), Duration::ZERO);
}
