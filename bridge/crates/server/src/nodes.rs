//! `GET /api/v2/nodes`: the bridges that share the store.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use forge_adapter_api::HealthStatus;
use serde::Serialize;
use serde_json::{Value, json};

use super::auth::Reader;
use super::error::Failure;
use super::query::NoQuery;
use forge_base::time;
use forge_dispatch::Dispatcher;
use forge_dispatch::nodes::{Offer, OfferedAdapter};
use forge_store::Store;
use forge_store::node::NodeRecord;

pub(super) async fn list(
    _: Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
    State(dispatcher): State<Dispatcher>,
) -> Result<Json<Value>, Failure> {
    let own = &store.node().id;
    let nodes = store.nodes().await?.into_iter().map(|record| {
        // What a newer node publishes can be unreadable here.
        let offer: Offer = serde_json::from_str(record.offer.get()).unwrap_or_default();
        let offer = match record.id == *own {
            true => Offer {
                adapters: dispatcher.offered(),
                taken_over: dispatcher.taken_over(),
                ..offer
            },
            false => offer,
        };
        NodeView::of(record, &offer)
    });
    let nodes: Vec<_> = nodes.collect();
    Ok(Json(json!({ "node": own, "nodes": nodes })))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeView {
    id: String,
    name: String,
    address: String,
    version: String,
    epoch: u64,
    /// False once the lease has ended.
    live: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_until: Option<String>,
    /// Executions that run there.
    running: usize,
    adapters: Vec<AdapterLine>,
    /// Dispatches of ended leases that it took over since its start.
    taken_over: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_take_over_at: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AdapterLine {
    provider: String,
    status: HealthStatus,
    running: usize,
    max_concurrent: usize,
    paused: bool,
}

impl NodeView {
    fn of(record: NodeRecord, offer: &Offer) -> Self {
        let adapters = &offer.adapters;
        Self {
            id: record.id,
            name: offer.name.clone(),
            address: offer.address.clone(),
            version: offer.version.clone(),
            epoch: record.epoch,
            live: record.is_live,
            lease_until: record.lease_until.map(time::format),
            running: adapters.iter().map(|adapter| adapter.running).sum(),
            adapters: adapters.iter().map(AdapterLine::of).collect(),
            taken_over: offer.taken_over.map_or(0, |taken| taken.count),
            last_take_over_at: offer.taken_over.map(|taken| time::format(taken.at)),
        }
    }
}

impl AdapterLine {
    fn of(adapter: &OfferedAdapter) -> Self {
        Self {
            provider: adapter.provider.clone(),
            status: adapter.health,
            running: adapter.running,
            max_concurrent: adapter.max_concurrent,
            paused: adapter.paused,
        }
    }
}
