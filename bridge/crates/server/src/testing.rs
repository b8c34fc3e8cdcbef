//! Router over the in-memory store, with dispatches in it, for the tests of this folder.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::header::HOST;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use jiff::Timestamp;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::auth::{self, Auth};
use super::throughput::Throughput;
use super::{
    AgentState, Components, Config, Phase, ProcessState, SignalReceivers, metrics, router,
};
use forge_base::event::{NewEvent, kind};
use forge_base::id::{DeliveryId, DispatchId};
use forge_base::tasks::Tasks;
use forge_base::time::Clock;
use forge_base::trace::Spans;
use forge_base::vault::Vault;
use forge_delivery::sign::Signer;
use forge_delivery::{self as delivery, Deliverer};
use forge_dispatch::finish::Finisher;
use forge_dispatch::mcp::{self, Servers};
use forge_dispatch::{self as dispatch, Dispatcher};
use forge_external::{self as external, External};
use forge_net as net;
use forge_net::guard::Guard;
use forge_plugin_host::{self as plugin, Registry, Trust};
use forge_process::program::{Launcher, LauncherSettings};
use forge_process::{self as process, Children};
use forge_runs::Runs;
use forge_signals::agent::{self as signals, Agent};
use forge_signals::engine::{self, Engine};
use forge_signals::refusal::Refusals;
use forge_signals::{Ledger, Terms, ledger};
use forge_store::Store;
use forge_store::memory::Memory;
use forge_store::record::{
    Acceptance, Begun, Callback, Claim, ClaimLimits, Finish, IdempotencyKey, KeyOwner, KeySpace,
    Lease, NewDelivery, NewDispatch, Progress,
};

const RETENTION: Duration = Duration::from_secs(60);

pub(super) struct Edge {
    pub(super) store: Arc<dyn Store>,
    pub(super) router: Router,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) closing: CancellationToken,
    _state_dir: TempDir,
}

pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Answered {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(super) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// Error envelope, with its request id checked and removed.
    pub(super) fn envelope(&self) -> Value {
        let mut body = self.json();
        let id = body["requestId"].take();
        assert!(id.as_str().unwrap().starts_with("req_"), "{id}");
        assert_eq!(id, self.header("x-request-id"));
        body.as_object_mut().unwrap().remove("requestId");
        body
    }
}

impl Edge {
    pub(super) async fn new() -> Self {
        Self::with(Config::default(), &auth::Config::default()).await
    }

    /// Builds a router with the echo adapter and a dispatcher that accepts and never starts anything.
    pub(super) async fn with(config: Config, auth: &auth::Config) -> Self {
        let (phase, phases) = watch::channel(Phase::Serving);
        let closing = CancellationToken::new();
        let store: Arc<dyn Store> = Arc::new(Memory::new());
        let state_dir = tempfile::tempdir().unwrap();
        let tracker = Tasks::here();
        let registry = registry(state_dir.path(), &tracker).await;
        let vault = Vault::from_key(&vec![7; 32].into()).unwrap();
        let external = no_services(state_dir.path(), &tracker);
        let ledger = ledger::Setup {
            store: Arc::clone(&store) as _,
            clock: Clock::System,
            milestones: Vec::new(),
            terms: Terms::default(),
            tracker: tracker.clone(),
        };
        let ledger = Ledger::open(ledger).await.unwrap();
        let setup = signals::Setup {
            config: forge_signals::config::Config::default(),
            store: Arc::clone(&store) as _,
            ledger: ledger.clone(),
            clock: Clock::System,
        };
        let opening = Engine::open(engine::Setup {
            config: forge_signals::config::Config::default(),
            store: Arc::clone(&store) as _,
            ledger,
            clock: Clock::System,
        });
        let signals = SignalReceivers {
            agent: Agent::open(setup, &*store, &vault).await.unwrap(),
            state: AgentState::Off,
            engine: opening.await.unwrap(),
            refusals: Refusals::new(Arc::clone(&store) as _, Clock::System),
        };
        let deliverer = deliverer(&store, &vault).await;
        let dispatcher = Dispatcher::new(dispatch::Setup {
            finisher: Finisher {
                store: Arc::clone(&store).into(),
                clock: Clock::System,
                config: Arc::default(),
                retention: RETENTION.into(),
                meters: Arc::default(),
                spans: Spans::default(),
                signals: signals.agent.clone(),
            },
            registry: registry.clone(),
            deliverer: deliverer.clone(),
            vault,
            client: net::Client::new(&net::Config::default(), Guard::new(&[]).unwrap()).unwrap(),
            mcp: no_servers(client(), &tracker),
            external: external.clone(),
            tracker: tracker.clone(),
        });
        let runs = Runs::new(forge_runs::Setup {
            config: forge_runs::Config::default(),
            checks: forge_runs::Checks::new(&[].into()).unwrap(),
            store: Arc::clone(&store),
            dispatcher: dispatcher.clone(),
            clock: Clock::System,
            retention: RETENTION.into(),
            git: Err("tests of the interface have no git".to_owned()),
            check_user: None,
            launcher: launcher(&tracker),
            tracker,
            shutdown: CancellationToken::new(),
        });
        let router = router(Components {
            store: Arc::clone(&store),
            dispatcher,
            deliverer,
            registry,
            external,
            runs,
            signals,
            auth: Auth::new(auth).unwrap(),
            config: Arc::new(config),
            metrics: metrics::Config::default(),
            listen: SocketAddr::from(([127, 0, 0, 1], 7420)),
            process: ProcessState {
                instance_id: "instance".into(),
                started: Instant::now(),
                phase: phases,
                closing: closing.clone(),
                children: Children::new(&process::Config::default(), "store").unwrap(),
                dropped_log_lines: Arc::default(),
            },
            throughput: Throughput::default(),
        });
        Self {
            store,
            router,
            phase,
            closing,
            _state_dir: state_dir,
        }
    }

    pub(super) async fn send(&self, mut request: Request<Body>) -> Answered {
        let host = request.headers_mut().entry(HOST);
        host.or_insert(HeaderValue::from_static("localhost"));
        let (parts, body) = self
            .router
            .clone()
            .oneshot(request)
            .await
            .unwrap()
            .into_parts();
        Answered {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    pub(super) async fn get(&self, path: &str) -> Answered {
        self.send(Request::get(path).body(Body::empty()).unwrap())
            .await
    }

    pub(super) async fn post(&self, path: &str, body: impl Into<Body>) -> Answered {
        let request = Request::post(path).header("content-type", "application/json");
        self.send(request.body(body.into()).unwrap()).await
    }

    /// Accepts a dispatch with its first two events.
    pub(super) async fn accept(&self, task_id: &str) -> DispatchId {
        self.record(task_id, None).await.0
    }

    async fn record(
        &self,
        task_id: &str,
        start: Option<NewEvent>,
    ) -> (DispatchId, Option<Box<Begun>>) {
        let now = Timestamp::now();
        let id = DispatchId::new();
        let key = IdempotencyKey {
            owner: KeyOwner::EVERYONE,
            space: KeySpace::Header,
            value: id.to_string(),
        };
        let new = NewDispatch {
            id,
            key,
            task_id: task_id.to_owned(),
            agent_id: "agent".to_owned(),
            run_id: None,
            trace_id: "trace".to_owned(),
            provider: "echo".to_owned(),
            pinned: false,
            routing: raw(&json!([])),
            request: raw(&json!({})),
            fingerprint: [0; 32],
            attachments: Vec::new(),
            secrets: None,
            session: None,
            priority: 0,
            accepted_at: now,
            not_before: None,
            start_by: now,
            callback: Some(callback()),
            events: vec![event(kind::ACCEPTED), event(kind::QUEUED)],
            start,
            is_held: false,
            is_bound: false,
            retry_of: None,
            queue_limit: 1000,
        };
        match self.store.accept(new).await.unwrap() {
            Acceptance::Accepted { begun, .. } => (id, begun),
            refused => panic!("{refused:?}"),
        }
    }

    /// Starts a dispatch, which has to be the first of the queue.
    pub(super) async fn begin(&self, id: DispatchId) -> Lease {
        let limits = ClaimLimits {
            count: 1,
            max_attempts: 3,
            home_grace: None,
        };
        let claimed = self.store.claim("echo", limits, event(kind::STARTED)).await;
        let lease = claimed.unwrap().pop().unwrap().begun.lease;
        assert_eq!(lease.id, id);
        lease
    }

    pub(super) async fn tell(&self, lease: &Lease, events: Vec<NewEvent>) {
        let progress = Progress {
            events,
            ..Progress::default()
        };
        self.store.append(lease, progress).await.unwrap();
    }

    /// Finishes a dispatch as `ok`, with its callback pending.
    pub(super) async fn finish(&self, lease: Lease, output: Option<&str>) -> DeliveryId {
        let delivery = DeliveryId::of(lease.id);
        let finish = Finish {
            at: Timestamp::now(),
            error_code: None,
            result: raw(&json!({ "status": "ok", "output": "short" })),
            output: output.map(str::to_owned),
            output_files: Vec::new(),
            events: vec![event(kind::COMPLETED)],
            delivery: Some(NewDelivery {
                give_up_after: RETENTION,
            }),
            retention: RETENTION,
            charge: None,
            spending: None,
        };
        self.store
            .finish(Claim::Attempt(lease), finish)
            .await
            .unwrap();
        delivery
    }

    /// Accepts, starts at once and finishes a dispatch.
    pub(super) async fn done(&self, task_id: &str) -> (DispatchId, DeliveryId) {
        let (id, begun) = self.record(task_id, Some(event(kind::STARTED))).await;
        (id, self.finish(begun.unwrap().lease, None).await)
    }
}

pub(super) fn event(kind: &'static str) -> NewEvent {
    NewEvent::new(kind, Timestamp::now())
}

/// Registry with the echo adapter, whose library is beside the test binary.
async fn registry(state_dir: &Path, tracker: &Tasks) -> Registry {
    let setup = plugin::Setup {
        config: plugin::Config {
            trust: Trust::Warn,
            ..plugin::Config::default()
        },
        tables: BTreeMap::new(),
        env: BTreeMap::new(),
        store_id: "test".to_owned(),
        epoch: 0,
        state_dir: state_dir.to_owned(),
        temp_dir: None,
        supervisor: Vec::new(),
        relay: Vec::new(),
        user: None,
        users: BTreeMap::new(),
        built_in: None,
        tracker: tracker.clone(),
    };
    Registry::start(setup).await.unwrap().0
}

fn client() -> net::Client {
    net::Client::new(&net::Config::default(), Guard::new(&[]).unwrap()).unwrap()
}

async fn deliverer(store: &Arc<dyn Store>, vault: &Vault) -> Deliverer {
    let config = delivery::Config::default();
    Deliverer::new(delivery::Setup {
        store: Arc::<dyn Store>::clone(store),
        client: client(),
        signer: Signer::open(&config, store.as_ref(), vault).await.unwrap(),
        vault: vault.clone(),
        clock: Clock::System,
        config,
        retention: RETENTION.into(),
        spans: Spans::default(),
    })
}

fn callback() -> Callback {
    Callback {
        url: "https://example.org/hook".to_owned(),
        origin: "https://example.org:443".to_owned(),
    }
}

fn raw(value: &Value) -> Box<RawValue> {
    to_raw_value(value).unwrap()
}

fn launcher(tracker: &Tasks) -> Launcher {
    Launcher::new(LauncherSettings {
        supervisor: Vec::new(),
        store_id: "store".to_owned(),
        environment: Vec::new(),
        dir: None,
        tracker: tracker.clone(),
    })
}

fn no_servers(client: forge_net::Client, tracker: &Tasks) -> Servers {
    let setup = mcp::Setup {
        config: mcp::Config::default(),
        client,
        launcher: launcher(tracker),
    };
    Servers::new(setup).expect("an empty configuration is valid")
}

/// External services of an empty folder.
fn no_services(root: &Path, tracker: &Tasks) -> External {
    let setup = external::Setup {
        config: external::Config {
            root: root.to_owned(),
            ..external::Config::default()
        },
        net: net::Config::default(),
        trust: Trust::Warn,
        launcher: launcher(tracker),
        environment: BTreeMap::new(),
        spans: Spans::default(),
    };
    External::new(setup).expect("the defaults are valid")
}
