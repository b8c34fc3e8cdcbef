//! A gateway registry on a real TCP port: the newest registration of a gateway wins, and only the instance that made
//! it can remove it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{delete, post};
use axum::{Json, Router};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::port::Reserved;
use super::until;

/// A registry; stops listening on drop.
pub(crate) struct Registry {
    address: SocketAddr,
    state: Shared,
    stop: CancellationToken,
}

type Shared = Arc<Mutex<Book>>;

/// One received request.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: &'static str,
    pub(crate) gateway: String,
    pub(crate) instance: String,
    pub(crate) authorization: Option<String>,
}

#[derive(Default)]
struct Book {
    gateways: BTreeMap<String, Value>,
    calls: Vec<Call>,
    manner: Manner,
}

/// Behaviour of the registry.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Manner {
    #[default]
    Well,
    Failing(StatusCode),
    /// Accepts every request and never answers.
    Silent,
}

/// URL of a registry at this address.
pub(crate) fn url(address: SocketAddr) -> String {
    format!("http://{address}/gateways")
}

impl Registry {
    pub(crate) fn start() -> Self {
        Self::open(Reserved::new())
    }

    pub(crate) fn open(reserved: Reserved) -> Self {
        let listener = reserved.listen();
        let state = Shared::default();
        let router = Router::new()
            .route("/gateways", post(register))
            .route("/gateways/{id}", delete(deregister))
            .with_state(Arc::clone(&state));
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        TaskTracker::new().spawn(async move {
            let serving = axum::serve(listener, router).into_future();
            stopped.run_until_cancelled(serving).await
        });
        Self {
            address,
            state,
            stop,
        }
    }

    pub(crate) fn url(&self) -> String {
        url(self.address)
    }

    pub(crate) fn is(&self, manner: Manner) {
        self.book().manner = manner;
    }

    /// Removes all registrations, as after a restart.
    pub(crate) fn forget(&self) {
        self.book().gateways.clear();
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.book().calls.clone()
    }

    pub(crate) fn gateways(&self) -> BTreeMap<String, Value> {
        self.book().gateways.clone()
    }

    /// Waits until the registration of this gateway satisfies `so`; returns it.
    pub(crate) async fn holds(&self, gateway: &str, so: impl Fn(&Value) -> bool) -> Value {
        until(gateway, || async {
            self.book()
                .gateways
                .get(gateway)
                .filter(|entry| so(entry))
                .cloned()
        })
        .await
    }

    /// Waits until `count` calls in total have been received.
    pub(crate) async fn until_calls(&self, count: usize) {
        until("further calls of the registry", || async {
            (self.book().calls.len() >= count).then_some(())
        })
        .await;
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.state.lock().unwrap()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn register(
    State(state): State<Shared>,
    headers: HeaderMap,
    Json(entry): Json<Value>,
) -> StatusCode {
    let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let (gateway, instance) = (text("gatewayId"), text("instanceId"));
    let manner = note(&state, "POST", &gateway, &instance, &headers);
    let status = answer(manner).await;
    if status.is_success() {
        state.lock().unwrap().gateways.insert(gateway, entry);
    }
    status
}

async fn deregister(
    State(state): State<Shared>,
    Path(gateway): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> StatusCode {
    let instance = query.get("instanceId").cloned().unwrap_or_default();
    let manner = note(&state, "DELETE", &gateway, &instance, &headers);
    let status = answer(manner).await;
    if !status.is_success() {
        return status;
    }
    let gateways = &mut state.lock().unwrap().gateways;
    match gateways
        .get(&gateway)
        .map(|entry| entry["instanceId"] == instance)
    {
        None => StatusCode::NOT_FOUND,
        Some(false) => StatusCode::CONFLICT,
        Some(true) => {
            gateways.remove(&gateway);
            StatusCode::NO_CONTENT
        }
    }
}

fn note(
    state: &Shared,
    method: &'static str,
    gateway: &str,
    instance: &str,
    headers: &HeaderMap,
) -> Manner {
    let authorization = headers.get("authorization");
    let mut book = state.lock().unwrap();
    book.calls.push(Call {
        method,
        gateway: gateway.to_owned(),
        instance: instance.to_owned(),
        authorization: authorization.map(|value| value.to_str().unwrap().to_owned()),
    });
    book.manner
}

async fn answer(manner: Manner) -> StatusCode {
    match manner {
        Manner::Well => StatusCode::OK,
        Manner::Failing(status) => status,
        Manner::Silent => std::future::pending().await,
    }
}
