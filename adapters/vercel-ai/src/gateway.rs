//! Requests to the AI Gateway besides model calls: cost of an answer, and validity of the key.

use forge_adapter_api::foreign_json;
use std::time::Duration;

use forge_adapter_transport::http::Http;
use serde_json::Value;
use tokio::time::timeout;

use crate::providers::Target;

/// Timeout of the request for a run's cost.
const PATIENCE: Duration = Duration::from_secs(3);

/// Cost of the answer with this id, in US dollars; `None` if the gateway does not report it.
pub(crate) async fn cost(http: &Http, target: &Target, id: &str) -> Option<f64> {
    let is_id = id
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if !id.starts_with("gen_") || !is_id {
        return None;
    }
    let headers = target.header_map().ok()?;
    let request = http
        .get(&target.url(&format!("/generation?id={id}")))
        .headers(headers);
    match timeout(PATIENCE, http.json(request)).await {
        Ok(Ok(told)) => of(&told),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the gateway did not report the cost of the run");
            None
        }
        Err(_) => {
            tracing::warn!("the gateway did not report the cost of the run in time");
            None
        }
    }
}

fn of(told: &Value) -> Option<f64> {
    let data = told.get("data").unwrap_or(told);
    foreign_json::amount(&data["total_cost"])
}
