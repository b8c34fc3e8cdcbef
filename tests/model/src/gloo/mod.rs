//! A fake of the Gloo AI platform, made from its documentation and public clients alone: nobody has held
//! it against the service. It is strict: an unknown field, a wrong content type, a missing or revoked
//! token, no or two ways of routing are refused.
//!
//! Markers of the model work here too, and besides: `WITHDONE` ends a stream with `[DONE]`, `CUTSHORT`
//! breaks it off, `GARBLED` puts something in that is not JSON, `BLOCKED` meets the guardrails.

mod answer;
mod check;
mod token;

use std::future::IntoFuture as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

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

/// What the fake lets in.
pub const API_KEY: &str = "gloo-fake-key";
pub const CLIENT_ID: &str = "gloo-fake-client";
pub const CLIENT_SECRET: &str = "gloo-fake-secret";
/// What `auto_routing` chooses.
pub const ROUTED_MODEL: &str = "gloo-anthropic-claude-sonnet-4.6";
/// A model that the price feed does not know.
pub const UNPRICED_MODEL: &str = "gloo-meta-llama-4-maverick";

/// A running platform; dropping it stops it.
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
    /// On a free port of loopback.
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

    /// Where it is, without a path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// All requests for an answer that were not refused, oldest first.
    pub fn requests(&self) -> Vec<Received> {
        self.platform.chats.lock().unwrap().clone()
    }

    /// How many tokens were given out.
    pub fn tokens_issued(&self) -> u64 {
        self.platform.tokens.count()
    }

    /// How often somebody came without a good token or key.
    pub fn turned_away(&self) -> u64 {
        self.platform.turned_away.load(Ordering::Relaxed)
    }

    /// How often the prices were read.
    pub fn price_reads(&self) -> u64 {
        self.platform.price_reads.load(Ordering::Relaxed)
    }

    /// All tokens given out so far are worth nothing any more.
    pub fn revoke_tokens(&self) {
        self.platform.tokens.revoke();
    }

    /// Says of further tokens that they live so long. They are taken until they are revoked.
    pub fn set_token_seconds(&self, seconds: u64) {
        self.platform.tokens.set_seconds(seconds);
    }

    /// Takes the client's name and secret in the form only, as some of the documentation has it.
    pub fn take_form_credentials_only(&self) {
        self.platform.tokens.take_form_only();
    }

    /// The price feed fails from here on.
    pub fn lose_prices(&self) {
        self.platform.without_prices.store(true, Ordering::Relaxed);
    }
}

impl Drop for Gloo {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A refusal in the platform's shape.
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
        });
        answer::chat(&self.desk, door, &asked).await
    }

    /// Keys are of the newer generation; tokens open all doors.
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
