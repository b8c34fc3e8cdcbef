//! Events of a run: a stream that ends with the run, and pages.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::auth::Watcher;
use super::super::encode::{Dialect, Framing, run_event};
use super::super::error::Failure;
use super::super::events::{Log, Place, Poll, place};
use super::super::follow::{Follow, Until};
use super::super::query::Query;
use super::find;
use forge_store::record::EventFilter;

const FILTERS: [(&str, bool); 2] = [("core", true), ("all", false)];

/// NDJSON unless the client accepts server-sent events only.
pub(super) async fn stream(
    Watcher(access): Watcher,
    State(log): State<Log>,
    Path(id): Path<String>,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let core_only = query.choice("events", &FILTERS).unwrap_or(false);
    let place = place(&headers, &mut query);
    query.accept("ticket");
    query.finish()?;
    let follow = open(&log, &id, place, access).await?;
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok());
    let framing = match accept.is_some_and(|accept| accept.starts_with("text/event-stream")) {
        true => Framing::Sse,
        false => Framing::Ndjson,
    };
    let mut answer = log.stream(follow, Dialect::Run { framing, core_only })?;
    let caching = HeaderValue::from_static("no-cache");
    answer.headers_mut().insert(header::CACHE_CONTROL, caching);
    Ok(answer)
}

/// Page of events with the cursor after it.
pub(super) async fn page(
    Watcher(access): Watcher,
    State(log): State<Log>,
    Path(id): Path<String>,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let place = place(&headers, &mut query);
    let poll = Poll::read(&mut query);
    query.finish()?;
    let mut follow = open(&log, &id, place, access).await?;
    let deadline = Instant::now() + poll.wait;
    let events = match follow.is_over().await? {
        true => Vec::new(),
        false => follow.page(poll.limit, deadline).await?,
    };
    let events: Vec<Value> = events.iter().map(|event| json!(run_event(event))).collect();
    Ok(Json(json!({ "events": events, "nextCursor": follow.cursor() })).into_response())
}

async fn open(
    log: &Log,
    id: &str,
    place: Option<Place>,
    access: super::super::auth::StreamAccess,
) -> Result<Follow, Failure> {
    let (run, _) = find(log.fanout().store().as_ref(), id).await?;
    let filter = EventFilter {
        run: Some(run.id),
        ..EventFilter::default()
    };
    let position = match place.unwrap_or(Place::Earliest) {
        // Events of a run are kept as long as the run.
        Place::Earliest => 0,
        Place::Live => run.last_position,
        Place::After(cursor) => {
            let position = log.position(Place::After(cursor.clone())).await?;
            // A cursor of another run, or of no event, would skip events in silence.
            let before = position.saturating_sub(1);
            let found = log.fanout().store().events(&filter, before, 1).await?;
            let is_own = found
                .events
                .first()
                .is_some_and(|event| event.id.position == position);
            if !is_own {
                let message = format!("{cursor:?} is no event of this run");
                return Err(Failure::field("after", message));
            }
            position
        }
    };
    Ok(Follow::new(
        log.fanout(),
        filter,
        Until::RunEnded(run.id),
        position,
        access,
    ))
}
