//! Health routes for people, load balancers and probes. They need no token; without the scope `read` they show status
//! and counts only.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use forge_adapter_api::{HealthStatus, Profile};
use serde::Serialize;
use serde_json::{Value, json};

use super::auth::MayRead;
use super::error::Failure;
use super::query::{NoQuery, Query};
use super::{AgentState, Phase, ProcessState, SignalReceivers};
use forge_external::External;
use forge_external::services::Counts;
use forge_plugin_host::{Adapter, Quarantine, Registry};
use forge_store::Store;
use forge_store::durability::Durability;
use forge_store::progress::StoreHealth;

/// Difference of the shared clock to that of this machine above which the store is degraded.
const LARGEST_OFFSET: Duration = Duration::from_secs(5);

type Answer = (StatusCode, Json<Value>);

pub(super) async fn show(
    State(store): State<Arc<dyn Store>>,
    State(registry): State<Registry>,
    State(external): State<External>,
    State(signals): State<SignalReceivers>,
    State(life): State<ProcessState>,
    MayRead(may_read): MayRead,
    mut query: Query,
) -> Result<Answer, Failure> {
    let detail = match (may_read, query.flag("verbose")) {
        (false, _) => Detail::Counts,
        (true, false) => Detail::Messages,
        (true, true) => Detail::Profiles,
    };
    query.finish()?;
    registry.refresh_health().await;
    let mut health = Health::of(store.as_ref(), &registry, &life, detail).await;
    health.services = external.counts();
    health.signals = Some(SignalLine::of(&signals));
    if detail == Detail::Profiles {
        let children = life.children.clone();
        // Counting reads all of `/proc`. The count is left out if it fails.
        let counted = tokio::task::spawn_blocking(move || children.living()).await;
        health.children = counted.ok().map(|living| ChildrenLine { living });
    }
    Ok((code(health.status), Json(json!(health))))
}

pub(super) async fn live(_: NoQuery) -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

pub(super) async fn ready(
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    State(registry): State<Registry>,
    State(life): State<ProcessState>,
) -> Answer {
    let phase = *life.phase.borrow();
    let usable = store.status().is_ok() && registry.routable().iter().any(is_usable);
    let (code, status) = match phase {
        Phase::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting"),
        Phase::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        Phase::Serving if !usable => (StatusCode::SERVICE_UNAVAILABLE, "offline"),
        Phase::Serving => (StatusCode::OK, "ok"),
    };
    (code, Json(json!({ "status": status })))
}

fn is_usable(adapter: &Adapter) -> bool {
    adapter.health().status != HealthStatus::Offline
}

fn code(status: HealthStatus) -> StatusCode {
    match status {
        HealthStatus::Healthy | HealthStatus::Degraded => StatusCode::OK,
        HealthStatus::Offline => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Contents of a health report; each includes the ones before it.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Detail {
    Counts,
    Messages,
    Profiles,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    status: HealthStatus,
    version: &'static str,
    instance_id: String,
    uptime_seconds: u64,
    draining: bool,
    store: StoreLine,
    adapters: BTreeMap<String, AdapterLine>,
    deliveries: DeliveryLine,
    /// External services; they change neither the status nor the readiness.
    services: Counts,
    /// Signals; they change neither the status nor the readiness.
    #[serde(skip_serializing_if = "Option::is_none")]
    signals: Option<SignalLine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<ChildrenLine>,
}

/// Receivers of signals.
#[derive(Serialize)]
struct SignalLine {
    /// Address of the local agent, `off` or `unavailable`.
    agent: String,
    rules: usize,
    sessions: usize,
}

impl SignalLine {
    fn of(report: &SignalReceivers) -> Self {
        Self {
            agent: match report.state {
                AgentState::Off => "off".to_owned(),
                AgentState::At(address) => address.to_string(),
                AgentState::Unavailable => "unavailable".to_owned(),
            },
            rules: report.agent.ledger().rules(),
            sessions: report.agent.sessions() + report.engine.sessions(),
        }
    }
}

/// Programs that adapters started.
#[derive(Serialize)]
struct ChildrenLine {
    living: usize,
}

#[derive(Serialize)]
struct StoreLine {
    status: HealthStatus,
    /// Reason why the store is not healthy.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    durability: Durability,
    /// Id of this node, if it shares the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    /// Difference of the shared clock to that of this machine, in milliseconds.
    #[serde(rename = "clockOffsetMs", skip_serializing_if = "Option::is_none")]
    clock_offset_ms: Option<i64>,
}

#[derive(Serialize)]
struct DeliveryLine {
    pending: u64,
    dead: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AdapterLine {
    status: HealthStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Value>,
    checked_at: Option<String>,
    running: usize,
    queued: u64,
    max_concurrent: usize,
    /// Time since which the adapter is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantine: Option<Quarantine>,
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<Profile>,
}

impl Health {
    async fn of(
        store: &dyn Store,
        registry: &Registry,
        life: &ProcessState,
        detail: Detail,
    ) -> Self {
        let queues = store.queues().await;
        let node = store.node();
        let (shares, offset) = (node.lease.is_some(), node.offset.get());
        let (store_status, reason) = match (&queues, store.health()) {
            (_, StoreHealth::Offline(reason)) => (HealthStatus::Offline, Some(reason)),
            (Err(error), _) => (HealthStatus::Offline, Some(error.to_string())),
            (Ok(_), StoreHealth::Degraded(reason)) => (HealthStatus::Degraded, Some(reason)),
            (Ok(_), StoreHealth::Well) if offset.unsigned_abs() > LARGEST_OFFSET => {
                let reason = "the clock of this machine differs from that of the database";
                (HealthStatus::Degraded, Some(reason.to_owned()))
            }
            (Ok(_), StoreHealth::Well) => (HealthStatus::Healthy, None),
        };
        let lines = adapter_lines(registry, queues.unwrap_or_default(), detail);
        let counts = store.counts();
        Self {
            status: overall(store_status, registry.routable(), &lines),
            version: env!("CARGO_PKG_VERSION"),
            instance_id: life.instance_id.to_string(),
            uptime_seconds: life.started.elapsed().as_secs(),
            draining: *life.phase.borrow() == Phase::Draining,
            store: StoreLine {
                status: store_status,
                message: reason.filter(|_| detail >= Detail::Messages),
                durability: store.durability(),
                node: shares.then(|| node.id.clone()),
                clock_offset_ms: shares
                    .then(|| i64::try_from(offset.as_millis()).unwrap_or(i64::MAX)),
            },
            adapters: lines,
            deliveries: DeliveryLine {
                pending: counts.deliveries_pending,
                dead: counts.deliveries_dead,
            },
            services: Counts::default(),
            signals: None,
            children: None,
        }
    }
}

fn overall(
    store: HealthStatus,
    adapters: &[Adapter],
    lines: &BTreeMap<String, AdapterLine>,
) -> HealthStatus {
    let mut statuses = lines.values().map(|line| line.status);
    if store == HealthStatus::Offline || !adapters.iter().any(is_usable) {
        HealthStatus::Offline
    } else if store == HealthStatus::Healthy
        && statuses.all(|status| status == HealthStatus::Healthy)
    {
        HealthStatus::Healthy
    } else {
        HealthStatus::Degraded
    }
}

fn adapter_lines(
    registry: &Registry,
    queues: Vec<(String, u64)>,
    detail: Detail,
) -> BTreeMap<String, AdapterLine> {
    let mut queues: HashMap<String, u64> = queues.into_iter().collect();
    let mut lines = BTreeMap::new();
    for adapter in registry.adapters() {
        let queued = queues.remove(adapter.provider()).unwrap_or(0);
        lines.insert(
            adapter.provider().to_owned(),
            line(&adapter, queued, detail),
        );
    }
    let unlisted = queues.into_iter().map(|(provider, queued)| {
        let adapter = registry.get(&provider);
        let line = adapter.map_or_else(
            || gone_line(queued, detail),
            |adapter| line(&adapter, queued, detail),
        );
        (provider, line)
    });
    lines.extend(unlisted);
    lines
}

fn line(adapter: &Adapter, queued: u64, detail: Detail) -> AdapterLine {
    let health = adapter.health();
    let shows = |least| detail >= least;
    AdapterLine {
        status: health.status,
        message: health.message.filter(|_| shows(Detail::Messages)),
        details: health.details.filter(|_| shows(Detail::Messages)),
        checked_at: Some(forge_base::time::format(health.checked_at)),
        running: adapter.running(),
        queued,
        max_concurrent: adapter.max_concurrent(),
        paused_at: adapter.paused().map(forge_base::time::format),
        quarantine: adapter.quarantined().filter(|_| shows(Detail::Messages)),
        profile: match detail {
            Detail::Counts | Detail::Messages => None,
            Detail::Profiles => adapter.profile().as_deref().cloned(),
        },
    }
}

/// Entry of an adapter that is no longer loaded while dispatches are queued for it.
fn gone_line(queued: u64, detail: Detail) -> AdapterLine {
    let message = "not loaded, but dispatches are queued for it; add it to BRIDGE_ADAPTERS";
    AdapterLine {
        status: HealthStatus::Offline,
        message: (detail >= Detail::Messages).then(|| message.to_owned()),
        details: None,
        checked_at: None,
        running: 0,
        queued,
        max_concurrent: 0,
        paused_at: None,
        quarantine: None,
        profile: None,
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;

    use super::super::testing::Edge;
    use super::super::{Phase, auth};

    #[tokio::test]
    async fn health_has_the_shape_of_the_reference() {
        let edge = Edge::new().await;
        edge.accept("task").await;
        edge.done("done").await;
        let verbose = edge.get("/api/health?verbose").await.json();
        assert_eq!(verbose["adapters"]["echo"]["profile"]["costTier"], "low");
        assert_eq!(verbose["children"]["living"], 0);
        let answer = edge.get("/api/health").await;
        assert_eq!(answer.status, 200);
        let mut health = answer.json();
        assert!(health["adapters"]["echo"]["checkedAt"].take().is_string());
        assert!(health["uptimeSeconds"].take().is_u64());
        assert_eq!(health["version"].take(), env!("CARGO_PKG_VERSION"));
        insta::assert_snapshot!(health, @r#"{"adapters":{"echo":{"checkedAt":null,"maxConcurrent":256,"queued":1,"running":0,"status":"healthy"}},"deliveries":{"dead":0,"pending":1},"draining":false,"instanceId":"instance","services":{"known":0,"problems":0,"unavailable":0},"signals":{"agent":"off","rules":0,"sessions":0},"status":"healthy","store":{"durability":"server","status":"healthy"},"uptimeSeconds":null,"version":null}"#);
    }

    #[tokio::test]
    async fn without_the_scope_only_status_and_counts_are_shown() {
        let auth = auth::Config {
            tokens: vec!["right".to_owned().into()],
            ..auth::Config::default()
        };
        let with_token = Edge::with(super::super::Config::default(), &auth).await;
        let open = Edge::new().await;
        for (edge, token, host, shown) in [
            (&with_token, "right", "localhost", true),
            (&with_token, "wrong", "localhost", false),
            (&with_token, "right", "evil.example", false),
            (&open, "", "localhost", true),
            (&open, "", "evil.example", false),
        ] {
            let request = Request::get("/api/health?verbose").header("host", host);
            let request = request.header("authorization", format!("Bearer {token}"));
            let answer = edge.send(request.body(Body::empty()).unwrap()).await;
            assert_eq!(answer.status, 200, "{token} {host}");
            let health = answer.json();
            assert_eq!(health["adapters"]["echo"]["status"], "healthy");
            assert_eq!(health["adapters"]["echo"]["running"], 0);
            assert_eq!(
                health["adapters"]["echo"]["profile"].is_object(),
                shown,
                "{token} {host}"
            );
            assert_eq!(health["children"].is_object(), shown, "{token} {host}");
        }
    }

    #[tokio::test]
    async fn probes_follow_the_phase() {
        let edge = Edge::new().await;
        for (phase, status, text) in [
            (Phase::Starting, 503, "starting"),
            (Phase::Serving, 200, "ok"),
            (Phase::Draining, 503, "draining"),
        ] {
            edge.phase.send_replace(phase);
            let ready = edge.get("/api/health/ready").await;
            assert_eq!(
                (ready.status.as_u16(), ready.json()["status"].as_str()),
                (status, Some(text))
            );
            assert_eq!(edge.get("/api/health/live").await.status, 200);
        }
        assert_eq!(edge.get("/api/health").await.json()["draining"], true);
    }
}
