//! The three streams of a program, bounded: lines in, lines out, and the tail of stderr.

use std::io;

use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;

/// A line of output, without its line end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line; bytes that are not UTF-8 are replaced.
    Text(String),
    /// A skipped line above the limit. One that does not end within 128 MiB counts as several.
    TooLong {
        /// Length of the line.
        bytes: u64,
        /// Beginning of the line: up to 1 MiB, and no more than the limit.
        start: String,
    },
}

/// Output of a program as it arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A part of a line that is not complete; further pieces of it follow.
    Open(String),
    /// The rest of a line, up to its end.
    Rest(Line),
}

/// Longest beginning that is kept of a line above the limit, in bytes.
const START: usize = 1 << 20;
/// Number of skipped bytes after which the end of a line is not waited for.
pub(super) const ENDLESS: u64 = 128 << 20;

/// Bytes queued for stdin.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    bytes: Vec<u8>,
    written: usize,
    /// Set when no more lines will be sent.
    pub(super) closing: bool,
}

impl Outgoing {
    pub(super) fn push(&mut self, line: &str) {
        self.bytes.extend_from_slice(line.as_bytes());
        self.bytes.push(b'\n');
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len() - self.written
    }

    pub(super) async fn write(&mut self, stdin: &mut Option<ChildStdin>) -> io::Result<()> {
        let Some(stdin) = stdin else {
            return std::future::pending().await;
        };
        self.written += stdin.write(&self.bytes[self.written..]).await?;
        if self.written == self.bytes.len() {
            self.bytes.clear();
            self.written = 0;
        }
        Ok(())
    }
}

/// Splits output into lines.
#[derive(Debug)]
pub(super) struct Lines {
    limit: usize,
    bytes: Vec<u8>,
    /// Offset up to which no line end was found.
    searched: usize,
    /// Bytes at the beginning of the line that were returned as pieces.
    given: usize,
    /// Bytes discarded so far of a line above the limit.
    skipped: u64,
    /// Beginning of that line.
    start: Vec<u8>,
}

impl Lines {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: Vec::new(),
            searched: 0,
            given: 0,
            skipped: 0,
            start: Vec::new(),
        }
    }

    pub(super) fn room(&mut self) -> &mut Vec<u8> {
        self.bytes.reserve(8 << 10);
        &mut self.bytes
    }

    pub(super) fn pop(&mut self) -> Option<Line> {
        match self.bytes[self.searched..]
            .iter()
            .position(|byte| *byte == b'\n')
        {
            Some(at) => {
                let end = self.searched + at;
                let line = self.cut(end);
                self.bytes.drain(..=end);
                self.searched = 0;
                Some(line)
            }
            None => {
                self.searched = self.bytes.len();
                if self.bytes.len() > self.limit {
                    let skipped = std::mem::take(&mut self.bytes);
                    if self.skipped == 0 {
                        self.start = self.start_of(&skipped);
                    }
                    self.skipped += skipped.len() as u64;
                    self.searched = 0;
                    self.given = 0;
                }
                (self.skipped > ENDLESS).then(|| self.cut(0))
            }
        }
    }

    /// Text of the line that has arrived, without what was returned before. A character that is not complete, or a
    /// carriage return that can belong to the line end, is not part of it yet. Call after [`pop`](Self::pop).
    pub(super) fn piece(&mut self) -> Option<String> {
        let fresh = &self.bytes[self.given..];
        let fresh = fresh.strip_suffix(b"\r").unwrap_or(fresh);
        let text = match std::str::from_utf8(fresh) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&fresh[..error.valid_up_to()]).ok()?,
        };
        let text = (!text.is_empty() && self.skipped == 0).then(|| text.to_owned())?;
        self.given += text.len();
        Some(text)
    }

    /// The last line, if it has no line end.
    pub(super) fn finish(&mut self) -> Option<Line> {
        if self.bytes.is_empty() && self.skipped == 0 {
            return None;
        }
        let line = self.cut(self.bytes.len());
        self.bytes = Vec::new();
        self.searched = 0;
        Some(line)
    }

    fn start_of(&self, line: &[u8]) -> Vec<u8> {
        line[..line.len().min(START).min(self.limit)].to_vec()
    }

    fn cut(&mut self, end: usize) -> Line {
        let skipped = std::mem::take(&mut self.skipped);
        let bytes = skipped + end as u64;
        let given = std::mem::take(&mut self.given);
        let line = &self.bytes[..end];
        if bytes > self.limit as u64 {
            let start = match skipped {
                0 => self.start_of(line),
                _ => std::mem::take(&mut self.start),
            };
            // A character can be cut at the end.
            let start = String::from_utf8_lossy(&start);
            let start = start
                .trim_end_matches(char::REPLACEMENT_CHARACTER)
                .to_owned();
            return Line::TooLong { bytes, start };
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = &line[given..];
        Line::Text(String::from_utf8_lossy(line).into_owned())
    }
}

/// The last `limit` bytes of a stream.
#[derive(Debug)]
pub(super) struct Tail {
    limit: usize,
    bytes: Vec<u8>,
}

impl Tail {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: Vec::new(),
        }
    }

    pub(super) fn room(&mut self) -> &mut Vec<u8> {
        self.bytes.reserve(1 << 10);
        &mut self.bytes
    }

    pub(super) fn trim(&mut self) {
        let surplus = self.bytes.len().saturating_sub(self.limit);
        self.bytes.drain(..surplus);
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).trim().to_owned()
    }
}
