//! Composition root: builds and wires all components once, in the order of `ARCHITECTURE.md`, "Start and
//! shutdown", and stops them in reverse order. The only module that knows all of them.

pub mod check;
pub mod conform;
mod external;
mod external_provider;
mod health;
mod leftovers;
mod listeners;
mod node;
mod nodes;
pub mod receiver;
mod relay;
mod reload;
mod reseal;
mod runs;
pub mod secrets;
mod signals;
mod store;
mod sweep;
mod temp_dir;
pub mod trial;
pub mod upkeep;
mod users;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant as SteadyInstant};

use anyhow::Context;
use forge_adapter_api::Profile;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::config::{Config, Retention};
use crate::otlp::Exporter;
use crate::registration::{self, Endpoint, Gateway, Registrar};
use forge_base::failpoint;
use forge_base::metrics::Counter;
use forge_base::reloadable::Reloadable;
use forge_base::tasks::{IoRuntime, Tasks};
use forge_base::vault::Vault;
use forge_delivery::sign::Signer;
use forge_delivery::{self as delivery, Deliverer};
use forge_dispatch::finish::Finisher;
use forge_dispatch::mcp::{self, Servers};
use forge_dispatch::{self as dispatch, Dispatcher};
use forge_external::External;
use forge_net as net;
use forge_net::guard::Guard;
use forge_plugin_host::{self as plugin, Adapter, Registry, Relayed};
use forge_process::{Children, Swept};
use forge_runs::Runs;
use forge_runs::git::FolderClaim;
use forge_server::auth::Auth;
use forge_server::tls::Tls;
use forge_server::{AgentState, Phase};
use forge_signals::agent::Agent;
use forge_signals::engine::Engine;
use forge_signals::refusal::Refusals;
use forge_store::Store;

use health::{poll_agents, poll_health};
use node::Node;
use relay::Relay;
use reseal::Resealer;
use secrets::open_vault;
use store::Opened;
use sweep::sweep;
use users::Users;

/// Time after the grace in which cancelled executions can record their end.
const HALT: Duration = Duration::from_secs(5);

/// Start parameters besides the configuration.
#[derive(Debug, Default, Clone)]
pub struct Options {
    /// Environment from which adapters are configured.
    pub environment: BTreeMap<String, String>,
    /// Log lines that were dropped, for the metrics.
    pub dropped_log_lines: Arc<Counter>,
}

impl Options {
    pub fn new(environment: BTreeMap<String, String>) -> Self {
        Self {
            environment,
            ..Self::default()
        }
    }
}

/// Running bridge. Dropping it without [`Bridge::stop`] has the effect of a crash.
pub struct Bridge {
    pub addr: SocketAddr,
    pub store: Arc<dyn Store>,
    pub registry: Registry,
    external: External,
    agent: Agent,
    engine: Engine,
    refusals: Refusals,
    runs: Runs,
    pub signer: Signer,
    /// Configuration in force; a reload changes parts of it.
    config: Config,
    auth: Auth,
    tls: Option<Tls>,
    guard: Guard,
    vault: Vault,
    /// Notified when the keys of the vault have changed.
    key_rotated: Arc<Notify>,
    /// Retention of finished records, for the components that write them; the sweep uses `retention`.
    kept: Reloadable<Duration>,
    retention: Reloadable<Retention>,
    dispatcher: Dispatcher,
    deliverer: Deliverer,
    children: Children,
    /// Lock of `data_dir`, unless the store holds it.
    _node: Option<Node>,
    /// Claim on the folder of runs.
    _runs_claim: Option<FolderClaim>,
    instance_id: Arc<str>,
    /// Hash of the token to send to the gateway registry.
    announced: watch::Sender<Option<String>>,
    phase: watch::Sender<Phase>,
    /// Stops the tasks that start new work.
    starting: CancellationToken,
    /// Closes the listener.
    closing: CancellationToken,
    /// Stops all other tasks.
    ending: CancellationToken,
    /// Stops the trace exporter, after all other tasks.
    last: CancellationToken,
    tracker: Tasks,
    edge: IoRuntime,
}

impl Bridge {
    /// Starts all components; on return, requests are answered and queued work is processed.
    pub async fn start(config: Config, options: Options) -> anyhow::Result<Self> {
        let started = SteadyInstant::now();
        let auth = Auth::new(&config.auth)?;
        auth.check_listen(config.listen)?;
        let tls = Tls::open(&config.tls)?;
        let guard = Guard::new(&config.callback.allow)?;
        let client = net::Client::new(&config.net, guard.clone())?;
        external::check(&config)?;
        let endpoint = Endpoint::open(&config.registration, config.listen, &config.net)?;
        let instance_id: Arc<str> = Uuid::now_v7().to_string().into();
        let (spans, exporter) = Exporter::open(&config.otlp, &config.net, &instance_id)?;
        let claim = runs::claim(&config).await;
        let Opened { store, owner, node } = store::open(&config).await?;
        reseal::refuse_new_key(&*store, &config).await?;
        let vault = open_vault(&config).await?;
        nodes::share_keys(&*store, &vault).await?;
        reseal::fit(&*store, &vault).await?;
        let children = Children::new(&config.process, &owner)?;
        let users = Users::find(&config, &children)?;
        let user_ids = users::ids(&users);
        let temp_dir = temp_dir::open(&config, &user_ids)?;
        leftovers::reap(&children).await?;
        let clock = store.node().clock();
        let kept = Reloadable::from(config.retention.records);
        let tracker = Tasks::here();
        let signals_store = Arc::<dyn Store>::clone(&store);
        let agent = signals::open(&config, &signals_store, &vault, &tracker).await?;
        let engine = signals::open_engine(&config, &signals_store, agent.ledger().clone()).await?;
        let forwarder = Box::pin(signals::open_forwarder(&config, &signals_store, &agent)).await?;
        let refusals = Refusals::new(signals_store as _, clock);
        let finisher = Finisher {
            store: Arc::clone(&store).into(),
            clock,
            config: Arc::new(dispatch::Config {
                checkouts: Some(runs::folder(&config)),
                program_users: user_ids.clone(),
                ..config.dispatch.clone()
            }),
            retention: kept.clone(),
            meters: Arc::default(),
            spans: spans.clone(),
            signals: agent.clone(),
        };
        leftovers::settle_interrupted(&finisher).await?;
        let remotes = runs::remotes(&config, &guard)?;
        let checks = runs::checks(&config)?;
        let (runs_claim, claimed) = runs::bind(&config, claim, &owner);
        let git = match claimed {
            Ok(()) => {
                runs::find_git(&config, remotes, &children, &owner, &user_ids, &tracker).await
            }
            Err(reason) => Err(reason),
        };
        if let Err(reason) = &git {
            tracing::warn!("runs are not available: {reason}");
        }

        let launcher = users::launcher(users.default.as_ref(), &children, &owner, &tracker);
        let environment = options.environment.clone();
        let external =
            external::open(&config, launcher.clone(), environment, spans.clone()).await?;
        let (registry, relayed) = Registry::start(plugin::Setup {
            config: plugin::Config {
                strict: config.strict,
                ..config.plugin.clone()
            },
            tables: config.adapters.clone(),
            env: options.environment,
            store_id: owner,
            epoch: store.epoch(),
            state_dir: config.data_dir.join("state"),
            temp_dir,
            supervisor: children.supervisor().to_vec(),
            relay: children.relay().to_vec(),
            user: users.default.clone(),
            users: users.of_adapters,
            built_in: Some(Arc::new(external_provider::Provider::new(external.clone()))),
            tracker: tracker.clone(),
        })
        .await?;
        let signer = Signer::open(&config.callback, &*store, &vault).await?;
        let mcp = Servers::new(mcp::Setup {
            config: config.mcp.clone(),
            client: client.clone(),
            launcher: launcher.clone(),
        })?;
        let deliverer = Deliverer::new(delivery::Setup {
            store: Arc::<dyn Store>::clone(&store),
            client: client.clone(),
            signer: signer.clone(),
            vault: vault.clone(),
            clock,
            config: config.callback.clone(),
            retention: kept.clone(),
            spans,
        });
        let dispatcher = Dispatcher::new(dispatch::Setup {
            finisher,
            registry: registry.clone(),
            deliverer: deliverer.clone(),
            vault: vault.clone(),
            client,
            mcp,
            external: external.clone(),
            tracker: tracker.clone(),
        });

        let starting = CancellationToken::new();
        let parts = runs::Parts {
            store: Arc::<dyn Store>::clone(&store),
            dispatcher: dispatcher.clone(),
            retention: kept.clone(),
            git,
            launcher,
            check_user: user_ids.default,
            tracker: tracker.clone(),
            shutdown: starting.clone(),
        };
        let runs = runs::open(&config, checks, parts);
        let listener = TcpListener::bind(config.listen).await.with_context(|| {
            format!(
                "cannot listen on {} (set by `listen`, BRIDGE_LISTEN)",
                config.listen
            )
        })?;
        let (agent_listener, agent_state) = signals::listen(&config).await;
        if let AgentState::At(address) = agent_state {
            agent.set_address(address);
        }
        let bridge = Self {
            addr: listener.local_addr()?,
            store,
            registry,
            external,
            agent,
            engine,
            refusals,
            runs,
            signer,
            dispatcher,
            deliverer,
            children,
            _node: node,
            _runs_claim: runs_claim,
            instance_id,
            announced: watch::Sender::new(auth.announced()),
            phase: watch::Sender::new(Phase::Starting),
            starting,
            closing: CancellationToken::new(),
            ending: CancellationToken::new(),
            last: CancellationToken::new(),
            tracker,
            edge: IoRuntime::new()?,
            auth,
            tls,
            guard,
            vault,
            key_rotated: Arc::default(),
            kept,
            retention: config.retention.clone().into(),
            config,
        };
        bridge.listen(listener, started, options.dropped_log_lines, agent_state)?;
        if let (Some(listener), AgentState::At(address)) = (agent_listener, agent_state) {
            bridge.serve_agent(listener, address)?;
        }
        if let Some(exporter) = exporter {
            let exporting = exporter.run(bridge.last.clone());
            bridge.tracker.spawn(exporting);
        }
        bridge.work(relayed).await;
        if let Some(forwarder) = forwarder {
            bridge.tracker.spawn(forwarder.run(bridge.ending.clone()));
        }
        bridge.phase.send_replace(Phase::Serving);
        if let Some(endpoint) = endpoint {
            bridge.register(endpoint);
        }
        tracing::info!(http.address = %bridge.addr, "listening on {}", bridge.url());
        if let Some(warning) = bridge.exposure() {
            tracing::warn!("{warning}");
        }
        if bridge.auth.is_open() {
            tracing::warn!("no token is configured: every local process may dispatch");
        }
        for number in bridge.config.auth.short_tokens() {
            tracing::warn!("token {number} of auth.tokens is short enough to be guessed");
        }
        Ok(bridge)
    }

    /// Base URL, from the listen address.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.addr)
    }

    /// Returns when `strict` ends the process because the store's files were removed or replaced; never otherwise.
    pub async fn lost_store(&self) {
        match self.config.strict {
            true => self.store.moved().await,
            false => std::future::pending().await,
        }
    }

    /// Warning if traffic can be read by others: no TLS on a public address, or a problem of the certificate.
    fn exposure(&self) -> Option<String> {
        match &self.tls {
            Some(tls) => tls.warning(),
            None if self.addr.ip().is_loopback() => None,
            None => Some(format!(
                "{} is reachable from the network without TLS: tokens and agent output are sent unencrypted; set \
                 tls.cert and tls.key, or allow connections only from a proxy that terminates TLS",
                self.addr
            )),
        }
    }

    /// Starts the background tasks.
    async fn work(&self, relayed: mpsc::Receiver<Relayed>) {
        let (tracker, ending) = (&self.tracker, &self.ending);
        let relay = Relay {
            store: Arc::<dyn Store>::clone(&self.store),
            dispatcher: self.dispatcher.clone(),
        };
        let recording = ending.clone();
        tracker.spawn(async move {
            recording
                .run_until_cancelled_owned(relay.run(relayed))
                .await
        });
        self.registry.start_relays().await;
        // Before the dispatcher starts, which routes by it.
        self.registry.refresh_agents().await;
        let children = self.children.clone().run(ending.clone());
        tracker.spawn(async move {
            if let Err(error) = children.await {
                tracing::error!("orphaned processes are not swept: {error}");
            }
        });
        tracker.spawn(self.external.clone().run(ending.clone()));
        tracker.spawn(self.external.clone().check_health(ending.clone()));
        tracker.spawn(self.agent.clone().run(ending.clone()));
        tracker.spawn(self.engine.clone().run(ending.clone()));
        tracker.spawn(self.refusals.clone().run(ending.clone()));
        tracker.spawn(poll_health(self.registry.clone(), ending.clone()));
        tracker.spawn(poll_agents(self.registry.clone(), ending.clone()));
        tracker.spawn(sweep(
            Arc::<dyn Store>::clone(&self.store),
            self.retention.clone(),
            ending.clone(),
        ));
        let resealer = Resealer {
            store: Arc::<dyn Store>::clone(&self.store),
            vault: self.vault.clone(),
            key_rotated: Arc::clone(&self.key_rotated),
        };
        tracker.spawn(resealer.run(ending.clone()));
        tracker.spawn(self.deliverer.clone().run(ending.clone(), tracker.clone()));
        tracker.spawn(self.dispatcher.clone().run(self.starting.clone()));
        self.follow_nodes();
        if let Err(error) = self.runs.recover().await {
            tracing::error!("runs of an earlier bridge do not go on: {error}");
        }
    }

    /// Registers this bridge at the gateway registry until it drains.
    fn register(&self, endpoint: Endpoint) {
        let registry = self.registry.clone();
        let mut config = self.config.registration.clone();
        config.public_url.get_or_insert_with(|| self.url());
        let registrar = Registrar::new(registration::Setup {
            endpoint,
            store_id: self.store.store_id().to_owned(),
            instance_id: Arc::clone(&self.instance_id),
            address: self.addr,
            gateways: Box::new(move || registry.routable().iter().map(gateway).collect()),
            token_hash: self.announced.subscribe(),
            config,
        });
        self.tracker.spawn(registrar.run(self.starting.clone()));
    }

    /// Shuts down as in `ARCHITECTURE.md`, "Start and shutdown": reports not ready at once, accepts dispatches
    /// for `drain.accept`, gives executions `drain.grace`, then ends the rest by recovery policy. Returns the reason if the
    /// store could not be closed.
    pub async fn stop(self) -> Option<String> {
        let drain = &self.config.drain;
        let begun = Instant::now();
        let grace = begun + drain.grace;
        self.phase.send_replace(Phase::Draining);
        self.starting.cancel();
        tracing::info!("draining");
        failpoint::point("stop.draining");
        let accepting = async {
            sleep(drain.accept).await;
            self.closing.cancel();
        };
        let running = async {
            self.dispatcher.drain(grace, grace + HALT).await;
            self.deliverer.finish_due(grace).await;
        };
        tokio::join!(accepting, running);
        failpoint::point("stop.drained");
        self.ending.cancel();
        self.deliverer
            .drain(grace.max(Instant::now() + Duration::from_millis(100)))
            .await;
        self.registry.shutdown(HALT).await;
        let children = self.children.clone();
        // Everything that was started has ended; what is left has escaped from its supervisor.
        let swept = tokio::task::spawn_blocking(move || children.end()).await;
        if let Ok(Swept { killed: 1.., .. } | Swept { left: 1.., .. }) = swept {
            tracing::warn!("processes without a supervisor were killed: {swept:?}");
        }
        self.last.cancel();
        self.tracker.close();
        if timeout_at(Instant::now() + HALT, self.tracker.wait())
            .await
            .is_err()
        {
            tracing::warn!("{} tasks did not end", self.tracker.running());
        }
        failpoint::point("stop.closing");
        let left_open = self.store.close().await;
        failpoint::point("stop.closed");
        if left_open.is_none() {
            tracing::info!("stopped");
        }
        left_open
    }
}

/// Gateway of an adapter: its profile, with the concurrency limit that the bridge enforces.
fn gateway(adapter: &Adapter) -> Gateway {
    let bound = u32::try_from(adapter.max_concurrent()).unwrap_or(u32::MAX);
    let profile = adapter.profile().map(|profile| Profile {
        max_concurrent: bound,
        ..Profile::clone(&profile)
    });
    Gateway {
        provider: adapter.provider().to_owned(),
        profile,
    }
}
