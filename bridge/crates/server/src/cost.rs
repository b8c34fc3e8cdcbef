//! `GET /api/v2/cost`: usage of the dispatches that have ended and are kept, added up by day, adapter, agent or model.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde_json::Value;

use super::auth::Reader;
use super::error::Failure;
use super::query::Query;
use super::signals::{by_since, totals_of};
use forge_store::Store;
use forge_store::record::SpendingProperty;

const PROPERTIES: [(&str, SpendingProperty); 4] = [
    ("day", SpendingProperty::Day),
    ("adapter", SpendingProperty::Adapter),
    ("agent", SpendingProperty::Agent),
    ("model", SpendingProperty::Model),
];

pub(super) async fn totals(
    _: Reader,
    State(store): State<Arc<dyn Store>>,
    query: Query,
) -> Result<Json<Value>, Failure> {
    let (name, by, since) = by_since(query, &PROPERTIES)?;
    let sums = store.spending(by, since).await?;
    Ok(Json(totals_of(name, "dispatchCount", sums)))
}
