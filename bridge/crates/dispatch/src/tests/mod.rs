//! Scheduler tests: a dispatcher over the in-memory store, whose answers a test can hold back, and an adapter whose
//! executions last until the test ends them.

mod claim;
mod gated;
mod probe;
mod wait;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forge_adapter_api::HealthStatus;
use jiff::Timestamp;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use forge_base::event::{NewEvent, kind};
use forge_base::id::DispatchId;
use forge_base::ownership::Trust;
use forge_base::tasks::Tasks;
use forge_base::time::Clock;
use forge_base::trace::Spans;
use forge_base::vault::Vault;
use forge_delivery::sign::Signer;
use forge_delivery::{self as delivery, Deliverer};
use forge_external::{self as external, External};
use forge_net as net;
use forge_net::guard::Guard;
use forge_plugin_host::{self as plugin, Adapter, Registry};
use forge_process::program::{Launcher, LauncherSettings};
use forge_signals::agent::{self as signals, Agent};
use forge_signals::{Ledger, Terms, ledger};
use forge_store::Store;
use forge_store::contract::sample::task;
use forge_store::memory::Memory;
use forge_store::record::{
    Claim, ClaimLimits, Claimed, DispatchRecord, DispatchState, NewDispatch, Requeue,
};
use forge_store::roles::{Accept as _, Executions as _, Records as _};

use super::finish::Finisher;
use super::idempotency;
use super::mcp::{self, Servers};
use super::request::tests::minimal;
use super::request::{DispatchRequest, Recovery};
use super::roles::Roles;
use super::{Config, Dispatcher, Setup};
use gated::Gated;
use probe::{PROVIDER, Probe};

const RETENTION: Duration = Duration::from_secs(60);
/// Time after which a condition that is never met fails the test.
const PATIENCE: Duration = Duration::from_secs(20);

struct Rig {
    store: Memory,
    gated: Arc<Gated>,
    probe: Arc<Probe>,
    adapter: Adapter,
    registry: Registry,
    dispatcher: Dispatcher,
    shutdown: CancellationToken,
    _state: TempDir,
}

impl Rig {
    /// Runs the scheduler over an adapter with this number of slots.
    async fn new(slots: u32) -> Self {
        let store = Memory::new();
        let gated = Arc::new(Gated::new(store.clone()));
        let probe = Arc::new(Probe::new(slots));
        let tracker = Tasks::here();
        let state = tempfile::tempdir().unwrap();
        let registry = registry(state.path(), &probe, &tracker).await;
        let all: Arc<dyn Store> = Arc::new(store.clone());
        let vault = Vault::from_key(&vec![7; 32].into()).unwrap();
        let config = Config {
            cancel_grace: Duration::from_millis(50),
            ..Config::default()
        };
        let setup = Setup {
            finisher: Finisher {
                store: Roles {
                    executions: Arc::clone(&gated) as _,
                    ..Roles::from(Arc::clone(&all))
                },
                clock: Clock::System,
                config: Arc::new(config),
                retention: RETENTION.into(),
                meters: Arc::default(),
                spans: Spans::default(),
                signals: agent(&all, &vault, &tracker).await,
            },
            registry: registry.clone(),
            deliverer: deliverer(&all, &vault).await,
            vault,
            client: client(),
            mcp: servers(&tracker),
            external: services(state.path(), &tracker),
            tracker,
        };
        let tracker = setup.tracker.clone();
        let dispatcher = Dispatcher::new(setup);
        let shutdown = CancellationToken::new();
        tracker.spawn(dispatcher.clone().run(shutdown.clone()));
        until("the first round", async || {
            (!dispatcher.inner.waiting_providers.is_at(PROVIDER)).then_some(())
        })
        .await;
        Self {
            store,
            gated,
            probe,
            adapter: registry.get(PROVIDER).unwrap(),
            registry,
            dispatcher,
            shutdown,
            _state: state,
        }
    }

    /// Runs one dispatch in one of two slots, and holds back the claim of a second one.
    async fn claiming() -> (Self, [DispatchId; 2]) {
        let rig = Self::new(2).await;
        let running = rig.queue(new()).await;
        rig.executed(1).await;
        rig.gated.claims.close();
        let claimed = rig.queue(new()).await;
        rig.claimed(2).await;
        (rig, [running, claimed])
    }

    fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.dispatcher.inner.tracker.spawn(task)
    }

    /// Puts a dispatch into the queue and wakes the scheduler.
    async fn queue(&self, new: NewDispatch) -> DispatchId {
        let id = new.id;
        self.store.accept(new).await.unwrap();
        self.dispatcher.wake();
        id
    }

    async fn dispatch(&self, id: DispatchId) -> DispatchRecord {
        self.store.dispatch(id).await.unwrap().unwrap()
    }

    /// Error code of a dispatch once it is finished; empty if it ended well.
    async fn finished(&self, id: DispatchId) -> String {
        until("the end of the dispatch", async || {
            match self.dispatch(id).await.state {
                DispatchState::Finished { error_code, .. } => Some(error_code.unwrap_or_default()),
                DispatchState::Queued | DispatchState::Running { .. } => None,
            }
        })
        .await
    }

    /// Waits until a claim has marked this number of dispatches and its answer is held back.
    async fn claimed(&self, count: u64) {
        self.gated.claims.reached(1).await;
        assert_eq!(self.store.counts().running, count);
    }

    /// Waits until this number of executions has begun.
    async fn executed(&self, count: usize) {
        until("the executions to begin", async || {
            (self.probe.begun() == count).then_some(())
        })
        .await;
    }

    /// Asserts that the adapter's permits are all given back.
    async fn is_free(&self) {
        until("the slots to be free", async || {
            (self.adapter.running() == 0).then_some(())
        })
        .await;
    }

    /// Makes the adapter's health report offline.
    async fn goes_offline(&self) {
        self.probe.set_offline();
        self.registry.refresh_health().await;
        assert_eq!(self.adapter.health().status, HealthStatus::Offline);
    }

    /// Begins an attempt of all that can start and puts them back, without the scheduler.
    async fn attempt_all(&self) {
        let limits = ClaimLimits {
            count: usize::MAX,
            max_attempts: u32::MAX,
            home_grace: None,
        };
        let event = |kind| NewEvent::new(kind, Timestamp::now());
        let claimed = self
            .store
            .claim(PROVIDER, limits, event(kind::STARTED))
            .await;
        for Claimed { begun, .. } in claimed.unwrap() {
            let requeue = Requeue {
                event: event(kind::RETRYING),
            };
            let claim = Claim::Attempt(begun.lease);
            self.store.requeue(claim, requeue).await.unwrap();
        }
    }
}

/// Request that is tried again after a crash.
fn request() -> DispatchRequest {
    DispatchRequest {
        recovery: Recovery::Retry,
        ..minimal()
    }
}

/// Dispatch of that request to the probe.
fn new() -> NewDispatch {
    let now = Timestamp::now();
    NewDispatch {
        provider: PROVIDER.to_owned(),
        pinned: true,
        request: idempotency::record(&request()).request,
        secrets: None,
        accepted_at: now,
        start_by: Timestamp::MAX,
        callback: None,
        events: vec![NewEvent::new(kind::ACCEPTED, now)],
        ..task(&DispatchId::new().to_string())
    }
}

/// Polls until there is a value.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        sleep(Duration::from_millis(2)).await;
    }
}

/// Registry with the probe, and an adapter without a library.
async fn registry(state: &Path, probe: &Arc<Probe>, tracker: &Tasks) -> Registry {
    let setup = plugin::Setup {
        config: plugin::Config {
            health_age: Duration::ZERO,
            ..plugin::Config::default()
        },
        tables: BTreeMap::new(),
        env: BTreeMap::new(),
        store_id: "test".to_owned(),
        epoch: 0,
        state_dir: state.to_owned(),
        temp_dir: None,
        supervisor: Vec::new(),
        relay: Vec::new(),
        user: None,
        users: BTreeMap::new(),
        built_in: Some(Arc::clone(probe) as _),
        tracker: tracker.clone(),
    };
    Registry::start(setup).await.unwrap().0
}

async fn agent(store: &Arc<dyn Store>, vault: &Vault, tracker: &Tasks) -> Agent {
    let ledger = ledger::Setup {
        store: Arc::clone(store) as _,
        clock: Clock::System,
        milestones: Vec::new(),
        terms: Terms::default(),
        tracker: tracker.clone(),
    };
    let setup = signals::Setup {
        config: forge_signals::config::Config::default(),
        store: Arc::clone(store) as _,
        ledger: Ledger::open(ledger).await.unwrap(),
        clock: Clock::System,
    };
    Agent::open(setup, &**store, vault).await.unwrap()
}

async fn deliverer(store: &Arc<dyn Store>, vault: &Vault) -> Deliverer {
    let config = delivery::Config::default();
    Deliverer::new(delivery::Setup {
        store: Arc::clone(store) as _,
        client: client(),
        signer: Signer::open(&config, &**store, vault).await.unwrap(),
        vault: vault.clone(),
        clock: Clock::System,
        config,
        retention: RETENTION.into(),
        spans: Spans::default(),
    })
}

fn client() -> net::Client {
    net::Client::new(&net::Config::default(), Guard::new(&[]).unwrap()).unwrap()
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

fn servers(tracker: &Tasks) -> Servers {
    let setup = mcp::Setup {
        config: mcp::Config::default(),
        client: client(),
        launcher: launcher(tracker),
    };
    Servers::new(setup).expect("an empty configuration is valid")
}

/// External services of an empty folder.
fn services(root: &Path, tracker: &Tasks) -> External {
    let setup = external::Setup {
        config: external::Config {
            root: root.to_owned(),
            ..external::Config::default()
        },
        net: net::Config::default(),
        launcher: launcher(tracker),
        trust: Trust::Warn,
        environment: BTreeMap::new(),
        spans: Spans::default(),
    };
    External::new(setup).expect("the defaults are valid")
}
