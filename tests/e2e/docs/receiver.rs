//! Receiver of callbacks.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use standardwebhooks::{Webhook, WebhookError};

pub fn receiver(secret: &str) -> Result<Router, WebhookError> {
    let webhook = Arc::new(Webhook::new(secret)?);
    let seen = Arc::new(Mutex::new(HashSet::new()));
    let receive = move |headers: HeaderMap, body: Bytes| async move {
        if webhook.verify(&body, &headers).is_err() {
            return StatusCode::UNAUTHORIZED;
        }
        let mut seen = seen.lock().unwrap();
        if seen.insert(headers["webhook-id"].as_bytes().to_vec()) {
            println!("{}", String::from_utf8_lossy(&body));
        }
        StatusCode::NO_CONTENT
    };
    let router = Router::new().route("/results", post(receive));
    Ok(router.layer(DefaultBodyLimit::max(8 << 20)))
}
