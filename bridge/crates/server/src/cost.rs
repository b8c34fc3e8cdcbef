//! `GET /api/v2/cost`: usage of the dispatches that have ended and are kept, added up by day, adapter, agent and model.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::auth::Reader;
use super::error::Failure;
use super::query::Query;
use super::signals::totals_of;
use forge_store::Store;

pub(super) async fn totals(
    _: Reader,
    State(store): State<Arc<dyn Store>>,
    mut query: Query,
) -> Result<Json<Value>, Failure> {
    let since = query.time("since").unwrap_or(Timestamp::UNIX_EPOCH);
    query.finish()?;
    let sums = store.spending(since).await?;
    let list = |property, sums| totals_of(property, "dispatchCount", sums);
    Ok(Json(json!({
        "byDay": list("day", sums.by_day),
        "byAdapter": list("adapter", sums.by_adapter),
        "byAgent": list("agent", sums.by_agent),
        "byModel": list("model", sums.by_model),
    })))
}
