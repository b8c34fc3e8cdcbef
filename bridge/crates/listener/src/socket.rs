//! Byte stream of one connection, with a timeout for a peer that reads nothing. Independent of HTTP.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// Stream whose writes fail if the peer reads nothing for `patience`. A slow peer is not cut as long as it reads.
pub(crate) struct Socket<S> {
    stream: S,
    patience: Duration,
    /// Write timeout; runs while a write waits for the peer.
    overdue: Pin<Box<Sleep>>,
    waiting: bool,
    heard: ReadActivity,
}

/// Flag set by each read of bytes and cleared by [`Self::take`].
#[derive(Clone, Default)]
pub(crate) struct ReadActivity(Arc<AtomicBool>);

impl ReadActivity {
    pub(crate) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl<S> Socket<S> {
    pub(crate) fn new(stream: S, patience: Duration, heard: ReadActivity) -> Self {
        Self {
            stream,
            patience,
            overdue: Box::pin(sleep(patience)),
            waiting: false,
            heard,
        }
    }

    pub(crate) fn into_inner(self) -> S {
        self.stream
    }

    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = false;
            return written;
        }
        if !self.waiting {
            self.waiting = true;
            self.overdue.as_mut().reset(Instant::now() + self.patience);
        }
        match self.overdue.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client read nothing for too long",
            ))),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.heard.0.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Sends answers without delay, and lets the kernel close a connection whose peer acknowledges nothing for
/// `patience`: a machine that vanished does not close its connections.
pub(crate) fn prepare(stream: &TcpStream, patience: Duration) {
    // These fail only if the connection is already closed, which its first read reports.
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    {
        let millis = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(stream, millis);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = patience;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (ours, mut theirs) = duplex(8);
        let mut socket = Socket::new(ours, PATIENCE, ReadActivity::default());
        socket.write_all(&[0; 8]).await.unwrap();
        let begun = Instant::now();
        let error = socket.write_all(&[0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), PATIENCE.as_secs());
        theirs.read_exact(&mut [0; 8]).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_is_slow_is_not() {
        let (ours, mut theirs) = duplex(1);
        let mut socket = Socket::new(ours, PATIENCE, ReadActivity::default());
        let reading = async {
            for _ in 0..5 {
                sleep(PATIENCE - Duration::from_secs(1)).await;
                theirs.read_exact(&mut [0; 1]).await.unwrap();
            }
            theirs
        };
        let (written, _theirs) = tokio::join!(socket.write_all(&[0; 5]), reading);
        written.unwrap();
    }
}
