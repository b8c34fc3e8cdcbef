//! Reader of a stream of events, which notes when each arrived.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use anyhow::ensure;
use serde_json::Value;

use super::super::loaded::PATIENCE;
use super::super::target::Target;

pub(crate) struct Reader(BufReader<TcpStream>);

impl Reader {
    /// Opens a stream of lines of JSON. Its position is settled when this returns.
    pub(crate) fn open(target: &Target, path: &str) -> anyhow::Result<Self> {
        let mut stream = TcpStream::connect(target.listen)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let host = target.listen;
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: {host}\r\naccept: application/x-ndjson\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        ensure!(line.starts_with("HTTP/1.1 200"), "{path}: {line}");
        Ok(Self(reader))
    }

    /// Next event and its arrival; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<(Instant, Value)>> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.0.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            let at = Instant::now();
            // Other lines are of the head, lengths of chunks, or heartbeats. A chunk has whole lines.
            if line.starts_with('{') {
                return Ok(Some((at, serde_json::from_str(&line)?)));
            }
        }
    }
}
