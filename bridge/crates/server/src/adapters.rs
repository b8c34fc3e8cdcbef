//! Adapter routes: list, show, reload, pause and resume.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::auth::{Admin, Reader};
use super::error::{Code, Failure};
use super::query::NoQuery;
use super::{Phase, ProcessState};
use forge_dispatch::Dispatcher;
use forge_plugin_host::{
    Adapter, AgentListing, Draining, HealthReport, Isolation, LoadError, PauseError, Quarantine,
    Registry, ReloadError,
};
use forge_store::Store;

pub(super) async fn list(_: Reader, _: NoQuery, State(registry): State<Registry>) -> Json<Value> {
    let adapters: Vec<View> = registry.adapters().iter().map(View::of).collect();
    Json(json!({ "adapters": adapters, "default": registry.default_provider() }))
}

pub(super) async fn show(
    _: Reader,
    _: NoQuery,
    State(registry): State<Registry>,
    Path(provider): Path<String>,
) -> Result<Json<Value>, Failure> {
    let adapter = registry.get(&provider).ok_or_else(|| unknown(&provider))?;
    Ok(Json(json!(View::of(&adapter))))
}

pub(super) async fn reload(
    _: Admin,
    _: NoQuery,
    State(registry): State<Registry>,
    State(dispatcher): State<Dispatcher>,
    State(life): State<ProcessState>,
    Path(provider): Path<String>,
) -> Result<Json<Value>, Failure> {
    let adapter = registry.get(&provider).ok_or_else(|| unknown(&provider))?;
    if *life.phase.borrow() == Phase::Draining {
        return Err(not_reloaded(&provider, ReloadError::Closing));
    }
    let reloaded = adapter.reload().await;
    reloaded.map_err(|error| not_reloaded(&provider, error))?;
    // The new generation can have more capacity, or the adapter was not usable before.
    dispatcher.wake();
    Ok(Json(json!(View::of(&adapter))))
}

pub(super) async fn pause(
    _: Admin,
    _: NoQuery,
    State(registry): State<Registry>,
    State(store): State<Arc<dyn Store>>,
    Path(provider): Path<String>,
) -> Result<Json<Value>, Failure> {
    let adapter = registry.get(&provider).ok_or_else(|| unknown(&provider))?;
    store.note_pause(&provider, true).await?;
    adapter.pause().await.map_err(unmarked)?;
    Ok(Json(json!(View::of(&adapter))))
}

pub(super) async fn resume(
    _: Admin,
    _: NoQuery,
    State(registry): State<Registry>,
    State(dispatcher): State<Dispatcher>,
    State(store): State<Arc<dyn Store>>,
    Path(provider): Path<String>,
) -> Result<Json<Value>, Failure> {
    let adapter = registry.get(&provider).ok_or_else(|| unknown(&provider))?;
    store.note_pause(&provider, false).await?;
    adapter.resume().await.map_err(unmarked)?;
    dispatcher.wake();
    Ok(Json(json!(View::of(&adapter))))
}

/// Failure of a reload; the adapter keeps its previous generation, or stays unavailable.
fn not_reloaded(provider: &str, error: ReloadError) -> Failure {
    let code = match &error {
        ReloadError::UnderWay | ReloadError::Load(LoadError::TooManyImages { .. }) => {
            Code::InvalidState
        }
        ReloadError::Closing => Code::Draining,
        ReloadError::Find(_) | ReloadError::Load(_) | ReloadError::Offline(_) => Code::AdapterError,
        ReloadError::Failed => return Failure::internal(error),
    };
    let message = format!(
        "{provider} was not reloaded and is unchanged: {}",
        error.line()
    );
    Failure::new(code, message).because(error)
}

fn unmarked(error: PauseError) -> Failure {
    let message = "nothing was changed: the write to disk failed; see the log";
    Failure::new(Code::StoreUnavailable, message).because(error)
}

fn unknown(provider: &str) -> Failure {
    let message =
        format!("there is no adapter {provider:?}; BRIDGE_ADAPTERS lists the adapters to load");
    Failure::new(Code::NotFound, message)
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct View {
    provider: String,
    version: Option<String>,
    path: Option<String>,
    digest: Option<String>,
    isolation: Isolation,
    interfaces: Vec<String>,
    agents: Option<Value>,
    profile: Value,
    running: usize,
    max_concurrent: usize,
    paused_at: Option<String>,
    quarantine: Option<Quarantine>,
    leaving: Vec<Draining>,
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
            isolation: adapter.isolation(),
            interfaces: adapter.interfaces(),
            agents: adapter.agents().map(listing),
            profile: json!(adapter.profile().as_deref()),
            running: adapter.running(),
            max_concurrent: adapter.max_concurrent(),
            paused_at: adapter.paused().map(forge_base::time::format),
            quarantine: adapter.quarantined(),
            leaving: adapter.leaving(),
            health: report(&adapter.health()),
            history: adapter.history().iter().map(report).collect(),
        }
    }
}

/// State of an adapter's directory of agents, with its age.
fn listing(agents: AgentListing) -> Value {
    let age = |at| forge_base::time::wall_age(at, Timestamp::now()).as_secs();
    let mut listing = json!({
        "count": agents.count,
        "complete": agents.is_complete,
        "listedAt": agents.listed_at.map(forge_base::time::format),
        "ageSeconds": agents.listed_at.map(age),
    });
    if let Some(error) = agents.error {
        listing["error"] = error.into();
    }
    listing
}

fn report(health: &HealthReport) -> Value {
    let mut report = json!({
        "status": health.status,
        "checkedAt": forge_base::time::format(health.checked_at),
    });
    if let Some(message) = &health.message {
        report["message"] = json!(message);
    }
    if let Some(details) = &health.details {
        report["details"] = details.clone();
    }
    report
}
