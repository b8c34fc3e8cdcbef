//! Adapters as operators see them.

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use serde_json::{Value, json};

use super::auth::Reader;
use super::error::{Code, Failure};
use crate::plugin::{Adapter, HealthReport, Registry};

pub(super) async fn list(_: Reader, State(registry): State<Registry>) -> Json<Value> {
    let adapters: Vec<View> = registry.adapters().iter().map(View::of).collect();
    Json(json!({ "adapters": adapters, "default": registry.default_provider() }))
}

pub(super) async fn show(
    _: Reader,
    State(registry): State<Registry>,
    Path(provider): Path<String>,
) -> Result<Json<Value>, Failure> {
    let adapter = registry.get(&provider).ok_or_else(|| unknown(&provider))?;
    Ok(Json(json!(View::of(&adapter))))
}

fn unknown(provider: &str) -> Failure {
    let message = format!("there is no adapter {provider:?}; BRIDGE_ADAPTERS names what is loaded");
    Failure::new(Code::NotFound, message)
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct View {
    provider: String,
    version: Option<String>,
    path: Option<String>,
    digest: Option<String>,
    isolation: &'static str,
    interfaces: Vec<String>,
    profile: Value,
    running: usize,
    max_concurrent: usize,
    health: Value,
    history: Vec<Value>,
}

impl View {
    fn of(adapter: &Adapter) -> Self {
        Self {
            provider: adapter.provider().to_owned(),
            version: adapter.version(),
            path: adapter.path().map(|path| path.display().to_string()),
            digest: adapter.digest(),
            isolation: "in_process",
            interfaces: adapter.interfaces(),
            profile: json!(adapter.profile().as_deref()),
            running: adapter.running(),
            max_concurrent: adapter.max_concurrent(),
            health: report(&adapter.health()),
            history: adapter.history().iter().map(report).collect(),
        }
    }
}

fn report(health: &HealthReport) -> Value {
    let mut report = json!({
        "status": health.status,
        "checkedAt": crate::time::format(health.checked_at),
    });
    if let Some(message) = &health.message {
        report["message"] = json!(message);
    }
    report
}
