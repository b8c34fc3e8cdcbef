//! Servers of the measurement: a service that answers each call with its arguments, and the pass-through proxy. Both
//! use the floor's HTTP stack.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::{Request, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::floor;

/// Path of the service's command.
pub(crate) const PATH: &str = "/commands/run";

#[derive(clap::Args)]
pub(crate) struct Plan {
    #[arg(long)]
    listen: SocketAddr,
    /// Service to pass calls on to, in place of answering them.
    #[arg(long)]
    upstream: Option<SocketAddr>,
}

pub(crate) fn run(plan: &Plan) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let router = match plan.upstream {
        None => Router::new().route(PATH, post(answer)),
        Some(service) => {
            let upstream = Upstream {
                client: floor::client(),
                url: format!("http://{service}{PATH}").parse()?,
            };
            Router::new()
                .route(PATH, post(pass_on))
                .with_state(upstream)
        }
    };
    runtime.block_on(floor::serve(plan.listen, &router))
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    args: &'a RawValue,
}

async fn answer(body: Bytes) -> Response {
    let Ok(Envelope { args }) = serde_json::from_slice(&body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    json(format!(r#"{{"ok":true,"result":{args}}}"#).into())
}

#[derive(Clone)]
struct Upstream {
    client: Client<HttpConnector, Full<Bytes>>,
    url: Uri,
}

async fn pass_on(State(upstream): State<Upstream>, body: Bytes) -> Response {
    let mut request = Request::post(upstream.url)
        .body(Full::new(body))
        .expect("the URL is valid");
    let kind = header::HeaderValue::from_static("application/json");
    request.headers_mut().insert(header::CONTENT_TYPE, kind);
    let answered = async {
        let response = upstream.client.request(request).await.ok()?;
        Some((
            response.status(),
            response.into_body().collect().await.ok()?,
        ))
    };
    match answered.await {
        Some((status, body)) => (status, json(body.to_bytes())).into_response(),
        None => StatusCode::BAD_GATEWAY.into_response(),
    }
}

fn json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}
