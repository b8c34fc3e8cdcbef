//! Faults of an answer's stream, independent of the protocol.

use std::io::Error;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::RETRY_AFTER;
use axum::response::Response;
use futures_util::{StreamExt as _, stream};

use super::Desk;

/// Events sent before the fault.
const EVENTS: usize = 3;
/// Limits the fault to the first stream.
const ONCE: &str = "FAULTONCE";
const PAUSE: Duration = Duration::from_millis(20);

/// Inserts the fault that the request names, and breaks the stream when the endpoint is killed.
pub(crate) fn put_in(mut response: Response, asked: &str, desk: &Desk) -> Response {
    let killed = desk.killed();
    if !response.status().is_success() {
        if let Some(seconds) = retry_after(asked) {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        return response;
    }
    response.map(|body| {
        let oddly = asked.contains("ODDLY");
        let pieces = body.into_data_stream().map(move |piece| {
            piece
                .map_err(Error::other)
                .map(|piece| spelled(piece, oddly))
        });
        let once = asked.contains(ONCE);
        let fault = fault(asked).filter(|_| !once || desk.is_first(ONCE));
        let pause = if once { 50 * PAUSE } else { PAUSE };
        let pieces = match fault {
            None => pieces.boxed(),
            Some(fault) => {
                let fault = stream::once(async move {
                    // The events have to be flushed before the connection breaks.
                    tokio::time::sleep(pause).await;
                    stream::iter(fault)
                });
                pieces.take(EVENTS).chain(fault.flatten()).boxed()
            }
        };
        let killed = stream::once(async move {
            killed.await;
            Err(Error::other("killed"))
        });
        Body::from_stream(until(pieces, killed))
    })
}

/// The same piece, or as runtimes write it that cut texts within a character and count with floats.
fn spelled(piece: Bytes, oddly: bool) -> Bytes {
    if !oddly {
        return piece;
    }
    let text = String::from_utf8_lossy(&piece).replace("pong: ", "po\\ud83dng: ");
    let text = with_floats(&text, "okens\":");
    with_floats(&text, "okenCount\":").into()
}

/// The text with `.0` after each number that follows `key`.
fn with_floats(text: &str, key: &str) -> String {
    let mut parts = text.split_inclusive(key);
    let mut floats = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) = part.split_at(part.bytes().take_while(u8::is_ascii_digit).count());
        floats.push_str(digits);
        floats.push_str(if digits.is_empty() { "" } else { ".0" });
        floats.push_str(rest);
    }
    floats
}

/// The stream of pieces, ended by the items of `cut`.
fn until(
    pieces: stream::BoxStream<'static, Result<Bytes, Error>>,
    cut: impl stream::Stream<Item = Result<Bytes, Error>> + Send + 'static,
) -> impl stream::Stream<Item = Result<Bytes, Error>> + Send {
    let pieces = pieces.map(Some).chain(stream::once(async { None }));
    stream::select(pieces, cut.map(Some))
        .take_while(|piece| {
            let goes_on = piece.is_some();
            async move { goes_on }
        })
        .map(|piece| piece.unwrap())
}

/// Content after the first `EVENTS` events; `None` if the request names no fault.
fn fault(asked: &str) -> Option<Vec<Result<Bytes, Error>>> {
    let has = |marker: &str| asked.contains(marker);
    if has("CUTOFF") {
        Some(vec![Err(Error::other("cut off"))])
    } else if has("ENDEARLY") {
        Some(Vec::new())
    } else if has("HALFEVENT") {
        Some(vec![Ok(Bytes::from_static(b"data: {\"id\": "))])
    } else if has("GARBLED") {
        Some(vec![Ok(Bytes::from_static(b"data: {\"id\": \n\n"))])
    } else {
        None
    }
}

fn retry_after(asked: &str) -> Option<u64> {
    let (_, rest) = asked.split_once("RETRYAFTER")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}
