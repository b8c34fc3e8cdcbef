//! Tickets that each open one event stream: `EventSource` cannot send a token, and tokens must not be in a URL.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::json;

use super::auth::Reader;
use super::error::{Code, Failure};
use super::query::NoQuery;
use forge_base::digest::sha256;
use forge_base::time;
use forge_store::Store;
use forge_store::ticket::{LIFE, Ticket};

/// `POST /api/v2/stream-tickets`
pub(super) async fn issue(
    reader: Reader,
    _: NoQuery,
    State(store): State<Arc<dyn Store>>,
) -> Result<impl IntoResponse, Failure> {
    let ticket = BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
    let now = store.node().clock().now();
    let until = time::after(now, LIFE);
    let kept = Ticket {
        hash: sha256(&ticket),
        owner: reader.0.token,
        until,
    };
    if !store.keep_ticket(kept, now).await? {
        let message = "too many stream tickets are unused; each expires after a minute";
        return Err(Failure::new(Code::RateLimited, message));
    }
    let body = json!({ "ticket": ticket, "expiresAt": time::format(until) });
    Ok((StatusCode::CREATED, Json(body)))
}
