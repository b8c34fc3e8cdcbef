//! Parser of server-sent events or lines from the pieces of an answer: bounded in size, with a limit on
//! silence, and an error for a truncated event. Bytes that are not UTF-8 are replaced, as browsers do.

use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use futures_util::{Stream, StreamExt as _};
use tokio::time::timeout;

use crate::failure::{Break, Failure, TooLong};

/// A server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    pub id: String,
    /// Name of the event; `message` if it has none.
    pub name: String,
    pub data: String,
}

/// Framing of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events as defined by the WHATWG.
    Events,
    /// Each line is the data of an event without a name. The last line needs no line end: its JSON shows if
    /// it is complete.
    Lines,
}

/// The events of one answer. Comments are skipped, and reset the limit on silence.
pub struct ServerEvents {
    pieces: Pin<Box<dyn Stream<Item = Result<Bytes, Failure>> + Send>>,
    /// Received bytes that are not parsed yet.
    piece: Bytes,
    reader: Reader,
    silence: Duration,
}

impl ServerEvents {
    pub(crate) fn new(
        pieces: impl Stream<Item = Result<Bytes, Failure>> + Send + 'static,
        framing: Framing,
        event_bytes: usize,
        silence: Duration,
    ) -> Self {
        Self {
            pieces: Box::pin(pieces.fuse()),
            piece: Bytes::new(),
            reader: Reader::new(framing, event_bytes),
            silence,
        }
    }

    /// The next event; `None` when the answer has ended outside an event. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<ServerEvent, Failure>> {
        loop {
            match self.reader.read(&mut self.piece) {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => {}
                Err(failure) => return Some(Err(failure)),
            }
            match timeout(self.silence, self.pieces.next()).await {
                Ok(Some(Ok(piece))) => self.piece = piece,
                Ok(Some(Err(failure))) => return Some(Err(failure)),
                Ok(None) => return self.reader.end(),
                Err(_) => return Some(Err(Failure::Silent(self.silence))),
            }
        }
    }
}

/// Splits bytes into events.
struct Reader {
    framing: Framing,
    limit: usize,
    /// The line being read.
    line: Vec<u8>,
    /// True in the first line, which can begin with a byte order mark.
    first: bool,
    /// True if the previous line ended with a carriage return, to which a line feed can belong.
    after_return: bool,
    id: String,
    name: String,
    data: Option<String>,
}

impl Reader {
    fn new(framing: Framing, limit: usize) -> Self {
        Self {
            framing,
            limit,
            line: Vec::new(),
            first: true,
            after_return: false,
            id: String::new(),
            name: String::new(),
            data: None,
        }
    }

    /// The next event of this piece; `None` when the piece is consumed.
    fn read(&mut self, piece: &mut Bytes) -> Result<Option<ServerEvent>, Failure> {
        while let Some(&byte) = piece.first() {
            if std::mem::take(&mut self.after_return) && byte == b'\n' {
                piece.advance(1);
                continue;
            }
            let ends = |byte: &u8| match byte {
                b'\n' => true,
                b'\r' => self.framing == Framing::Events,
                _ => false,
            };
            let end = piece.iter().position(ends);
            let length = end.unwrap_or(piece.len());
            if self.held().saturating_add(length) > self.limit {
                return Err(Failure::TooLong(TooLong::Event(self.limit)));
            }
            self.line.extend_from_slice(&piece[..length]);
            piece.advance(length);
            if end.is_some() {
                self.after_return = piece.first() == Some(&b'\r');
                piece.advance(1);
                if let Some(event) = self.end_line() {
                    return Ok(Some(event));
                }
            }
        }
        Ok(None)
    }

    fn held(&self) -> usize {
        self.line.len() + self.name.len() + self.data.as_ref().map_or(0, String::len)
    }

    fn end_line(&mut self) -> Option<ServerEvent> {
        let line = std::mem::take(&mut self.line);
        let line = without_mark(&line, std::mem::take(&mut self.first));
        let line = &*String::from_utf8_lossy(line);
        if self.framing == Framing::Lines {
            return Some(of_line(line));
        }
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            // Some servers send events without data to keep the connection open.
            let data = self.data.take().filter(|data| !data.is_empty());
            return data.map(|data| ServerEvent {
                id: self.id.clone(),
                name: if name.is_empty() {
                    "message".to_owned()
                } else {
                    name
                },
                data,
            });
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match (field, &mut self.data) {
            ("data", Some(data)) => {
                data.push('\n');
                data.push_str(value);
            }
            ("data", data) => *data = Some(value.to_owned()),
            ("event", _) => value.clone_into(&mut self.name),
            ("id", _) if !value.contains('\0') => value.clone_into(&mut self.id),
            // Comments and unknown fields are ignored.
            _ => {}
        }
        None
    }

    /// Handles the end of the answer: returns the last line, or an error if an event is incomplete.
    fn end(&mut self) -> Option<Result<ServerEvent, Failure>> {
        let line = std::mem::take(&mut self.line);
        let line = without_mark(&line, self.first);
        let begins_data =
            !line.is_empty() && (b"data".starts_with(line) || line.starts_with(b"data"));
        match self.framing {
            Framing::Lines if line.is_empty() => None,
            Framing::Lines => Some(Ok(of_line(&String::from_utf8_lossy(line)))),
            Framing::Events if self.data.take().is_some() || begins_data => {
                Some(Err(Failure::Broken(Break::InEvent)))
            }
            Framing::Events => None,
        }
    }
}

fn of_line(line: &str) -> ServerEvent {
    ServerEvent {
        id: String::new(),
        name: "message".to_owned(),
        data: line.strip_suffix('\r').unwrap_or(line).to_owned(),
    }
}

fn without_mark(line: &[u8], is_first: bool) -> &[u8] {
    match line.strip_prefix(b"\xef\xbb\xbf") {
        Some(rest) if is_first => rest,
        Some(_) | None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&str]) -> (Vec<(String, String)>, bool) {
        let mut reader = Reader::new(Framing::Events, 100);
        let mut events = Vec::new();
        for piece in pieces {
            let mut piece = Bytes::copy_from_slice(piece.as_bytes());
            while let Some(event) = reader.read(&mut piece).unwrap() {
                events.push((event.name, event.data));
            }
        }
        (events, reader.end().is_some())
    }

    #[test]
    fn only_an_event_that_was_begun_is_cut() {
        for (stream, cut) in [
            ("", false),
            ("data: 1\n\n", false),
            ("data: 1\r\n\r\n", false),
            ("data: 1\r\r", false),
            ("data: 1\n\n: bye\n", false),
            ("data: 1\n\n: bye", false),
            ("event: x\n", false),
            ("data: 1\n", true),
            ("data: 1", true),
            ("data: 1\n\nda", true),
            ("data: 1\nid: 2\n", true),
        ] {
            let bytes: Vec<String> = stream.chars().map(String::from).collect();
            let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
            assert_eq!(events(&bytes).1, cut, "{stream:?}");
        }
    }

    #[test]
    fn events_without_data_are_skipped() {
        let (found, _) = events(&["event: ping\ndata:\n\ndata: \n\ndata: 1\n\n"]);
        assert_eq!(found, [("message".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn a_byte_order_mark_and_every_line_end_are_read_wherever_they_are_cut() {
        for pieces in [
            &["\u{feff}data: a\ndata: b\n\ndata: c\n\n"][..],
            &["data: a\r", "\ndata: b\r\n\r", "\ndata: c\r\n\r\n"],
            &["data: a\rdata: b\r\rdata: c\r", "\r"],
        ] {
            let (found, _) = events(pieces);
            let data: Vec<&str> = found.iter().map(|(_, data)| data.as_str()).collect();
            assert_eq!(data, ["a\nb", "c"], "{pieces:?}");
        }
    }

    #[test]
    fn the_bound_is_that_of_one_event_and_comments_are_free() {
        let mut reader = Reader::new(Framing::Events, 10);
        let comments = ": a comment\n".repeat(100);
        for (text, fits) in [
            ("data:56789\n\n", true),
            ("data:56789\ndata:0\n\n", false),
            ("data:567890\n\n", false),
        ] {
            let mut piece = Bytes::from(text);
            let fitted = reader.read(&mut piece).is_ok();
            assert_eq!(fitted, fits, "{text}");
            reader = Reader::new(Framing::Events, 10);
        }
        let mut reader = Reader::new(Framing::Events, 20);
        assert!(reader.read(&mut Bytes::from(comments)).unwrap().is_none());
    }
}
