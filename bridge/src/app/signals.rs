//! Signals: the rules, the local agent and its listener, and the engine API.

use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::TcpListener;

use crate::config::Config;
use forge_base::tasks::Tasks;
use forge_base::vault::Vault;
use forge_server as http;
use forge_signals::agent::{Agent, Setup};
use forge_signals::config::Listen;
use forge_signals::engine::{self, Engine};
use forge_signals::forward::{self, Forwarder, Upstream};
use forge_signals::{Ledger, Terms, ledger};
use forge_store::Store;

/// Reads the rules, the interventions that are open, and the sessions of the agent.
pub(super) async fn open(
    config: &Config,
    store: &Arc<dyn Store>,
    vault: &Vault,
    tracker: &Tasks,
) -> anyhow::Result<Agent> {
    let clock = store.node().clock();
    let ledger = ledger::Setup {
        store: Arc::clone(store) as _,
        clock,
        milestones: config.signals.milestones.clone(),
        terms: Terms::read(&config.signals)?,
        tracker: tracker.clone(),
    };
    let ledger = Ledger::open(ledger).await;
    let setup = Setup {
        config: config.signals.clone(),
        store: Arc::clone(store) as _,
        ledger: ledger.context("the interventions of signals cannot be read")?,
        clock,
    };
    let opened = Agent::open(setup, &**store, vault).await;
    opened.context("the sessions of signals cannot be read")
}

/// Reads the sessions of the engine API, whose signals count in the same ledger.
pub(super) async fn open_engine(
    config: &Config,
    store: &Arc<dyn Store>,
    ledger: Ledger,
) -> anyhow::Result<Engine> {
    let setup = engine::Setup {
        config: config.signals.clone(),
        store: Arc::clone(store) as _,
        ledger,
        clock: store.node().clock(),
    };
    let opened = Engine::open(setup).await;
    opened.context("the sessions of signals cannot be read")
}

/// Forwarder to the engine of a team, if one is configured.
pub(super) async fn open_forwarder(
    config: &Config,
    store: &Arc<dyn Store>,
    agent: &Agent,
) -> anyhow::Result<Option<Forwarder>> {
    let Some(upstream) = Upstream::open(&config.signals.upstream, &config.net)? else {
        return Ok(None);
    };
    let opened = Forwarder::open(forward::Setup {
        upstream,
        store: Arc::clone(store) as _,
        agent: agent.clone(),
        milestones: config.signals.milestones.clone(),
        clock: store.node().clock(),
    });
    let opened = opened.await;
    opened
        .map(Some)
        .context("the position of forwarding cannot be read")
}

/// Listener of the agent, and its state for health reports. An address that is in use is no reason not to start; on a
/// bridge that other machines reach there is no agent.
pub(super) async fn listen(config: &Config) -> (Option<TcpListener>, http::AgentState) {
    let Listen::At(address) = config.signals.listen else {
        return (None, http::AgentState::Off);
    };
    if !config.listen.ip().is_loopback() {
        return (None, http::AgentState::Off);
    }
    let bound = TcpListener::bind(address).await;
    let bound = bound.and_then(|listener| Ok((listener.local_addr()?, listener)));
    match bound {
        Ok((address, listener)) => (Some(listener), http::AgentState::At(address)),
        Err(error) => {
            tracing::error!(
                "no signals are received: cannot listen on {address}: {error}; set signals.listen to another \
                 address, or to \"off\""
            );
            (None, http::AgentState::Unavailable)
        }
    }
}
