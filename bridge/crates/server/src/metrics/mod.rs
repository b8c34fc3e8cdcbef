//! `GET /metrics` for Prometheus. Values come from counters and from memory, never from a search of the store, so an
//! answer costs the same with a million records.

mod families;
mod nodes;
mod page;
mod process;
mod runs;
mod signals;

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::auth::{Auth, Reader};
use super::error::Failure;
use super::events::StreamLimit;
use super::query::NoQuery;
use super::traffic::Traffic;
use super::{ProcessState, SignalReceivers};
use forge_delivery::Deliverer;
use forge_dispatch::Dispatcher;
use forge_external::External;
use forge_plugin_host::Registry;
use forge_runs::Runs;
use forge_store::Store;

use families::Scrape;
use page::Format;

/// Access to the metrics.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// True to serve metrics without a token; otherwise one with the scope `read` is required.
    pub public: bool,
}

/// Caller that may read the metrics.
pub(super) struct Scraper;

impl<S> FromRequestParts<S> for Scraper
where
    S: Sync,
    Auth: FromRef<S>,
    Config: FromRef<S>,
{
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        if !Config::from_ref(state).public {
            Reader::from_request_parts(parts, state).await?;
        }
        Ok(Self)
    }
}

/// Components that metrics are read from.
pub(super) struct MetricSources {
    store: Arc<dyn Store>,
    dispatcher: Dispatcher,
    deliverer: Deliverer,
    registry: Registry,
    external: External,
    signals: SignalReceivers,
    runs: Runs,
    life: ProcessState,
    stream_limit: StreamLimit,
    traffic: Traffic,
}

impl<S> FromRef<S> for MetricSources
where
    Arc<dyn Store>: FromRef<S>,
    Dispatcher: FromRef<S>,
    Deliverer: FromRef<S>,
    Registry: FromRef<S>,
    External: FromRef<S>,
    SignalReceivers: FromRef<S>,
    Runs: FromRef<S>,
    ProcessState: FromRef<S>,
    StreamLimit: FromRef<S>,
    Traffic: FromRef<S>,
{
    fn from_ref(state: &S) -> Self {
        Self {
            store: FromRef::from_ref(state),
            dispatcher: FromRef::from_ref(state),
            deliverer: FromRef::from_ref(state),
            registry: FromRef::from_ref(state),
            external: FromRef::from_ref(state),
            signals: FromRef::from_ref(state),
            runs: FromRef::from_ref(state),
            life: FromRef::from_ref(state),
            stream_limit: FromRef::from_ref(state),
            traffic: FromRef::from_ref(state),
        }
    }
}

pub(super) async fn show(
    _: Scraper,
    _: NoQuery,
    State(parties): State<MetricSources>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let accept = headers.get(header::ACCEPT);
    let format = Format::wanted(accept.and_then(|value| value.to_str().ok()));
    // Queue lengths are in memory; they are left out while the store is unavailable.
    let queues = parties.store.queues().await.unwrap_or_default();
    // Counting child processes reads all of `/proc`.
    let text =
        tokio::task::spawn_blocking(move || page::write(Scrape::new(parties, queues), format));
    let text = text.await.map_err(Failure::internal)?;
    Ok(([(header::CONTENT_TYPE, format.content_type())], text).into_response())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;

    use super::super::auth;
    use super::super::testing::Edge;

    #[tokio::test]
    async fn the_format_is_the_one_that_is_asked_for() {
        let edge = Edge::new().await;
        edge.accept("task").await;
        let plain = edge.get("/metrics").await;
        assert_eq!(
            plain.header("content-type"),
            "text/plain; version=0.0.4; charset=utf-8"
        );
        let text = String::from_utf8(plain.body.to_vec()).unwrap();
        assert!(
            text.contains("forge_bridge_dispatches_queued{provider=\"echo\"} 1\n"),
            "{text}"
        );
        assert!(text.contains("# TYPE forge_bridge_dispatches_accepted_total counter\n"));
        assert!(!text.contains("# EOF"));

        let open = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
        let request = Request::get("/metrics").header("accept", open);
        let open = edge.send(request.body(Body::empty()).unwrap()).await;
        assert!(
            open.header("content-type")
                .starts_with("application/openmetrics-text")
        );
        let text = String::from_utf8(open.body.to_vec()).unwrap();
        assert!(
            text.contains("# TYPE forge_bridge_dispatches_accepted counter\n"),
            "{text}"
        );
        assert!(text.ends_with("# EOF\n"));
        // Quantiles need a bucket without bound.
        let buckets = text.matches("_bucket{").count();
        let unbounded = text.matches("le=\"+Inf\"").count();
        assert!(buckets > unbounded && unbounded > 0, "{text}");
        assert!(!text.contains("e308"), "{text}");
    }

    #[tokio::test]
    async fn it_takes_a_token_unless_it_is_public() {
        let auth = auth::Config {
            tokens: vec!["token".to_owned().into()],
            ..auth::Config::default()
        };
        let edge = Edge::with(super::super::Config::default(), &auth).await;
        assert_eq!(edge.get("/metrics").await.status, 401);
        let request = Request::get("/metrics").header("authorization", "Bearer token");
        assert_eq!(
            edge.send(request.body(Body::empty()).unwrap()).await.status,
            200
        );
    }
}
