//! Answers that a test writes byte by byte.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use serde_json::Value;

const PAUSE: Duration = Duration::from_millis(20);

/// An answer of the endpoint.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// True if the connection breaks after the body.
    is_cut: bool,
    /// True if comments follow the body for ever.
    is_open: bool,
}

impl Answer {
    /// A stream of server-sent events with this text.
    pub fn stream(text: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            headers: Vec::new(),
            body: text.into(),
            is_cut: false,
            is_open: false,
        }
        .with("content-type", "text/event-stream")
    }

    /// A stream of events with these data.
    pub fn events(events: &[Value]) -> Self {
        let text: String = events
            .iter()
            .map(|event| format!("data: {event}\n\n"))
            .collect();
        Self::stream(text)
    }

    /// A JSON answer.
    pub fn json(status: u16, body: &Value) -> Self {
        Self {
            status,
            ..Self::stream(body.to_string())
        }
        .with("content-type", "application/json")
    }

    /// Sets the status.
    #[must_use]
    pub fn status(self, status: u16) -> Self {
        Self { status, ..self }
    }

    /// Packs the body as gzip, without making it smaller.
    #[must_use]
    pub fn gzip(self) -> Self {
        let length = u16::try_from(self.body.len()).unwrap();
        let mut packed = vec![31, 139, 8, 0, 0, 0, 0, 0, 0, 255, 1];
        packed.extend(length.to_le_bytes());
        packed.extend((!length).to_le_bytes());
        packed.extend(&self.body);
        packed.extend(crc32(&self.body).to_le_bytes());
        packed.extend(u32::from(length).to_le_bytes());
        let answer = Self {
            body: packed,
            ..self
        };
        answer.with("content-encoding", "gzip")
    }

    /// Sets a header.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Breaks the connection after the body.
    #[must_use]
    pub fn cut(mut self) -> Self {
        self.is_cut = true;
        self
    }

    /// Sends comments after the body, for ever.
    #[must_use]
    pub fn open(mut self) -> Self {
        self.is_open = true;
        self
    }

    pub(crate) fn into_response(self) -> Response {
        let mut response = Response::builder().status(self.status);
        for (name, value) in self.headers {
            response = response.header(name, value);
        }
        let body = stream::iter([Ok(Bytes::from(self.body))]);
        let cut = stream::iter(self.is_cut.then_some(())).then(|()| async {
            // The body has to be flushed before the connection breaks.
            tokio::time::sleep(PAUSE).await;
            Err(std::io::Error::other("cut off"))
        });
        let open = stream::repeat(()).take(if self.is_open { usize::MAX } else { 0 });
        let open = open.then(|()| async {
            tokio::time::sleep(PAUSE).await;
            Ok(Bytes::from_static(b": still here\n\n"))
        });
        let body = body.chain(cut).chain(open);
        response.body(Body::from_stream(body)).unwrap()
    }
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}
