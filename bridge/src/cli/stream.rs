//! Event stream over as many connections as needed: after a disconnect, reading resumes at the last cursor.

use std::time::Duration;

use reqwest::Response;
use serde_json::Value;

use super::client::{Client, Error, Target};

/// Size limit of a line; larger than any event the bridge writes.
const LONGEST_LINE_BYTES: usize = 32 * 1024 * 1024;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Path, filter and start position of an event stream.
pub(super) struct Query {
    pub(super) path: Vec<String>,
    pub(super) filter: Vec<(String, String)>,
    /// A cursor, `0` (earliest) or `now`; `None` leaves the start to the bridge.
    pub(super) after: Option<String>,
}

/// Reader of an event stream; reconnects with backoff.
pub(super) struct Events {
    client: Client,
    query: Query,
    body: Option<Response>,
    pending: Lines,
    pause: Option<Duration>,
    connected: bool,
}

impl Events {
    pub(super) fn new(client: Client, query: Query) -> Self {
        Self {
            client,
            query,
            body: None,
            pending: Lines::default(),
            pause: None,
            connected: false,
        }
    }

    /// Returns the next event; `None` once no more will follow.
    pub(super) async fn next(&mut self) -> Result<Option<Value>, Error> {
        loop {
            while let Some(line) = self.pending.next() {
                if let Ok(event) = serde_json::from_slice::<Value>(&line) {
                    // Last line of a stream whose token is no longer valid; the next connection is refused.
                    if event["type"] == "unauthorized" {
                        continue;
                    }
                    // Events of a run name their cursor `eventId`.
                    let id = event.get("id").or(event.get("eventId"));
                    if let Some(id) = id.and_then(Value::as_str) {
                        self.query.after = Some(id.to_owned());
                    }
                    self.pause = None;
                    return Ok(Some(event));
                }
            }
            let Some(body) = &mut self.body else {
                if !self.connect().await? {
                    return Ok(None);
                }
                continue;
            };
            match body.chunk().await {
                Ok(Some(chunk)) if self.pending.has_room_for(&chunk) => self.pending.push(&chunk),
                // Oversized line, disconnect or end: reconnect and request incomplete lines again.
                Ok(_) | Err(_) => {
                    self.body = None;
                    self.pending = Lines::default();
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<bool, Error> {
        let path: Vec<&str> = self.query.path.iter().map(String::as_str).collect();
        let mut query: Vec<(&str, &str)> = self
            .query
            .filter
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        if let Some(after) = &self.query.after {
            query.push(("after", after));
        }
        if let Some(pause) = self.pause {
            tokio::time::sleep(pause).await;
        }
        let target = Target {
            path: &path,
            query: &query,
        };
        match self.client.stream(target).await {
            Ok(body) => {
                self.connected = true;
                self.body = body;
                // Back off before the next connection in case this one yields no event.
                self.pause = Some(self.pause.map_or(FIRST_PAUSE, longer));
                Ok(self.body.is_some())
            }
            Err(Error::Unreachable { .. }) if self.connected => {
                self.pause = Some(self.pause.map_or(FIRST_PAUSE, longer));
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_PAUSE)
}

/// Splits received bytes into lines.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
    /// Start of the first line that was not returned yet.
    start: usize,
    /// End of the part already searched for a line end.
    searched: usize,
}

impl Lines {
    fn has_room_for(&self, chunk: &[u8]) -> bool {
        self.bytes.len() - self.start + chunk.len() <= LONGEST_LINE_BYTES
    }

    fn push(&mut self, chunk: &[u8]) {
        self.bytes.drain(..self.start);
        self.searched -= self.start;
        self.start = 0;
        self.bytes.extend_from_slice(chunk);
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let found = self.bytes[self.searched..]
            .iter()
            .position(|&byte| byte == b'\n');
        let Some(at) = found.map(|offset| self.searched + offset) else {
            self.searched = self.bytes.len();
            return None;
        };
        let line = self.bytes[self.start..at].to_vec();
        self.start = at + 1;
        self.searched = at + 1;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_wherever_they_were_cut() {
        let text = b"{\"a\":1}\n\n{\"b\":2}\nrest";
        for cut in 0..text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for piece in [&text[..cut], &text[cut..]] {
                lines.push(piece);
                while let Some(line) = lines.next() {
                    found.push(String::from_utf8(line).unwrap());
                }
            }
            assert_eq!(found, ["{\"a\":1}", "", "{\"b\":2}"], "cut at {cut}");
        }
    }
}
