//! Event streams: one log, one cursor, three encodings.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRef, FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::auth::Watcher;
use super::encode::{Dialect, Framing};
use super::error::{Code, Failure};
use super::event_fanout::EventFanout;
use super::follow::{Follow, HEARTBEAT, Step, Until};
use super::query::Query;
use super::record::find;
use forge_store::record::EventFilter;
use forge_store::roles::EventLog;

const MAX_PAGE: u64 = 1000;
const MAX_WAIT_SECONDS: u64 = 60;

pub(super) async fn of_dispatch(
    Watcher(access): Watcher,
    State(log): State<Log>,
    Path(id): Path<String>,
    encoding: Encoding,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let ends = [("finished", false), ("delivered", true)];
    let until_delivered = query.choice("until", &ends).unwrap_or(false);
    let place = place(&headers, &mut query);
    let poll = Poll::read(&mut query);
    query.finish()?;
    let dispatch = find(log.fanout.store().as_ref(), access.caller(), &id).await?;
    let until = match dispatch.callback {
        Some(_) if until_delivered => Until::Delivered(dispatch.id),
        Some(_) | None => Until::Finished(dispatch.id),
    };
    let position = match place.unwrap_or(Place::Earliest) {
        // Events of a dispatch are kept as long as the dispatch, even if events around them were removed.
        Place::Earliest => 0,
        place => log.position(place).await?,
    };
    let filter = EventFilter {
        dispatch: Some(dispatch.id),
        ..EventFilter::default()
    };
    let follow = Follow::new(&log.fanout, filter, until, position, access);
    log.answer(encoding, follow, poll).await
}

pub(super) async fn of_all(
    Watcher(access): Watcher,
    State(log): State<Log>,
    encoding: Encoding,
    mut query: Query,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let filter = EventFilter {
        provider: query.text("provider"),
        agent_id: query.text("agentId"),
        task_id: query.text("taskId"),
        kind: query.text("type"),
        ..EventFilter::default()
    };
    let place = place(&headers, &mut query);
    let last = query.number("last", 1..=MAX_PAGE);
    let poll = Poll::read(&mut query);
    query.finish()?;
    let position = match (place, last) {
        (None, Some(last)) => log.before_newest(last),
        (place, _) => log.unexpired(log.position(place.unwrap_or(Place::Live)).await?)?,
    };
    let follow = Follow::new(&log.fanout, filter, Until::Forever, position, access);
    log.answer(encoding, follow, poll).await
}

/// Start position requested by a reader.
pub(super) enum Place {
    Earliest,
    Live,
    After(String),
}

pub(super) fn place(headers: &HeaderMap, query: &mut Query) -> Option<Place> {
    let header = headers
        .get("last-event-id")
        .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
        .filter(|text| !text.is_empty());
    let after = query.text("after");
    match header.or(after)?.as_str() {
        "0" => Some(Place::Earliest),
        "now" => Some(Place::Live),
        cursor => Some(Place::After(cursor.to_owned())),
    }
}

/// Maximum number of events of a JSON page, and how long to wait for the first one.
pub(super) struct Poll {
    pub(super) limit: usize,
    pub(super) wait: Duration,
}

impl Poll {
    pub(super) fn read(query: &mut Query) -> Self {
        // Redeemed by `Watcher`.
        query.accept("ticket");
        let limit = query.number("limit", 1..=MAX_PAGE).unwrap_or(100);
        let wait = query.number("wait", 0..=MAX_WAIT_SECONDS).unwrap_or(0);
        Self {
            limit: limit as usize,
            wait: Duration::from_secs(wait),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Stream(Framing),
    Page,
}

impl<S: Sync> FromRequestParts<S> for Encoding {
    type Rejection = Infallible;

    /// Chooses the first supported type in `Accept`; SSE if there is none.
    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let accept = parts.headers.get_all(header::ACCEPT).iter();
        let accept = accept.filter_map(|value| value.to_str().ok());
        let mut types = accept.flat_map(|value| value.split(','));
        let chosen =
            types.find_map(
                |kind| match kind.split(';').next().unwrap_or_default().trim() {
                    "text/event-stream" => Some(Encoding::Stream(Framing::Sse)),
                    "application/x-ndjson" => Some(Encoding::Stream(Framing::Ndjson)),
                    "application/json" => Some(Encoding::Page),
                    _ => None,
                },
            );
        Ok(chosen.unwrap_or(Encoding::Stream(Framing::Sse)))
    }
}

/// Limit on open event streams.
#[derive(Clone, Debug)]
pub(super) struct StreamLimit {
    free: Arc<Semaphore>,
    most: usize,
}

impl StreamLimit {
    pub(super) fn new(most: usize) -> Self {
        let most = most.min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(most)),
            most,
        }
    }

    /// Number of open streams.
    pub(super) fn taken(&self) -> usize {
        self.most - self.free.available_permits()
    }

    /// Takes a permit for one stream, returned on drop; fails with 429 if none is free.
    fn take(&self) -> Result<OwnedSemaphorePermit, Failure> {
        Arc::clone(&self.free).try_acquire_owned().map_err(|_| {
            let message = "too many event streams are open; close some, poll with \
                           Accept: application/json, or raise http.max_streams";
            Failure::new(Code::RateLimited, message)
        })
    }
}

/// Components that event routes use.
#[derive(Clone)]
pub(super) struct Log {
    store: Arc<dyn EventLog>,
    fanout: EventFanout,
    stream_limit: StreamLimit,
}

impl<S> FromRef<S> for Log
where
    Arc<dyn EventLog>: FromRef<S>,
    EventFanout: FromRef<S>,
    StreamLimit: FromRef<S>,
{
    fn from_ref(state: &S) -> Self {
        Self {
            store: FromRef::from_ref(state),
            fanout: FromRef::from_ref(state),
            stream_limit: FromRef::from_ref(state),
        }
    }
}

impl Log {
    pub(super) fn fanout(&self) -> &EventFanout {
        &self.fanout
    }

    pub(super) async fn position(&self, place: Place) -> Result<u64, Failure> {
        let bounds = self.store.log_bounds();
        match place {
            Place::Live => Ok(bounds.issued),
            // Below the highest removed position there can be gaps.
            Place::Earliest => Ok(bounds.removed),
            Place::After(cursor) => {
                let wrong = |message: String| Failure::field("after", message);
                let position = self.store.log().position(&cursor);
                let position = position.map_err(|error| wrong(format!("{cursor:?} is {error}")))?;
                // A cursor of another node can be ahead of what this one has seen.
                if position > bounds.issued
                    && position > self.store.stored_log_bounds().await?.issued
                {
                    return Err(wrong(format!("{cursor:?} was never issued")));
                }
                Ok(position)
            }
        }
    }

    /// Position before the newest `count` ones.
    fn before_newest(&self, count: u64) -> u64 {
        let bounds = self.store.log_bounds();
        bounds.issued.saturating_sub(count).max(bounds.removed)
    }

    fn unexpired(&self, position: u64) -> Result<u64, Failure> {
        let removed = self.store.log_bounds().removed;
        if position >= removed {
            return Ok(position);
        }
        let first = self.store.log().cursor(removed);
        let message = format!("events after this cursor have been removed; continue after {first}");
        Err(Failure::new(Code::CursorExpired, message)
            .with_details(json!({ "firstSafeCursor": first })))
    }

    async fn answer(
        &self,
        encoding: Encoding,
        mut follow: Follow,
        poll: Poll,
    ) -> Result<Response, Failure> {
        if follow.is_over().await? {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        let framing = match encoding {
            Encoding::Stream(framing) => framing,
            Encoding::Page => {
                let events = follow.page(poll.limit, Instant::now() + poll.wait).await?;
                let events: Vec<_> = events.iter().map(Arc::as_ref).collect();
                let page = json!({ "events": events, "nextCursor": follow.cursor() });
                return Ok(Json(page).into_response());
            }
        };
        self.stream(follow, Dialect::Dispatch(framing))
    }

    /// Stream of events to the end of `follow`.
    pub(super) fn stream(&self, follow: Follow, dialect: Dialect) -> Result<Response, Failure> {
        let seat = self.stream_limit.take()?;
        let headers = [
            (header::CONTENT_TYPE.as_str(), dialect.content_type()),
            ("x-accel-buffering", "no"),
        ];
        Ok((headers, Body::from_stream(chunks(follow, dialect, seat))).into_response())
    }
}

/// Chunks of a stream, pulled by the connection: a page is read after the previous one was taken. The reader's access
/// is checked with each heartbeat, as often in a busy stream, and when the tokens were replaced.
fn chunks(
    follow: Follow,
    dialect: Dialect,
    seat: OwnedSemaphorePermit,
) -> impl stream::Stream<Item = Result<Bytes, Broken>> + Send + 'static {
    let checked = Instant::now();
    stream::unfold(Some((follow, checked, seat)), move |reader| async move {
        let (mut follow, mut checked, seat) = reader?;
        let step = follow.next().await;
        let now = Instant::now();
        let idle = matches!(step, Ok(Step::Idle(_)));
        if idle || follow.access.is_outdated() || now >= checked + HEARTBEAT {
            if let Err(refused) = follow.access.check() {
                return Some((Ok(dialect.refusal(&refused)), None));
            }
            checked = now;
        }
        let chunk = match step {
            Ok(Step::Events(events)) => dialect.events(&events),
            Ok(Step::Idle(scanned)) => dialect.heartbeat(&scanned),
            Ok(Step::End) => return None,
            Err(error) => {
                tracing::warn!("an event stream was cut off: {error}");
                return Some((Err(Broken), None));
            }
        };
        Some((Ok(chunk), Some((follow, checked, seat))))
    })
}

/// Read error of the log; aborts the connection, and the reader resumes with its cursor.
#[derive(Debug, thiserror::Error)]
#[error("the event log could not be read")]
struct Broken;

#[cfg(test)]
mod tests;
