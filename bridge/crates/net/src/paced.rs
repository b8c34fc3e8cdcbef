//! Reads in turns: a peer that sends without end leaves the thread to others.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper_util::client::legacy::connect::{Connected, Connection};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes after which a reader waits for its next turn. Tokio itself counts reads, and each can be of hundreds of KiB.
const TURN_BYTES: usize = 64 * 1024;

/// A stream whose reader waits after [`TURN_BYTES`] that came without a wait.
#[derive(Debug)]
pub(super) struct Paced<S> {
    stream: S,
    /// Bytes since the reader waited.
    turn_bytes: usize,
}

impl<S> Paced<S> {
    pub(super) fn new(stream: S) -> Self {
        Self {
            stream,
            turn_bytes: 0,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.turn_bytes >= TURN_BYTES {
            self.turn_bytes = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_pending() {
            self.turn_bytes = 0;
        }
        ready!(read)?;
        self.turn_bytes += buf.filled().len() - before;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }
}

impl<S: Connection> Connection for Paced<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_reader_of_a_stream_without_end_waits_after_each_turn() {
        let mut stream = Paced::new(tokio::io::repeat(b'x'));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            let mut bytes = [0; 1000];
            let mut turn_bytes = 0;
            loop {
                let mut buf = ReadBuf::new(&mut bytes);
                match Pin::new(&mut stream).poll_read(&mut cx, &mut buf) {
                    Poll::Ready(read) => read.unwrap(),
                    Poll::Pending => break,
                }
                turn_bytes += buf.filled().len();
                assert!(turn_bytes < TURN_BYTES + bytes.len(), "{turn_bytes}");
            }
            assert!(turn_bytes >= TURN_BYTES, "{turn_bytes}");
        }
    }
}
