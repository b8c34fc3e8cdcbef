//! Worker tests with the in-memory store and a real receiver, on virtual time.

mod breaker;
mod clock;
mod retries;
mod rounds;
mod wire;

use forge_store::roles::Accept as _;
use forge_store::roles::EventLog as _;
use forge_store::roles::Executions as _;
use std::future::Future;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures_util::FutureExt;
use secrecy::SecretSlice;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use url::Url;

use super::sign::Signer;
use super::{Config, Deliverer, Setup};
use forge_base::event::{NewEvent, kind};
use forge_base::id::{DeliveryId, DispatchId};
use forge_base::tasks::Tasks;
use forge_base::time::{self, Clock};
use forge_base::trace::Spans;
use forge_base::vault::Vault;
use forge_net as net;
use forge_net::guard::Guard;
use forge_store::memory::Memory;
use forge_store::record::{
    Acceptance, Callback, Claim, DeliveryRecord, EventFilter, Finish, Finished, IdempotencyKey,
    KeyOwner, KeySpace, NewDelivery, NewDispatch,
};
use forge_store::roles::Outbox;
use forge_test_support::callback::Received;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const RESULT: &str = r#"{"status":"ok","output":"grüße"}"#;

struct Rig {
    store: Arc<Memory>,
    signer: Signer,
    vault: Vault,
    clock: Clock,
    config: Config,
    /// Deadline of new deliveries, from the finish of the dispatch.
    give_up_after: Duration,
    deliverer: Deliverer,
    tracker: Tasks,
}

impl Rig {
    async fn new() -> Self {
        Self::with(Config::default()).await
    }

    async fn with(config: Config) -> Self {
        let store = Arc::new(Memory::new());
        let vault = vault(7);
        let signer = Signer::open(&config, &*store, &vault).await.unwrap();
        let mut rig = Self {
            deliverer: idle(Arc::clone(&store) as Arc<dyn Outbox>),
            tracker: Tasks::here(),
            clock: Clock::tokio(),
            store,
            signer,
            vault,
            config,
            give_up_after: Duration::from_secs(72 * 60 * 60),
        };
        rig.restart();
        rig
    }

    /// Replaces the deliverer, over the same store, as after a restart.
    fn restart(&mut self) {
        self.deliverer = Deliverer::new(Setup {
            store: Arc::clone(&self.store) as Arc<dyn Outbox>,
            client: client(),
            signer: self.signer.clone(),
            vault: self.vault.clone(),
            clock: self.clock,
            config: self.config.clone(),
            retention: Duration::from_secs(60).into(),
            spans: Spans::default(),
        });
    }

    /// Stores a finished dispatch whose result is to be delivered to this URL.
    async fn owe(&self, url: &str, callback: Value) -> DeliveryId {
        self.owe_with_secrets(url, callback, None).await
    }

    async fn owe_with_secrets(
        &self,
        url: &str,
        callback: Value,
        secrets: Option<Value>,
    ) -> DeliveryId {
        let id = DispatchId::new();
        let now = self.clock.now();
        let to = Callback {
            url: url.to_owned(),
            origin: net::origin(&Url::parse(url).unwrap()),
        };
        let accepted = self.store.accept(NewDispatch {
            id,
            key: IdempotencyKey {
                owner: KeyOwner::EVERYONE,
                space: KeySpace::Task,
                value: id.to_string(),
            },
            task_id: id.to_string(),
            agent_id: "agent".into(),
            run_id: None,
            trace_id: TRACE.into(),
            provider: "echo".into(),
            pinned: false,
            routing: raw(&json!([])),
            request: raw(&json!({ "taskId": "t", "callback": callback })),
            fingerprint: [0; 32],
            attachments: Vec::new(),
            secrets: secrets.map(|secrets| {
                let context = format!("dispatch:{id}");
                self.vault.seal(&context, secrets.to_string().as_bytes())
            }),
            session: None,
            priority: 0,
            accepted_at: now,
            not_before: None,
            start_by: time::after(now, Duration::from_secs(60)),
            callback: Some(to),
            events: vec![NewEvent::new(kind::ACCEPTED, now)],
            start: None,
            is_held: false,
            is_bound: false,
            retry_of: None,
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
                output_files: Vec::new(),
                events: vec![NewEvent::new(kind::COMPLETED, now)],
                delivery: Some(NewDelivery {
                    give_up_after: self.give_up_after,
                }),
                retention: Duration::from_secs(60),
                charge: None,
                spending: None,
            },
        );
        assert!(matches!(finished.await.unwrap(), Finished::Recorded(_)));
        DeliveryId::of(id)
    }

    /// Attempts all due deliveries and waits until they are settled.
    async fn round(&self) {
        held(async {
            self.deliverer.tick(&self.tracker).await.unwrap();
            self.deliverer.shared.in_flight.none_left().await;
        })
        .await;
    }

    /// Advances time to the next attempt, runs it, and returns the length of the wait.
    async fn next_round(&self) -> Duration {
        let due = self.store.next_due(&[]).await.unwrap().unwrap();
        let wait = time::left(self.clock.now(), due);
        // Timers have a resolution of one millisecond.
        tokio::time::advance(wait + Duration::from_millis(1)).await;
        self.round().await;
        wait
    }

    async fn delivery(&self, id: DeliveryId) -> DeliveryRecord {
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
                let data = serde_json::from_str(event.data.as_ref().unwrap().get()).unwrap();
                (event.kind.clone(), data)
            })
            .collect()
    }
}

/// Deliverer whose worker is not running, for tests of components that hold one.
pub(crate) fn idle(store: Arc<dyn Outbox>) -> Deliverer {
    let vault = vault(7);
    let config = Config::default();
    let signer = Signer::open(&config, &Memory::new(), &vault)
        .now_or_never()
        .expect("the model answers at once")
        .unwrap();
    Deliverer::new(Setup {
        store,
        client: client(),
        signer,
        vault,
        clock: Clock::System,
        config,
        retention: Duration::from_secs(60).into(),
        spans: Spans::default(),
    })
}

fn vault(key: u8) -> Vault {
    Vault::from_key(&SecretSlice::from(vec![key; 32])).unwrap()
}

fn client() -> net::Client {
    let guard = Guard::new(&["loopback".to_owned()]).unwrap();
    net::Client::new(&net::Config::default(), guard).unwrap()
}

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

/// Runs `work` while paused time does not advance: the runtime stops auto-advance while a blocking task runs,
/// so real sockets never lose against virtual timeouts.
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
