//! Delivery routes: list and show deliveries with their attempts, list and close circuit breakers, replay.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};
use url::Url;

use super::auth::{Admin, Reader, Sender};
use super::error::{Code, Failure};
use super::query::{NoQuery, Query, page_cursor};
use forge_base::failpoint;
use forge_base::id::DeliveryId;
use forge_delivery::{Deliverer, Destination};
use forge_store as store;
use forge_store::record::{DeliveryFilter, DeliveryRecord, DeliveryState, Replay};
use forge_store::roles::Outbox;

pub(super) const STATUSES: [(&str, DeliveryState); 4] = [
    ("pending", DeliveryState::Pending),
    ("delivered", DeliveryState::Delivered),
    ("dead", DeliveryState::Dead),
    ("superseded", DeliveryState::Superseded),
];
const MAX_LISTED: u64 = 200;

/// Delivery with the circuit breaker that it waits for.
#[derive(Serialize)]
pub(super) struct DeliveryView {
    #[serde(flatten)]
    delivery: DeliveryRecord,
    /// Receiver of a pending delivery, unless its breaker is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<Destination>,
}

impl DeliveryView {
    fn of(deliverer: &Deliverer, delivery: DeliveryRecord) -> Self {
        let destination = match delivery.status {
            DeliveryState::Pending => deliverer.destination(&delivery.url),
            DeliveryState::Delivered | DeliveryState::Dead | DeliveryState::Superseded => None,
        };
        Self {
            delivery,
            destination,
        }
    }
}

pub(super) async fn list(
    _: Reader,
    State(store): State<Arc<dyn Outbox>>,
    State(deliverer): State<Deliverer>,
    mut query: Query,
) -> Result<Json<Value>, Failure> {
    let filter = DeliveryFilter {
        status: query.choice("status", &STATUSES),
        host: query.text("host"),
        since: query.time("since"),
        before: query.page(),
        limit: query.number("limit", 1..=MAX_LISTED).unwrap_or(50) as usize,
    };
    query.finish()?;
    let page = store.deliveries(filter).await?;
    let items = page.items.into_iter();
    let views: Vec<_> = items.map(|one| DeliveryView::of(&deliverer, one)).collect();
    Ok(Json(
        json!({ "deliveries": views, "nextCursor": page_cursor(page.next) }),
    ))
}

/// Receivers whose circuit breaker is open or half-open.
pub(super) async fn destinations(
    _: Reader,
    _: NoQuery,
    State(deliverer): State<Deliverer>,
) -> Result<Json<Value>, Failure> {
    Ok(Json(json!({ "destinations": deliverer.snapshot() })))
}

/// Closes a breaker, so that everything due to its receiver is sent at once.
pub(super) async fn close(
    _: Admin,
    _: NoQuery,
    State(deliverer): State<Deliverer>,
    Path(origin): Path<String>,
) -> Result<Json<Value>, Failure> {
    let closed = Url::parse(&origin).is_ok_and(|url| deliverer.close(&url));
    match closed {
        true => Ok(Json(json!({ "closed": true }))),
        false => {
            let message = format!(
                "no circuit breaker is open for {origin:?}; GET /api/v2/deliveries/destinations lists those that are"
            );
            Err(Failure::new(Code::NotFound, message))
        }
    }
}

pub(super) async fn show(
    _: Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Outbox>>,
    State(deliverer): State<Deliverer>,
    Path(id): Path<String>,
) -> Result<Json<DeliveryView>, Failure> {
    let delivery = store.delivery(parse(&id)?).await?;
    let delivery = delivery.ok_or_else(|| unknown(&id))?;
    Ok(Json(DeliveryView::of(&deliverer, delivery)))
}

pub(super) async fn retry(
    _: Sender,
    _: NoQuery,
    State(store): State<Arc<dyn Outbox>>,
    State(deliverer): State<Deliverer>,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<Value>), Failure> {
    let known = parse(&id)?;
    failpoint::point("replay.before");
    let replayed = store.replay(Replay::One(known), Timestamp::now()).await;
    failpoint::point("replay.after");
    let retried = match replayed {
        Err(store::Error::NotFound) => return Err(unknown(&id)),
        replayed => replayed?,
    };
    let delivery = store.delivery(known).await?.ok_or_else(|| unknown(&id))?;
    Ok(accepted(retried, deliverer.retry(&delivery)))
}

/// Makes all matching deliveries due again; with `dryRun=true` only counts them.
pub(super) async fn retry_many(
    _: Admin,
    State(store): State<Arc<dyn Outbox>>,
    State(deliverer): State<Deliverer>,
    mut query: Query,
) -> Result<(StatusCode, Json<Value>), Failure> {
    let dry_run = query.flag("dryRun");
    let host = query.text("host");
    let replay = Replay::Many {
        host: host.clone(),
        since: query.time("since"),
        status: query
            .choice("status", &STATUSES)
            .unwrap_or(DeliveryState::Dead),
    };
    query.finish()?;
    if dry_run {
        let matching = store.count_replay(&replay).await?;
        let counted = json!({ "retried": matching, "dryRun": true });
        return Ok((StatusCode::OK, Json(counted)));
    }
    let retried = store.replay(replay, Timestamp::now()).await?;
    let tripped = match retried {
        0 => Vec::new(),
        _ => deliverer.retry_many(host.as_deref()),
    };
    Ok(accepted(retried, tripped))
}

/// Answer to a retry; `tripped` are the receivers whose breaker is not closed.
fn accepted(
    retried: u64,
    tripped: impl IntoIterator<Item = Destination>,
) -> (StatusCode, Json<Value>) {
    let destinations: Vec<_> = tripped.into_iter().collect();
    let body = json!({ "retried": retried, "destinations": destinations });
    (StatusCode::ACCEPTED, Json(body))
}

fn parse(id: &str) -> Result<DeliveryId, Failure> {
    id.parse().map_err(|_| unknown(id))
}

fn unknown(id: &str) -> Failure {
    let message = format!("there is no delivery {id:?}, or its retention is over");
    Failure::new(Code::NotFound, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::testing::Edge;

    #[tokio::test]
    async fn deliveries_are_listed_shown_and_sent_again() {
        let edge = Edge::new().await;
        let (dispatch, id) = edge.done("task").await;
        let list = edge
            .get("/api/v2/deliveries?status=pending&host=example.org")
            .await
            .json();
        assert_eq!(list["deliveries"][0]["id"], id.to_string());
        assert_eq!(list["deliveries"][0]["dispatchId"], dispatch.to_string());
        for (filter, count) in [
            ("status=dead", 0),
            ("since=1h", 1),
            ("since=2100-01-01T00:00:00Z", 0),
        ] {
            let path = format!("/api/v2/deliveries?{filter}");
            let listed = edge.get(&path).await.json();
            assert_eq!(
                listed["deliveries"].as_array().unwrap().len(),
                count,
                "{filter}"
            );
        }
        let one = edge.get(&format!("/api/v2/deliveries/{id}")).await.json();
        assert_eq!(one["url"], "https://example.org/hook");
        let retried = edge
            .post(&format!("/api/v2/deliveries/{id}/retry"), "")
            .await;
        assert_eq!(
            (retried.status.as_u16(), retried.json()["retried"].as_u64()),
            (202, Some(1))
        );
        let counted = edge
            .post("/api/v2/deliveries/retry?status=pending&dryRun=true", "")
            .await;
        assert_eq!(counted.status, 200);
        assert_eq!(counted.json(), json!({ "retried": 1, "dryRun": true }));
        let many = edge
            .post("/api/v2/deliveries/retry?status=pending", "")
            .await;
        assert_eq!(many.json()["retried"], 1);
        let dead = edge.post("/api/v2/deliveries/retry", "").await;
        assert_eq!(dead.json()["retried"], 0);
        for path in ["/api/v2/deliveries/dlv_1", "/api/v2/deliveries/x"] {
            assert_eq!(edge.get(path).await.status, 404, "{path}");
            assert_eq!(
                edge.post(&format!("{path}/retry"), "").await.status,
                404,
                "{path}"
            );
        }
        let origin = "https:%2F%2Fexample.org";
        for unknown in [origin, "x"] {
            let path = format!("/api/v2/deliveries/destinations/{unknown}/close");
            assert_eq!(edge.post(&path, "").await.status, 404, "{path}");
        }
        assert_eq!(
            edge.post("/api/v2/deliveries/retry?status=x", "")
                .await
                .status,
            400
        );
    }
}
