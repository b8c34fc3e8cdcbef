//! HTTP answers whose format the server chooses: the head first, then the body according to the head.

use forge_adapter_api::foreign_json;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::Value;

use crate::failure::Failure;
use crate::http::Http;
use crate::server_events::{Framing, ServerEvents};

/// A successful answer whose head was received and whose body is still unread.
pub struct Answer {
    http: Http,
    response: Response,
}

/// Format of the body, by its `content-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Events,
    /// JSON values, one per line.
    Lines,
    /// JSON, or no known `content-type`.
    Whole,
}

impl Http {
    /// A request with any method.
    pub fn request(&self, method: Method, url: &str) -> RequestBuilder {
        self.client().request(method, url)
    }

    /// Sends the request and waits for the head of the answer.
    pub async fn answer(&self, request: RequestBuilder) -> Result<Answer, Failure> {
        let response = self.send(request).await?;
        Ok(Answer {
            http: self.clone(),
            response,
        })
    }
}

impl Answer {
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Value of a header, if it is visible ASCII.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }

    pub fn kind(&self) -> Kind {
        let kind = self.header("content-type").unwrap_or_default();
        let kind = kind
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_ascii_lowercase();
        match kind.as_str() {
            "text/event-stream" => Kind::Events,
            "application/x-ndjson" | "application/jsonl" | "application/x-jsonlines" => Kind::Lines,
            _ => Kind::Whole,
        }
    }

    /// Reads the whole body as JSON; an empty body is `null`.
    pub async fn json(mut self) -> Result<Value, Failure> {
        let body = self.http.whole(&mut self.response).await?;
        if body.is_empty() {
            return Ok(Value::Null);
        }
        foreign_json::from_slice(&body).map_err(Failure::NotJson)
    }

    /// The body as server-sent events.
    pub fn events(self) -> ServerEvents {
        self.http.as_events(self.response, Framing::Events)
    }

    /// The body as lines, each an event named `message`.
    pub fn lines(self) -> ServerEvents {
        self.http.as_events(self.response, Framing::Lines)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn lines_come_out_of_any_pieces() {
        for size in [1, 3, 100] {
            let text = b"{\"a\":\r1}\r\n\n[2]\n {\"b\":\"x\"}";
            let pieces: Vec<_> = text
                .chunks(size)
                .map(|piece| Ok(Bytes::from_static(piece)))
                .collect();
            let mut events = ServerEvents::new(
                stream::iter(pieces),
                Framing::Lines,
                1000,
                Duration::from_secs(1),
            );
            let mut lines = Vec::new();
            while let Some(event) = events.next().await {
                lines.push(event.unwrap().data);
            }
            lines.retain(|line| !line.is_empty());
            assert_eq!(
                lines.iter().map(|line| line.trim()).collect::<Vec<_>>(),
                ["{\"a\":\r1}", "[2]", "{\"b\":\"x\"}"]
            );
        }
    }
}
