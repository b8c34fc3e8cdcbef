//! Log lines on their way out: a queue bounded in bytes, and the thread that writes it. Logging never waits for a reader
//! and never fails: lines that do not fit or cannot be written are dropped, counted, and reported in the log once writing
//! works again.

use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forge_base::metrics::Counter;
use rustix::event::{PollFd, PollFlags, poll};
use tracing_subscriber::fmt::MakeWriter;

use super::Format;

/// Limit of the lines that wait. The thread holds as many bytes again.
const QUEUED_BYTES: usize = 2 * 1024 * 1024;

/// Queue of whole lines; each write is one line.
#[derive(Clone, Default)]
pub(super) struct Lines(Arc<Shared>);

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    /// All lines dropped so far.
    dropped: Arc<Counter>,
}

#[derive(Default)]
struct Queue {
    bytes: Vec<u8>,
    /// Lines dropped after those in `bytes`. Until the thread takes it, all later ones are dropped too, so that the gap
    /// is reported at its place.
    dropped: u64,
    /// True while the thread writes lines that it took.
    writing: bool,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.dropped == 0
    }
}

impl Lines {
    /// Starts the thread that writes the lines to `out`.
    pub(super) fn start<W>(out: W, format: Format) -> io::Result<Self>
    where
        W: Write + AsFd + Send + 'static,
    {
        let lines = Self::default();
        let output = Output {
            out,
            format,
            dropped: lines.dropped(),
            missing: 0,
            torn: false,
        };
        let taken = lines.clone();
        let thread = thread::Builder::new().name("log".to_owned());
        thread.spawn(move || taken.write_to(output))?;
        Ok(lines)
    }

    /// Counter of the dropped lines.
    pub(super) fn dropped(&self) -> Arc<Counter> {
        Arc::clone(&self.0.dropped)
    }

    /// Queues a line, or drops it if there is no room.
    pub(super) fn push(&self, line: &[u8]) {
        let mut queue = self.lock();
        let was_empty = queue.is_empty();
        if queue.dropped > 0 || queue.bytes.len() + line.len() > QUEUED_BYTES {
            queue.dropped += 1;
            self.0.dropped.inc();
        } else {
            queue.bytes.extend_from_slice(line);
        }
        drop(queue);
        if was_empty {
            self.0.changed.notify_all();
        }
    }

    /// Waits until the lines so far are written, up to `limit`.
    pub(super) fn flush(&self, limit: Duration) {
        let deadline = Instant::now() + limit;
        let mut queue = self.lock();
        while queue.writing || !queue.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.0.changed.wait_timeout(queue, left);
            (queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn write_to<W: Write + AsFd>(&self, mut output: Output<W>) {
        loop {
            let mut queue = self.lock();
            queue.writing = false;
            self.0.changed.notify_all();
            while queue.is_empty() {
                let woken = self.0.changed.wait(queue);
                queue = woken.unwrap_or_else(PoisonError::into_inner);
            }
            queue.writing = true;
            let taken = std::mem::take(&mut queue.bytes);
            let dropped = std::mem::take(&mut queue.dropped);
            drop(queue);
            output.write(&taken, dropped);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while the lock is held.
        self.0.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Lines {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

/// Destination of the lines.
struct Output<W> {
    out: W,
    format: Format,
    dropped: Arc<Counter>,
    /// Lines dropped since the last one that was written.
    missing: u64,
    /// True if the last line was written in part.
    torn: bool,
}

impl<W: Write + AsFd> Output<W> {
    /// Writes lines, after which `dropped` ones are missing.
    fn write(&mut self, lines: &[u8], dropped: u64) {
        self.report();
        let written = match self.missing {
            0 => self.put(lines),
            _ => 0,
        };
        let unwritten = lines[written..].iter().filter(|byte| **byte == b'\n');
        let unwritten = unwritten.count() as u64;
        self.dropped.add(unwritten);
        self.missing += unwritten + dropped;
        self.report();
    }

    /// Writes how many lines are missing, if any are.
    fn report(&mut self) {
        if self.missing == 0 {
            return;
        }
        let message = format!("{} log lines were dropped", self.missing);
        let mut line = self.format.line("WARN", &message);
        if self.torn {
            line.insert(0, '\n');
        }
        if self.put(line.as_bytes()) == line.len() {
            self.missing = 0;
        }
    }

    /// Writes as much as is accepted; returns the number of bytes.
    fn put(&mut self, text: &[u8]) -> usize {
        let mut written = 0;
        while written < text.len() {
            match self.out.write(&text[written..]) {
                Ok(0) => break,
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    // Another process made the shared descriptor non-blocking.
                    let mut ready = [PollFd::new(&self.out, PollFlags::OUT)];
                    if poll(&mut ready, None).is_err() {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        if let Some(last) = written.checked_sub(1) {
            self.torn = text[last] != b'\n';
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn lines_without_a_reader_are_dropped_and_the_gap_is_reported_at_its_place() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lines = Lines::start(writer, Format::Text).unwrap();
        let line = |length: usize| [vec![b'x'; length - 1], vec![b'\n']].concat();
        // More than a pipe holds: the thread waits with it, so all others stay in the queue.
        let first = line(QUEUED_BYTES);
        lines.push(&first);
        reader.read_exact(&mut [0]).unwrap();
        let line = line(1024);
        let mut pushed: u64 = 0;
        while lines.dropped().get() < 10 {
            lines.push(&line);
            pushed += 1;
        }
        let dropped = lines.dropped().get();
        let kept = usize::try_from(pushed - dropped).unwrap();
        let mut read = vec![0; first.len() - 1 + kept * line.len()];
        reader.read_exact(&mut read).unwrap();
        lines.flush(SOON);
        lines.push(b"after\n");
        lines.flush(SOON);
        let mut rest = vec![0; 4096];
        let length = reader.read(&mut rest).unwrap();
        let rest = String::from_utf8_lossy(&rest[..length]);
        let (gap, after) = rest.split_once('\n').unwrap();
        assert!(read.iter().all(|byte| b"x\n".contains(byte)));
        let wanted = format!("WARN {dropped} log lines were dropped");
        assert!(gap.ends_with(&wanted), "{rest}");
        assert_eq!(after, "after\n");
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let (reader, writer) = io::pipe().unwrap();
        let lines = Lines::start(writer, Format::Json).unwrap();
        drop(reader);
        for _ in 0..3 {
            lines.push(b"lost\n");
            lines.flush(SOON);
        }
        assert_eq!(lines.dropped().get(), 3);
    }
}
