//! Server-sent events out of the pieces of an answer: bounded, never silent for too long, and never cut
//! without telling.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use eventsource_stream::{EventStreamError, Eventsource as _};
use futures_util::{Stream, StreamExt as _};
use tokio::time::timeout;

use crate::failure::{Break, Failure};

/// One server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    pub id: String,
    /// `message` when it has no name.
    pub name: String,
    pub data: String,
}

/// The events of one answer; comments are skipped, and count as sound.
pub struct ServerEvents {
    events: Pin<Box<dyn Stream<Item = Result<ServerEvent, Failure>> + Send>>,
    block: Arc<Mutex<Block>>,
    silence: Duration,
}

impl ServerEvents {
    pub(crate) fn new(
        bytes: impl Stream<Item = Result<Bytes, Failure>> + Send + 'static,
        event_bytes: usize,
        silence: Duration,
    ) -> Self {
        let block = Arc::new(Mutex::new(Block::default()));
        let read = Arc::clone(&block);
        let bounded = bytes.map(move |piece| {
            let piece = piece?;
            let mut block = read.lock().unwrap_or_else(PoisonError::into_inner);
            if block.bytes > event_bytes {
                return Err(Failure::TooLong(event_bytes));
            }
            block.read(&piece);
            Ok(piece)
        });
        let events = bounded.eventsource().map(|event| match event {
            Ok(event) => Ok(ServerEvent {
                id: event.id,
                name: event.event,
                data: event.data,
            }),
            Err(EventStreamError::Transport(failure)) => Err(failure),
            Err(EventStreamError::Utf8(_) | EventStreamError::Parser(_)) => Err(Failure::NotUtf8),
        });
        Self {
            events: Box::pin(events),
            block,
            silence,
        }
    }

    /// `None` when the answer has ended, and not within an event. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<ServerEvent, Failure>> {
        loop {
            let heard = self.block().bytes;
            match timeout(self.silence, self.events.next()).await {
                Ok(Some(Ok(event))) => {
                    self.block().bytes = 0;
                    return Some(Ok(event));
                }
                Ok(None) if self.block().is_cut() => {
                    *self.block() = Block::default();
                    return Some(Err(Failure::Broken(Break::InEvent)));
                }
                Ok(end) => return end,
                Err(_) if self.block().bytes != heard => {}
                Err(_) => return Some(Err(Failure::Silent(self.silence))),
            }
        }
    }

    fn block(&self) -> MutexGuard<'_, Block> {
        self.block.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What has come since the last empty line.
#[derive(Default)]
struct Block {
    /// Since the last event.
    bytes: usize,
    /// There is a line of data in it.
    has_data: bool,
    /// How much of `data` the line that is being read begins with; `None` when it is another one.
    matched: Option<usize>,
    line_bytes: usize,
}

impl Block {
    fn read(&mut self, piece: &[u8]) {
        const DATA: &[u8] = b"data";
        self.bytes += piece.len();
        for byte in piece {
            match byte {
                b'\r' => {}
                b'\n' => {
                    self.has_data =
                        self.line_bytes > 0 && (self.has_data || self.matched == Some(DATA.len()));
                    (self.line_bytes, self.matched) = (0, Some(0));
                }
                byte => {
                    let at = if self.line_bytes == 0 {
                        Some(0)
                    } else {
                        self.matched
                    };
                    self.matched = match at {
                        Some(at) if at == DATA.len() => Some(at),
                        Some(at) if DATA[at] == *byte => Some(at + 1),
                        Some(_) | None => None,
                    };
                    self.line_bytes += 1;
                }
            }
        }
    }

    /// Whether an end here would be in the middle of an event.
    fn is_cut(&self) -> bool {
        self.has_data || (self.line_bytes > 0 && self.matched.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_event_that_was_begun_is_cut() {
        for (stream, cut) in [
            ("", false),
            ("data: 1\n\n", false),
            ("data: 1\r\n\r\n", false),
            ("data: 1\n\n: bye\n", false),
            ("data: 1\n\n: bye", false),
            ("event: x\n", false),
            ("data: 1\n", true),
            ("data: 1", true),
            ("data: 1\n\nda", true),
            ("data: 1\nid: 2\n", true),
        ] {
            let mut block = Block::default();
            for byte in stream.as_bytes() {
                block.read(&[*byte]);
            }
            assert_eq!(block.is_cut(), cut, "{stream:?}");
        }
    }
}
