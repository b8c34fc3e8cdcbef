//! Common parts of the protocols: texts in pieces, and paced server-sent events.

use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use serde_json::Value;

use super::plan::Plan;

const PIECE: usize = 8;
const SLOW_PIECES: usize = 200;
const SLOW_PACE: Duration = Duration::from_millis(100);

/// A server-sent event.
pub(crate) struct Frame {
    name: Option<String>,
    data: String,
    /// True for a piece of the answer, which is sent with a delay.
    is_piece: bool,
}

impl Frame {
    pub(crate) fn new(data: &Value) -> Self {
        Self {
            name: None,
            data: data.to_string(),
            is_piece: false,
        }
    }

    /// An event named by the data's member `type`.
    pub(crate) fn typed(data: &Value) -> Self {
        let name = data["type"].as_str().unwrap();
        Self {
            name: Some(name.to_owned()),
            ..Self::new(data)
        }
    }

    pub(crate) fn text(data: &str) -> Self {
        Self {
            name: None,
            data: data.to_owned(),
            is_piece: false,
        }
    }

    pub(crate) fn piece(self) -> Self {
        Self {
            is_piece: true,
            ..self
        }
    }
}

/// Text of an answer, and the delay between its pieces.
pub(crate) fn text_of(plan: &Plan) -> Option<(String, Duration)> {
    match plan {
        Plan::Text(text) | Plan::Thought(text) => Some((text.clone(), Duration::ZERO)),
        Plan::Slow => Some((
            (0..SLOW_PIECES).map(|n| format!("tick{n:03} ")).collect(),
            SLOW_PACE,
        )),
        Plan::Hang | Plan::Calls(_) | Plan::Fail(_) => None,
    }
}

pub(crate) fn sse(frames: Vec<Frame>, pace: Duration) -> Response {
    let events = stream::iter(frames).then(move |frame| async move {
        if frame.is_piece && !pace.is_zero() {
            tokio::time::sleep(pace).await;
        }
        let event = Event::default().data(frame.data);
        Ok::<_, Infallible>(match frame.name {
            Some(name) => event.event(name),
            None => event,
        })
    });
    Sse::new(events).into_response()
}

pub(crate) fn pieces(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    chars
        .chunks(PIECE)
        .map(|piece| piece.iter().collect())
        .collect()
}

/// The texts of a message's content, which is a string or blocks.
pub(crate) fn texts(content: &Value) -> Vec<String> {
    match content {
        Value::String(text) => vec![text.clone()],
        content => content
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|block| Some(block["text"].as_str()?.to_owned()))
            .collect(),
    }
}

pub(crate) fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
