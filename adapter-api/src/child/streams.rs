//! The three streams of a program, bounded: lines in, lines out, and the tail of stderr.

use std::io;

use tokio::io::AsyncWriteExt;
use tokio::process::ChildStdin;

/// A line of output, without its line end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A line; bytes that are not UTF-8 are replaced.
    Text(String),
    /// A skipped line above the limit.
    TooLong {
        /// Length of the line.
        bytes: u64,
    },
}

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
    /// Bytes discarded so far of a line above the limit.
    skipped: u64,
}

impl Lines {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: Vec::new(),
            searched: 0,
            skipped: 0,
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
                    self.skipped += self.bytes.len() as u64;
                    self.bytes = Vec::new();
                    self.searched = 0;
                }
                None
            }
        }
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

    fn cut(&mut self, end: usize) -> Line {
        let bytes = std::mem::take(&mut self.skipped) + end as u64;
        if bytes > self.limit as u64 {
            return Line::TooLong { bytes };
        }
        let line = &self.bytes[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
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
