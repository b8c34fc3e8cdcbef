//! Health routes for people, load balancers and probes. They need no token and show no secrets.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use forge_adapter_api::{HealthStatus, Profile};
use serde::Serialize;
use serde_json::{Value, json};

use super::error::Failure;
use super::query::Query;
use super::{Phase, ProcessState};
use forge_plugin_host::{Adapter, Quarantine, Registry};
use forge_store::Store;

type Answer = (StatusCode, Json<Value>);

pub(super) async fn show(
    State(store): State<Arc<dyn Store>>,
    State(registry): State<Registry>,
    State(life): State<ProcessState>,
    mut query: Query,
) -> Result<Answer, Failure> {
    let detail = match query.flag("verbose") {
        true => Detail::Profiles,
        false => Detail::Brief,
    };
    query.finish()?;
    registry.refresh_health().await;
    let mut health = Health::of(store.as_ref(), &registry.adapters(), &life, detail).await;
    if let Detail::Profiles = detail {
        let children = life.children.clone();
        // Counting reads all of `/proc`. The count is left out if it fails.
        let counted = tokio::task::spawn_blocking(move || children.living()).await;
        health.children = counted.ok().map(|living| ChildrenLine { living });
    }
    Ok((code(health.status), Json(json!(health))))
}

pub(super) async fn live() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

pub(super) async fn ready(
    State(store): State<Arc<dyn Store>>,
    State(registry): State<Registry>,
    State(life): State<ProcessState>,
) -> Answer {
    let phase = *life.phase.borrow();
    let usable = store.status().is_ok() && registry.adapters().iter().any(is_usable);
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

#[derive(Clone, Copy)]
enum Detail {
    Brief,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<ChildrenLine>,
}

/// Programs that adapters started.
#[derive(Serialize)]
struct ChildrenLine {
    living: usize,
}

#[derive(Serialize)]
struct StoreLine {
    status: HealthStatus,
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
        adapters: &[Adapter],
        life: &ProcessState,
        detail: Detail,
    ) -> Self {
        let queues = store.queues().await;
        let store_status = match (&queues, store.status()) {
            (Ok(_), Ok(())) => HealthStatus::Healthy,
            (Err(_), _) | (_, Err(_)) => HealthStatus::Offline,
        };
        let lines = adapter_lines(adapters, queues.unwrap_or_default(), detail);
        let counts = store.counts();
        Self {
            status: overall(store_status, adapters, &lines),
            version: env!("CARGO_PKG_VERSION"),
            instance_id: life.instance_id.to_string(),
            uptime_seconds: life.started.elapsed().as_secs(),
            draining: *life.phase.borrow() == Phase::Draining,
            store: StoreLine {
                status: store_status,
            },
            adapters: lines,
            deliveries: DeliveryLine {
                pending: counts.deliveries_pending,
                dead: counts.deliveries_dead,
            },
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
    } else if statuses.all(|status| status == HealthStatus::Healthy) {
        HealthStatus::Healthy
    } else {
        HealthStatus::Degraded
    }
}

fn adapter_lines(
    adapters: &[Adapter],
    queues: Vec<(String, u64)>,
    detail: Detail,
) -> BTreeMap<String, AdapterLine> {
    let mut queues: HashMap<String, u64> = queues.into_iter().collect();
    let mut lines = BTreeMap::new();
    for adapter in adapters {
        let health = adapter.health();
        let line = AdapterLine {
            status: health.status,
            message: health.message,
            checked_at: Some(forge_base::time::format(health.checked_at)),
            running: adapter.running(),
            queued: queues.remove(adapter.provider()).unwrap_or(0),
            max_concurrent: adapter.max_concurrent(),
            paused_at: adapter.paused().map(forge_base::time::format),
            quarantine: adapter.quarantined(),
            profile: match detail {
                Detail::Brief => None,
                Detail::Profiles => adapter.profile().as_deref().cloned(),
            },
        };
        lines.insert(adapter.provider().to_owned(), line);
    }
    lines.extend(
        queues
            .into_iter()
            .map(|(provider, queued)| (provider, gone(queued))),
    );
    lines
}

/// Entry of an adapter that is no longer loaded while dispatches are queued for it.
fn gone(queued: u64) -> AdapterLine {
    AdapterLine {
        status: HealthStatus::Offline,
        message: Some(
            "not loaded, but dispatches are queued for it; add it to BRIDGE_ADAPTERS".into(),
        ),
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
    use super::super::Phase;
    use super::super::testing::Edge;

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
        insta::assert_snapshot!(health, @r#"{"adapters":{"echo":{"checkedAt":null,"maxConcurrent":256,"queued":1,"running":0,"status":"healthy"}},"deliveries":{"dead":0,"pending":1},"draining":false,"instanceId":"instance","status":"healthy","store":{"status":"healthy"},"uptimeSeconds":null,"version":null}"#);
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
