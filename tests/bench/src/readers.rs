//! Many concurrent readers of the event log, and the latency of events to them.

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

/// Agent whose acceptances the readers follow, and prefix of the tasks whose latency is measured.
const NEWS: &str = "news";
const TIMED: &str = "timed.";

/// Sends one event per second to all readers, until `over` is set.
pub(crate) fn tell(target: &Target, over: &AtomicBool) -> anyhow::Result<()> {
    let mut caller = Caller::connect(target)?;
    while !over.load(Ordering::Relaxed) {
        caller.dispatch(NEWS, r#""model":"ok""#)?;
        thread::sleep(Duration::from_secs(1));
    }
    Ok(())
}

/// Timed events, as seen by the readers.
#[derive(Default)]
struct Seen {
    /// Send time, by number.
    sent: Mutex<Vec<Instant>>,
    lags: Mutex<Vec<Duration>>,
}

/// Readers of one agent's acceptances, on their own thread.
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
                // Ends when `Readers` is dropped.
                let _ = ended.await;
                anyhow::Ok(())
            })
        });
        for number in 0..count {
            all_open
                .recv_timeout(PATIENCE)
                .with_context(|| format!("only {number} of {count} readers were accepted"))?;
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

    /// Sends `events` events to all readers, ten per second.
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
            "{} of {expected} events reached the readers",
            lags.len()
        );
        Ok(Told {
            lag: load::latency(lags.into_iter()),
            cpu_us: cpu.as_secs_f64() * 1e6 / expected as f64,
        })
    }
}

/// Delivery of events to all readers.
pub(crate) struct Told {
    lag: Latency,
    /// CPU time of the server per event and reader.
    cpu_us: f64,
}

impl Told {
    /// Prints these figures as the floor beside those of the bridge.
    pub(crate) fn report(&self, bridge: &Told) {
        let mut lines = String::from(
            "\n| ten events per second to all readers | floor | bridge | ratio |\n|---|---|---|---|\n",
        );
        type Figure = fn(&Told) -> f64;
        let figures: [(&str, Figure); 3] = [
            ("latency, p50 ms", |told| told.lag.p50_us / 1e3),
            ("latency, p99 ms", |told| told.lag.p99_us / 1e3),
            ("CPU time per event and reader, µs", |told| told.cpu_us),
        ];
        for (name, figure) in figures {
            let (floor, bridge) = (figure(self), figure(bridge));
            let ratio = bridge / floor;
            lines += &format!("| {name} | {floor:.1} | {bridge:.1} | {ratio:.2} |\n");
        }
        say(&lines);
    }
}

/// Reads until the bridge ends; signals once that the stream was accepted.
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
            // The receiver might have given up.
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

/// Number of the timed task in an event.
fn timed(event: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(event).ok()?;
    let (_, rest) = text.split_once(TIMED)?;
    rest.split_once('.')?.0.parse().ok()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
