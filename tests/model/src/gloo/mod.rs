//! A fake of the Gloo AI platform, written from its documentation and public clients only and never compared with the
//! service. Strict: rejects unknown fields, wrong content types, missing or revoked tokens, and any number of ways of
//! routing but one.
//!
//! Supports the markers of the model and more: `WITHDONE` ends a stream with `[DONE]`, `CUTSHORT` breaks it, `GARBLED`
//! inserts text that is not JSON, `BLOCKED` triggers the guardrails.

mod answer;
mod check;
mod token;

use std::future::IntoFuture as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::{Desk, Received};
use check::{Door, Family};
use token::Issued;

/// Accepted credentials.
pub const API_KEY: &str = "gloo-fake-key";
pub const CLIENT_ID: &str = "gloo-fake-client";
pub const CLIENT_SECRET: &str = "gloo-fake-secret";
/// Model chosen by `auto_routing`.
pub const ROUTED_MODEL: &str = "gloo-anthropic-claude-sonnet-4.6";
/// A model missing from the price list.
pub const UNPRICED_MODEL: &str = "gloo-meta-llama-4-maverick";

/// A running platform; stopped on drop.
pub struct Gloo {
    url: String,
    platform: Arc<Platform>,
    server: JoinHandle<()>,
}

#[derive(Default)]
struct Platform {
    desk: Desk,
    tokens: Issued,
    chats: Mutex<Vec<Received>>,
    turned_away: AtomicU64,
    price_reads: AtomicU64,
    without_prices: AtomicBool,
}

impl Gloo {
    /// Starts a platform on a free loopback port.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let platform = Arc::new(Platform::default());
        let router = Router::new()
            .fallback(serve)
            .with_state(Arc::clone(&platform));
        #[expect(
            clippy::disallowed_methods,
            reason = "a test server ends with its handle, not with an app"
        )]
        let server = tokio::spawn(async move {
            axum::serve(listener, router).into_future().await.unwrap();
        });
        Self {
            url,
            platform,
            server,
        }
    }

    /// Address without a path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// All accepted chat requests, oldest first.
    pub fn requests(&self) -> Vec<Received> {
        self.platform.chats.lock().unwrap().clone()
    }

    /// Number of issued tokens.
    pub fn tokens_issued(&self) -> u64 {
        self.platform.tokens.count()
    }

    /// Number of requests without a valid token or key.
    pub fn turned_away(&self) -> u64 {
        self.platform.turned_away.load(Ordering::Relaxed)
    }

    /// Number of reads of the price list.
    pub fn price_reads(&self) -> u64 {
        self.platform.price_reads.load(Ordering::Relaxed)
    }

    /// Revokes all tokens issued so far.
    pub fn revoke_tokens(&self) {
        self.platform.tokens.revoke();
    }

    /// Sets the lifetime reported for further tokens, in seconds. Tokens stay valid until revoked.
    pub fn set_token_seconds(&self, seconds: u64) {
        self.platform.tokens.set_seconds(seconds);
    }

    /// Accepts client credentials only in the form, one of the two documented ways.
    pub fn take_form_credentials_only(&self) {
        self.platform.tokens.take_form_only();
    }

    /// Makes further reads of the price list fail.
    pub fn lose_prices(&self) {
        self.platform.without_prices.store(true, Ordering::Relaxed);
    }
}

impl Drop for Gloo {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// An error response in the platform's format.
fn refusal(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"error": {"message": message}}))).into_response()
}

async fn serve(
    State(platform): State<Arc<Platform>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    match (method, uri.path()) {
        (Method::POST, "/oauth2/token") => platform.tokens.answer(&headers, &body),
        (Method::GET, "/platform/v2/models") => platform.models(),
        (Method::POST, path) => match Door::of(path) {
            Some(door) => platform.chat(door, path, headers, &body).await,
            None => refusal(StatusCode::NOT_FOUND, "not found"),
        },
        (_, _) => refusal(StatusCode::NOT_FOUND, "not found"),
    }
}

impl Platform {
    fn models(&self) -> Response {
        self.price_reads.fetch_add(1, Ordering::Relaxed);
        if self.without_prices.load(Ordering::Relaxed) {
            return refusal(StatusCode::INTERNAL_SERVER_ERROR, "no prices today");
        }
        let model = |id: &str, family: Family, pricing: Value| json!({"id": id, "name": id, "family": family.shown(), "pricing": pricing});
        let rate = |rate: f64| json!({"rate_per_1m_tokens": rate});
        Json(json!({"data": [
            model(ROUTED_MODEL, Family::Anthropic,
                json!({"input": rate(3.0), "output": rate(15.0), "cache_read": rate(0.3)})),
            model("gloo-openai-gpt-5-mini", Family::OpenAi,
                json!({"input": rate(0.25), "output": rate(2.0), "cache_read": null})),
            model("gloo-deepseek-r1", Family::OpenSource,
                json!({"input": rate(0.5), "output": rate(1.0), "cache_read": rate(0.5)})),
        ]}))
        .into_response()
    }

    async fn chat(&self, door: Door, path: &str, headers: HeaderMap, body: &[u8]) -> Response {
        if !self.lets_in(door, &headers) {
            self.turned_away.fetch_add(1, Ordering::Relaxed);
            return refusal(StatusCode::UNAUTHORIZED, "Unauthorized");
        }
        let asked = match check::chat(door, &headers, body) {
            Ok(asked) => asked,
            Err(message) => return refusal(StatusCode::BAD_REQUEST, &message),
        };
        self.chats.lock().unwrap().push(Received {
            path: path.to_owned(),
            headers,
            body: asked.body.clone(),
            at: Instant::now(),
        });
        answer::chat(&self.desk, door, &asked).await
    }

    /// Checks the credentials: a key is valid for the newer generation only, a token for all endpoints.
    fn lets_in(&self, door: Door, headers: &HeaderMap) -> bool {
        let bearer = headers
            .get("authorization")
            .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        match bearer {
            Some(API_KEY) => !matches!(door, Door::Older | Door::OlderGrounded),
            Some(token) => self.tokens.is_good(token),
            None => false,
        }
    }
}
