//! HTTP interface, and the only user of axum: reads requests, calls one component each, writes answers.
//! Depends on the handles of the components, never on how they store or run things.
#![forbid(unsafe_code)]

pub mod agent;
pub mod auth;
pub mod error;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod metrics;
pub mod origin_guard;
pub mod serve;
pub mod tls;

mod adapters;
mod approvals;
mod attempts;
mod body;
mod compression;
mod console;
mod contents;
mod cost;
mod deliveries;
mod dispatch;
mod durable_command;
mod encode;
mod engine;
mod event_fanout;
mod events;
mod external;
mod follow;
mod health;
mod limit;
mod management;
mod management_target;
mod media_type;
mod nodes;
mod query;
mod record;
mod request_span;
mod runs;
mod signal_body;
mod signals;
mod stall_guard;
mod stream_ticket;
#[cfg(test)]
mod testing;
pub mod throughput;
pub mod token;
mod traffic;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use axum::Router;
use axum::extract::{self, FromRef, Request};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use forge_base::metrics::Counter;
use forge_delivery::Deliverer;
use forge_dispatch::Dispatcher;
use forge_external::External;
use forge_plugin_host::Registry;
use forge_process::Children;
use forge_runs::Runs;
use forge_signals::agent::Agent;
use forge_signals::engine::Engine;
use forge_signals::refusal::Refusals;
use forge_store::Store;
use forge_store::roles::{EventLog, Outbox};

use auth::Auth;
use body::BodyReader;
use compression::compressed;
use event_fanout::EventFanout;
use events::StreamLimit;
use origin_guard::{OriginRules, Pages};
use signal_body::SignalReader;
use throughput::Throughput;
use traffic::Traffic;

pub use serve::serve;

/// Settings of the listener: names served, limits and timeouts.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Host names served in addition to the local ones; if the listen address is not loopback, the only ones
    /// served.
    pub hosts: Vec<String>,
    /// Origins whose pages may call, in addition to those of `localhost`.
    pub origins: Vec<String>,
    pub body_limit_bytes: usize,
    /// Time for a complete request body; after it the request is answered 408.
    #[serde(with = "forge_base::duration")]
    pub body_timeout: Duration,
    /// Time for the headers of a request; after it the connection is closed.
    #[serde(with = "forge_base::duration")]
    pub header_timeout: Duration,
    /// Time after which a connection that is idle between two requests is closed, `header_timeout` at the
    /// earliest while no connection slot is free. Longer than clients keep an idle connection, so that the
    /// client closes first.
    #[serde(with = "forge_base::duration")]
    pub idle_timeout: Duration,
    /// Time after which a connection is closed if its client reads nothing of an answer.
    #[serde(with = "forge_base::duration")]
    pub write_timeout: Duration,
    /// Maximum concurrent connections; further ones wait in the kernel's listen backlog.
    pub max_connections: usize,
    /// Maximum event streams among them; further ones are answered 429, so that readers leave connections for
    /// work.
    pub max_streams: usize,
    /// Time that requests in progress have to end after the listener closed.
    #[serde(with = "forge_base::duration")]
    pub close_grace: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            origins: Vec::new(),
            body_limit_bytes: 10 * 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(60),
            max_connections: 4096,
            max_streams: 2048,
            close_grace: Duration::from_secs(5),
        }
    }
}

/// Phase of the process, reported by the readiness probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Starting,
    Serving,
    Draining,
}

/// State of this process, for health reports and open streams.
#[derive(Clone, Debug)]
pub struct ProcessState {
    pub instance_id: Arc<str>,
    pub started: Instant,
    pub phase: watch::Receiver<Phase>,
    /// Ends event streams and waiting requests; the token that also ends [`serve()`].
    pub closing: CancellationToken,
    /// Programs that adapters started.
    pub children: Children,
    /// Log lines that could not be written or did not fit into their queue.
    pub dropped_log_lines: Arc<Counter>,
}

/// State of the listener for signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentState {
    Off,
    At(SocketAddr),
    /// Its address is in use.
    Unavailable,
}

/// Receivers of signals.
#[derive(Clone, Debug)]
pub struct SignalReceivers {
    pub agent: Agent,
    /// State of the agent's own listener.
    pub state: AgentState,
    pub engine: Engine,
    pub refusals: Refusals,
}

/// Handles available to handlers; each handler extracts only those in its signature.
#[derive(Clone)]
pub struct Components {
    pub store: Arc<dyn Store>,
    pub dispatcher: Dispatcher,
    pub deliverer: Deliverer,
    pub registry: Registry,
    pub external: External,
    pub runs: Runs,
    pub signals: SignalReceivers,
    pub auth: Auth,
    pub config: Arc<Config>,
    pub metrics: metrics::Config,
    /// Address that this router is served on.
    pub listen: SocketAddr,
    pub process: ProcessState,
    pub throughput: Throughput,
}

/// All routes.
pub fn router(state: Components) -> Router {
    let routes = Router::new()
        .route("/api/health", get(health::show))
        .route("/api/health/live", get(health::live))
        .route("/api/health/ready", get(health::ready))
        .route("/api/v2/dispatch", post(dispatch::submit))
        .route("/api/v2/dispatch/{id}", get(dispatch::show))
        .route("/api/v2/dispatch/{id}/request", get(dispatch::request))
        .route("/api/v2/dispatch/{id}/output", get(contents::output))
        .route("/api/v2/dispatch/{id}/files/{name}", get(contents::file))
        .route("/api/v2/dispatch/{id}/events", get(events::of_dispatch))
        .route("/api/v2/dispatch/{id}/cancel", post(dispatch::cancel))
        .route(
            "/api/v2/deliveries/destinations/{origin}/close",
            post(deliveries::close),
        )
        .route("/api/v2/deliveries/retry", post(deliveries::retry_many))
        .route("/api/v2/deliveries/{id}", get(deliveries::show))
        .route("/api/v2/deliveries/{id}/retry", post(deliveries::retry))
        .route("/api/v2/events", get(events::of_all))
        .route("/api/v2/stream-tickets", post(stream_ticket::issue))
        .route("/api/v2/nodes", get(nodes::list))
        .route("/api/v2/adapters/{provider}", get(adapters::show))
        .route("/api/v2/adapters/{provider}/reload", post(adapters::reload))
        .route("/api/v2/adapters/{provider}/pause", post(adapters::pause))
        .route("/api/v2/adapters/{provider}/resume", post(adapters::resume))
        .route("/api/v2/approvals", get(approvals::list))
        .route("/api/v2/approvals/{id}/approve", post(approvals::approve))
        .route("/api/v2/approvals/{id}/reject", post(approvals::reject))
        .route("/api/v2/external", get(external::list))
        .route(
            "/external/{service}/commands/{name}",
            post(external::command),
        )
        .route("/external/{service}/queries/{name}", post(external::query))
        .route("/api/v2/signals/sessions/{id}", get(signals::show))
        .route("/api/v2/signals/rules", get(signals::rules))
        .route("/engine/v1/signals", post(engine::receive))
        .route("/metrics", get(metrics::show))
        .merge(compressed(lists()))
        .merge(agent::on_main())
        .merge(management::routes())
        .merge(runs::routes())
        .merge(console::routes())
        .fallback(request_span::unknown_route)
        .method_not_allowed_fallback(request_span::wrong_method);
    let rules = OriginRules {
        config: Arc::clone(&state.config),
        listen: state.listen,
        pages: Pages::Local,
    };
    let traffic = Traffic::default();
    let store = Arc::clone(&state.store);
    let node = store.node();
    let shares = node.lease.is_some();
    let node = HeaderValue::from_str(&node.id).ok().filter(|_| shares);
    let shared = AppState {
        traffic: traffic.clone(),
        body_reader: BodyReader::new(&state.config),
        signal_reader: SignalReader::new(&state.config),
        fanout: EventFanout::new(Arc::clone(&state.store), state.process.closing.clone()),
        stream_limit: StreamLimit::new(state.config.max_streams),
        state,
    };
    routes
        .layer(from_fn_with_state(
            Arc::new(Middleware {
                rules,
                store,
                traffic,
                node,
            }),
            apply_middleware,
        ))
        .with_state(Shared(Arc::new(shared)))
}

fn lists() -> Router<Shared> {
    Router::new()
        .route("/api/v2/dispatches", get(dispatch::list))
        .route("/api/v2/deliveries", get(deliveries::list))
        .route(
            "/api/v2/deliveries/destinations",
            get(deliveries::destinations),
        )
        .route("/api/v2/adapters", get(adapters::list))
        .route("/api/v2/signals/sessions", get(signals::sessions))
        .route("/api/v2/signals/totals", get(signals::totals))
        .route("/api/v2/cost", get(cost::totals))
        .route("/api/v2/signals/interventions", get(signals::interventions))
        .route("/api/v2/throughput", get(throughput::show))
}

/// Names the node that has answered.
const NODE: HeaderName = HeaderName::from_static("forge-node");

/// State of the middleware.
struct Middleware {
    rules: OriginRules,
    store: Arc<dyn Store>,
    traffic: Traffic,
    /// Id of this node, if it shares its store.
    node: Option<HeaderValue>,
}

/// Applies tracing, header limits, the origin guard and the bound of a stalled store to every request. A single middleware, because each
/// layer costs a dozen allocations per request.
async fn apply_middleware(
    extract::State(way): extract::State<Arc<Middleware>>,
    request: Request,
    next: Next,
) -> Response {
    let bounded = |request| stall_guard::guard(&*way.store, request, |request| next.run(request));
    let guarded = |request| origin_guard::guard(&way.rules, request, bounded);
    let limited = |request| request_span::limit_headers(request, guarded);
    let mut response = request_span::traced(&way.traffic, request, limited).await;
    if let Some(node) = &way.node {
        response.headers_mut().insert(NODE, node.clone());
    }
    response
}

/// State that extractors read from; cloned several times per request.
#[derive(Clone)]
struct Shared(Arc<AppState>);

/// The components, and the state that the HTTP interface keeps itself.
struct AppState {
    state: Components,
    body_reader: BodyReader,
    signal_reader: SignalReader,
    fanout: EventFanout,
    stream_limit: StreamLimit,
    traffic: Traffic,
}

macro_rules! part {
    ($($part:ty = $($field:ident).+;)*) => {$(
        impl FromRef<Shared> for $part {
            fn from_ref(shared: &Shared) -> Self {
                shared.0.$($field).+.clone()
            }
        }
    )*};
}

part! {
    Arc<dyn Store> = state.store;
    Arc<dyn EventLog> = state.store;
    Arc<dyn Outbox> = state.store;
    Dispatcher = state.dispatcher;
    Deliverer = state.deliverer;
    Registry = state.registry;
    External = state.external;
    Runs = state.runs;
    SignalReceivers = state.signals;
    Agent = state.signals.agent;
    Engine = state.signals.engine;
    Refusals = state.signals.refusals;
    Auth = state.auth;
    ProcessState = state.process;
    Throughput = state.throughput;
    BodyReader = body_reader;
    SignalReader = signal_reader;
    EventFanout = fanout;
    StreamLimit = stream_limit;
    Traffic = traffic;
    metrics::Config = state.metrics;
}
