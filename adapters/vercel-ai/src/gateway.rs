//! What the AI Gateway says beside answers: what one of them cost, and whether the key is good.

use std::time::Duration;

use forge_adapter_transport::http::Http;
use serde_json::Value;
use tokio::time::timeout;

use crate::providers::Target;

/// A run does not wait longer to learn its price.
const PATIENCE: Duration = Duration::from_secs(3);

/// What the answer with this id cost, in US dollars; `None` where the gateway does not say.
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
            tracing::warn!(%error, "the gateway does not say what the run cost");
            None
        }
        Err(_) => {
            tracing::warn!("the gateway took too long to say what the run cost");
            None
        }
    }
}

fn of(told: &Value) -> Option<f64> {
    let data = told.get("data").unwrap_or(told);
    data["total_cost"].as_f64().filter(|cost| *cost >= 0.0)
}
