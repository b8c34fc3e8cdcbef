//! Builds every component and wires them, once, in the order that `contract.md` §5 gives; ends them in
//! the other order. The only place that knows everything.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use forge_adapter_api::HealthStatus;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::delivery::Deliverer;
use crate::delivery::sign::Signer;
use crate::dispatch::Dispatcher;
use crate::dispatch::finish::Finisher;
use crate::dispatch::recover::recover;
use crate::event::{NewEvent, kind};
use crate::http::auth::Auth;
use crate::http::{self, Life, Phase};
use crate::net;
use crate::net::guard::Guard;
use crate::plugin::{self, Registry, Relayed};
use crate::process;
use crate::store::Store;
use crate::store::sqlite::Sqlite;
use crate::time::Clock;
use crate::vault::{KeySource, Vault};

/// Events of adapters outside of any execution are written in batches of at most so many.
const RELAY_BATCH: usize = 128;
/// How often adapters are asked for their health when nobody else asks.
const HEALTH_EVERY: Duration = Duration::from_secs(15);
/// What those still running get after their grace, to be told and to write how they ended.
const HALT: Duration = Duration::from_secs(5);

/// What a bridge is started with besides its configuration.
#[derive(Debug, Default)]
pub struct Options {
    /// What adapters are configured from.
    pub environment: BTreeMap<String, String>,
    /// What a loosely guarded library file leads to.
    pub trust: plugin::Trust,
    /// Opened already; else `listen` is.
    pub listener: Option<std::net::TcpListener>,
}

/// A bridge that serves. Dropped without [`Bridge::stop`] it is a crash.
pub struct Bridge {
    pub address: SocketAddr,
    pub store: Arc<dyn Store>,
    pub registry: Registry,
    pub signer: Signer,
    config: Config,
    dispatcher: Dispatcher,
    deliverer: Deliverer,
    phase: watch::Sender<Phase>,
    /// Ends what starts new work.
    starting: CancellationToken,
    /// Closes the socket.
    closing: CancellationToken,
    /// Ends everything else.
    ending: CancellationToken,
    tracker: TaskTracker,
    server: JoinHandle<()>,
}

impl Bridge {
    /// Starts everything; when it returns, requests are answered and work is done.
    pub async fn start(config: Config, options: Options) -> anyhow::Result<Self> {
        let auth = Auth::new(&config.auth).context("auth")?;
        auth.check_listen(config.listen)?;
        let guard = Guard::new(&config.callback.allow)?;
        let client = net::Client::new(&config.net, guard.clone())?;
        let vault = Vault::open(&KeySource {
            key: config.secret.key.clone(),
            file: config.secret.key_file.clone(),
            data_dir: config.data_dir.clone(),
        })?;
        let sqlite = Sqlite::open(&config.store, &config.data_dir)?;
        let store: Arc<dyn Store> = Arc::new(sqlite);
        process::reap::reap(store.store_id()).context("leftover processes")?;

        let clock = Clock::System;
        let finisher = Finisher {
            store: Arc::clone(&store),
            clock,
            limits: config.dispatch.clone().into(),
            retention: config.retention.records,
        };
        let recovered = recover(&finisher, config.dispatch.max_attempts).await?;
        if recovered.ended + recovered.requeued > 0 {
            tracing::warn!(
                requeued = recovered.requeued,
                ended = recovered.ended,
                "the last process stopped in the middle of work: {} back in the queue, {} ended",
                recovered.requeued,
                recovered.ended,
            );
        }

        let tracker = TaskTracker::new();
        let (registry, relayed) = Registry::start(plugin::Setup {
            config: config.plugin.clone(),
            tables: config.adapters.clone(),
            environment: options.environment,
            trust: options.trust,
            store_id: store.store_id().to_owned(),
            state_dir: config.data_dir.join("state"),
            supervisor: process::supervisor_argv(),
            tracker: tracker.clone(),
        })
        .await?;
        let signer = Signer::open(&config.callback, Arc::clone(&store), &vault).await?;
        todo!()
    }
}
