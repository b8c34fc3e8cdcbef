//! OAuth2 client credentials, in the two documented ways.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use super::{CLIENT_ID, CLIENT_SECRET, refusal};

/// The issued tokens.
pub(super) struct Issued(Mutex<Book>);

struct Book {
    seconds: u64,
    form_only: bool,
    count: u64,
    good: HashSet<String>,
}

impl Default for Issued {
    fn default() -> Self {
        Self(Mutex::new(Book {
            seconds: 3600,
            form_only: false,
            count: 0,
            good: HashSet::new(),
        }))
    }
}

impl Issued {
    pub(super) fn count(&self) -> u64 {
        self.0.lock().unwrap().count
    }

    pub(super) fn revoke(&self) {
        self.0.lock().unwrap().good.clear();
    }

    pub(super) fn set_seconds(&self, seconds: u64) {
        self.0.lock().unwrap().seconds = seconds;
    }

    pub(super) fn take_form_only(&self) {
        self.0.lock().unwrap().form_only = true;
    }

    pub(super) fn is_good(&self, token: &str) -> bool {
        self.0.lock().unwrap().good.contains(token)
    }

    pub(super) fn answer(&self, headers: &HeaderMap, body: &[u8]) -> Response {
        let mut book = self.0.lock().unwrap();
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        if header("content-type") != Some("application/x-www-form-urlencoded") {
            return refusal(StatusCode::BAD_REQUEST, "a form was expected");
        }
        let body = std::str::from_utf8(body).unwrap_or_default();
        let mut fields: HashMap<&str, &str> = body
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .collect();
        let granted = fields.remove("grant_type") == Some("client_credentials");
        let basic = BASE64_STANDARD.encode(format!("{CLIENT_ID}:{CLIENT_SECRET}"));
        let by_header = !book.form_only
            && fields == HashMap::from([("scope", "api%2Faccess")])
            && header("authorization") == Some(&format!("Basic {basic}"));
        let by_form = fields
            == HashMap::from([("client_id", CLIENT_ID), ("client_secret", CLIENT_SECRET)])
            && header("authorization").is_none();
        if !granted || !(by_header || by_form) {
            return (
                StatusCode::BAD_REQUEST,
                Json(json!({"error": "invalid_client"})),
            )
                .into_response();
        }
        book.count += 1;
        let token = format!("gloo-fake-token-{}", book.count);
        book.good.insert(token.clone());
        Json(json!({"access_token": token, "expires_in": book.seconds, "token_type": "Bearer"}))
            .into_response()
    }
}
