//! Floor: minimal cost of a dispatch on this machine. A server that reads a dispatch, answers 202 and posts a
//! result of the usual size. No checks and no signature; its only event is the acceptance, sent to all
//! readers. It stores nothing, or, with a folder, each dispatch and its result in SQLite: the minimum for any
//! server that stores them there; or, with a database, the rows of the bridge.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::broadcast;

use super::database::Database;
use super::records::Records;

#[derive(clap::Args)]
pub(crate) struct Plan {
    #[arg(long)]
    listen: SocketAddr,
    /// Folder in which dispatches are stored before they are answered, and results before they are sent.
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Empty PostgreSQL database in which they are stored instead.
    #[arg(long, conflicts_with = "keep")]
    store: Option<String>,
}

enum Stored {
    Nowhere,
    Sqlite(Records),
    Postgres(Database),
}

impl Stored {
    async fn open(plan: &Plan) -> anyhow::Result<Self> {
        Ok(match (&plan.keep, &plan.store) {
            (Some(folder), _) => Self::Sqlite(Records::open(folder)?),
            (None, Some(url)) => Self::Postgres(Database::open(url).await?),
            (None, None) => Self::Nowhere,
        })
    }

    async fn accepted(&self, task: &str, body: &[u8]) {
        let text = || String::from_utf8_lossy(body).into_owned();
        match self {
            Self::Nowhere => {}
            Self::Sqlite(records) => records.accepted(task, text()).await,
            Self::Postgres(database) => database.accepted(task, text()).await,
        }
    }

    async fn finished(&self, task: &str, result: &str) {
        match self {
            Self::Nowhere => {}
            Self::Sqlite(records) => records.finished(task, result.to_owned()).await,
            Self::Postgres(database) => database.finished(task, result.to_owned()).await,
        }
    }

    fn delivered(&self, task: &str) {
        match self {
            Self::Nowhere => {}
            Self::Sqlite(records) => records.delivered(task),
            Self::Postgres(database) => database.delivered(task),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Dispatch {
    task_id: String,
    agent_id: String,
    message: String,
    model: Option<String>,
    callback_url: Option<String>,
}

/// Event of about the same length as the bridge's.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Event<'a> {
    task_id: &'a str,
    agent_id: &'a str,
    padding: &'a str,
}

/// Number of events that a reader can lag behind, and maximum number sent in one chunk.
const BEHIND: usize = 4096;
const TOGETHER: usize = 64;

/// Callback of about the same length as the bridge's.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer<'a> {
    task_id: &'a str,
    status: &'a str,
    output: &'a str,
    padding: &'a str,
}

struct Server {
    client: Client<HttpConnector, Full<Bytes>>,
    runtime: Handle,
    events: broadcast::Sender<Bytes>,
    stored: Stored,
}

pub(crate) fn run(plan: &Plan) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let server = Server {
        client: client(),
        runtime: runtime.handle().clone(),
        events: broadcast::Sender::new(BEHIND),
        stored: runtime.block_on(Stored::open(plan))?,
    };
    let router = Router::new()
        .route("/api/v2/dispatch", post(dispatch))
        .route("/api/v2/events", get(events))
        .route("/api/health", get(async || "ok"))
        .with_state(Arc::new(server));
    runtime.block_on(serve(plan.listen, &router))
}

/// Client for bodies of known length.
pub(crate) fn client() -> Client<HttpConnector, Full<Bytes>> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    Client::builder(TokioExecutor::new()).build(connector)
}

pub(crate) async fn serve(listen: SocketAddr, router: &Router) -> anyhow::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    let runtime = Handle::current();
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let service = hyper_util::service::TowerToHyperService::new(router.clone());
        runtime.spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new();
            // A disconnected client is no error.
            let _ = connection
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn dispatch(State(server): State<Arc<Server>>, body: Bytes) -> Response {
    let Ok(dispatch) = serde_json::from_slice::<Dispatch>(&body) else {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    };
    let answer = format!(r#"{{"taskId":"{}","status":"accepted"}}"#, dispatch.task_id);
    server.stored.accepted(&dispatch.task_id, &body).await;
    if server.events.receiver_count() > 0 {
        let event = told(&dispatch);
        let model = dispatch.model.as_deref().unwrap_or_default();
        let count = model.strip_prefix("stream:").unwrap_or("1");
        for _ in 0..count.parse().unwrap_or(1) {
            // The readers might have disconnected.
            let _ = server.events.send(event.clone());
        }
    }
    let runtime = server.runtime.clone();
    if let Some(url) = dispatch.callback_url.clone() {
        runtime.spawn(async move { call_back(&server, &dispatch, &url).await });
    }
    let json = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::ACCEPTED, json, answer).into_response()
}

fn told(dispatch: &Dispatch) -> Bytes {
    let event = Event {
        task_id: &dispatch.task_id,
        agent_id: &dispatch.agent_id,
        padding: &".".repeat(250),
    };
    let data = serde_json::to_string(&event).expect("texts are always JSON");
    format!("id: 1\nevent: execution.accepted\ndata: {data}\n\n").into()
}

/// Streams all events, ignoring the filters in the query.
async fn events(State(server): State<Arc<Server>>) -> Response {
    let told = stream::unfold(server.events.subscribe(), async |mut events| {
        let mut told = BytesMut::from(events.recv().await.ok()?);
        let more = std::iter::from_fn(|| events.try_recv().ok());
        more.take(TOGETHER - 1)
            .for_each(|event| told.extend_from_slice(&event));
        Some((Ok::<_, Infallible>(told.freeze()), events))
    });
    let kind = [(header::CONTENT_TYPE, "text/event-stream")];
    (kind, Body::from_stream(told)).into_response()
}

async fn call_back(server: &Server, dispatch: &Dispatch, url: &str) {
    let answer = Answer {
        task_id: &dispatch.task_id,
        status: "ok",
        output: &dispatch.message,
        padding: &dispatch.message[..dispatch.message.len().min(400)],
    };
    let body = serde_json::to_string(&answer).expect("texts are always JSON");
    server.stored.finished(&dispatch.task_id, &body).await;
    let request = Request::post(url)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)));
    let Ok(request) = request else { return };
    if let Ok(response) = server.client.request(request).await {
        // Read to the end, so that the connection can be reused.
        let _ = response.into_body().collect().await;
    }
    server.stored.delivered(&dispatch.task_id);
}
