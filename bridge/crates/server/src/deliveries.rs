//! Delivery routes: list and show deliveries with their attempts, list circuit breakers, replay.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::auth::{Admin, Reader, Sender};
use super::error::{Code, Failure};
use super::query::{Query, page_cursor};
use forge_base::failpoint;
use forge_base::id::DeliveryId;
use forge_delivery::Deliverer;
use forge_store::record::{DeliveryFilter, DeliveryRecord, DeliveryState, Replay};
use forge_store::roles::Outbox;

const STATUSES: [(&str, DeliveryState); 4] = [
    ("pending", DeliveryState::Pending),
    ("delivered", DeliveryState::Delivered),
    ("dead", DeliveryState::Dead),
    ("superseded", DeliveryState::Superseded),
];
const MAX_LISTED: u64 = 200;

pub(super) async fn list(
    _: Reader,
    State(store): State<Arc<dyn Outbox>>,
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
    Ok(Json(
        json!({ "deliveries": page.items, "nextCursor": page_cursor(page.next) }),
    ))
}

/// Receivers whose circuit breaker is open or half-open.
pub(super) async fn destinations(
    _: Reader,
    State(deliverer): State<Deliverer>,
    query: Query,
) -> Result<Json<Value>, Failure> {
    query.finish()?;
    Ok(Json(json!({ "destinations": deliverer.snapshot() })))
}

pub(super) async fn show(
    _: Reader,
    State(store): State<Arc<dyn Outbox>>,
    Path(id): Path<String>,
) -> Result<Json<DeliveryRecord>, Failure> {
    let delivery = store.delivery(parse(&id)?).await?;
    delivery.map(Json).ok_or_else(|| unknown(&id))
}

pub(super) async fn retry(
    _: Sender,
    State(store): State<Arc<dyn Outbox>>,
    State(deliverer): State<Deliverer>,
    Path(id): Path<String>,
) -> Result<(StatusCode, Json<Value>), Failure> {
    let known = parse(&id)?;
    store.delivery(known).await?.ok_or_else(|| unknown(&id))?;
    failpoint::point("replay.before");
    let retried = store.replay(Replay::One(known), Timestamp::now()).await?;
    failpoint::point("replay.after");
    deliverer.wake();
    Ok((StatusCode::ACCEPTED, Json(json!({ "retried": retried }))))
}

pub(super) async fn retry_many(
    _: Admin,
    State(store): State<Arc<dyn Outbox>>,
    State(deliverer): State<Deliverer>,
    mut query: Query,
) -> Result<(StatusCode, Json<Value>), Failure> {
    let replay = Replay::Many {
        host: query.text("host"),
        since: query.time("since"),
        status: query
            .choice("status", &STATUSES)
            .unwrap_or(DeliveryState::Dead),
    };
    query.finish()?;
    let retried = store.replay(replay, Timestamp::now()).await?;
    deliverer.wake();
    Ok((StatusCode::ACCEPTED, Json(json!({ "retried": retried }))))
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
        let none = edge.get("/api/v2/deliveries?status=dead").await.json();
        assert_eq!(none["deliveries"].as_array().unwrap().len(), 0);
        let one = edge.get(&format!("/api/v2/deliveries/{id}")).await.json();
        assert_eq!(one["url"], "https://example.org/hook");
        let retried = edge
            .post(&format!("/api/v2/deliveries/{id}/retry"), "")
            .await;
        assert_eq!(
            (retried.status.as_u16(), retried.json()["retried"].as_u64()),
            (202, Some(1))
        );
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
        assert_eq!(
            edge.post("/api/v2/deliveries/retry?status=x", "")
                .await
                .status,
            400
        );
    }
}
