//! Many readers of the event log at once, and how soon they hear of what happens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::task::{LocalSet, spawn_local};

use super::load::{self, Latency};
use super::loaded::{Caller, PATIENCE, at_pace};
use super::report::say;
use super::target::Target;

/// The agent whose acceptances the readers follow, and how the tasks begin whose way to them is timed.
const NEWS: &str = "news";
const TIMED: &str = "timed.";

/// One event a second for all readers, until it is over.
pub(crate) fn tell(target: &Target, over: &AtomicBool) -> anyhow::Result<()> {
    let mut caller = Caller::connect(target)?;
    while !over.load(Ordering::Relaxed) {
        caller.dispatch(NEWS, r#""model":"ok""#)?;
        thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

/// What the readers have seen of what was timed.
#[derive(Default)]
struct Seen {
    /// By number.
    sent: Mutex<Vec<Instant>>,
    lags: Mutex<Vec<Duration>>,
}

/// Readers of one agent's acceptances, on a thread of their own.
pub(crate) struct Readers {
    count: usize,
    seen: Arc<Seen>,
    _end: tokio::sync::oneshot::Sender<()>,
}

impl Readers {
    pub(crate) fn open(target: &Target, count: usize) -> anyhow::Result<Self> {
        let before = target.used()?.rss_kib;
        let seen = Arc::new(Seen::default());
        let (end, ended) = tokio::sync::oneshot::channel();
        let (opened, all_open) = std::sync::mpsc::channel();
        let (listen, theirs) = (target.listen, Arc::clone(&seen));
        thread::spawn(move || -> anyhow::Result<()> {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            LocalSet::new().block_on(&runtime, async {
                for _ in 0..count {
                    let stream = tokio::net::TcpStream::connect(listen).await?;
                    let (seen, opened) = (Arc::clone(&theirs), opened.clone());
                    spawn_local(async move { read(stream, &seen, &opened).await });
                }
                // Whoever waits for the readers has gone, or is done.
                let _ = ended.await;
                anyhow::Ok(())
            })
        });
        for number in 0..count {
            all_open
                .recv_timeout(PATIENCE)
                .with_context(|| format!("{number} of {count} readers are answered"))?;
        }
        thread::sleep(Duration::from_secs(2));
        let after = target.used()?.rss_kib;
        say(&format!(
            "{count} readers: {:.1} KiB of memory each",
            after.saturating_sub(before) as f64 / count as f64
        ));
        Ok(Self {
            count,
            seen,
            _end: end,
        })
    }

    /// So many events to all of them, ten a second.
    pub(crate) fn measure(&self, events: usize, target: &Target) -> anyhow::Result<Told> {
        let before = target.used()?.cpu;
        let mut caller = Caller::connect(target)?;
        at_pace(10.0, events, |number| {
            locked(&self.seen.sent).push(Instant::now());
            caller.dispatch_as(&format!("{TIMED}{number}."), NEWS, r#""model":"ok""#)?;
            Ok(())
        })?;
        let expected = events * self.count;
        let end = Instant::now() + PATIENCE;
        while locked(&self.seen.lags).len() < expected && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
        }
        let cpu = target.used()?.cpu - before;
        let lags = std::mem::take(&mut *locked(&self.seen.lags));
        ensure!(
            lags.len() == expected,
            "{} of {expected} events came to the readers",
            lags.len()
        );
        Ok(Told {
            lag: load::latency(lags.into_iter()),
            cpu_us: cpu.as_secs_f64() * 1e6 / expected as f64,
        })
    }
}

/// How events came to all readers.
pub(crate) struct Told {
    lag: Latency,
    /// Of the server, for one event to one reader.
    cpu_us: f64,
}

impl Told {
    /// Beside what those of the bridge took, as the floor.
    pub(crate) fn report(&self, bridge: &Told) {
        let mut lines = String::from(
            "\n| ten events a second to all readers | floor | bridge | ratio |\n|---|---|---|---|\n",
        );
        type Figure = fn(&Told) -> f64;
        let figures: [(&str, Figure); 3] = [
            ("after, p50 ms", |told| told.lag.p50_us / 1e3),
            ("after, p99 ms", |told| told.lag.p99_us / 1e3),
            ("processor time of one to one, µs", |told| told.cpu_us),
        ];
        for (name, figure) in figures {
            let (floor, bridge) = (figure(self), figure(bridge));
            let ratio = bridge / floor;
            lines += &format!("| {name} | {floor:.1} | {bridge:.1} | {ratio:.2} |\n");
        }
        say(&lines);
    }
}

/// Reads until the bridge ends; says once that it was answered.
async fn read(
    mut stream: tokio::net::TcpStream,
    seen: &Seen,
    opened: &std::sync::mpsc::Sender<()>,
) -> std::io::Result<()> {
    let path = format!("/api/v2/events?agentId={NEWS}&type=execution.accepted");
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n");
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await?;
    let mut text = Vec::new();
    let mut answered = false;
    loop {
        stream.readable().await?;
        let mut piece = [0; 4096];
        match stream.try_read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => text.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        if !answered && text.starts_with(b"HTTP/1.1 200") {
            answered = true;
            // Whoever waits has seen enough.
            let _ = opened.send(());
        }
        while let Some(end) = text.windows(2).position(|two| two == b"\n\n") {
            let event: Vec<u8> = text.drain(..end + 2).collect();
            if let Some(number) = timed(&event) {
                let sent = locked(&seen.sent).get(number).copied();
                locked(&seen.lags).extend(sent.map(|sent| sent.elapsed()));
            }
        }
    }
}

/// The number of the timed task that an event is about.
fn timed(event: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(event).ok()?;
    let (_, rest) = text.split_once(TIMED)?;
    rest.split_once('.')?.0.parse().ok()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
