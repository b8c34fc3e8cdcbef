//! Fan-out throughput: events per second to many readers while one dispatch emits as fast as possible.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::loaded::{Caller, PATIENCE};
use super::report::say;
use super::target::Target;

const EVENTS: usize = 1000;
/// Occurs once in each event.
const MARK: &[u8] = b"\ndata: ";
const PIECE_BYTES: usize = 64 << 10;

/// Totals over all readers.
#[derive(Default)]
struct Seen {
    answered: AtomicUsize,
    events: AtomicUsize,
}

pub(crate) fn compare(floor: &Target, bridge: &Target, readers: usize) -> anyhow::Result<()> {
    let floor = measure(floor, readers)?;
    let bridge = measure(bridge, readers)?;
    let ratio = bridge / floor;
    say(&format!(
        "{EVENTS} events of one execution to each reader at full speed: floor {floor:.0}/s, bridge {bridge:.0}/s, ratio {ratio:.2}",
    ));
    Ok(())
}

/// Sends all events to all readers; returns events per second.
fn measure(target: &Target, readers: usize) -> anyhow::Result<f64> {
    let seen = Arc::new(Seen::default());
    let (listen, theirs) = (target.listen, Arc::clone(&seen));
    let reading = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            let mut all = JoinSet::new();
            for _ in 0..readers {
                all.spawn(read(listen, Arc::clone(&theirs)));
            }
            while let Some(done) = all.join_next().await {
                done??;
            }
            anyhow::Ok(())
        })
    });
    until(&seen.answered, readers)?;
    let mut caller = Caller::connect(target)?;
    let begun = Instant::now();
    caller.dispatch("flat-out", &format!(r#""model":"stream:{EVENTS}""#))?;
    until(&seen.events, readers * EVENTS)?;
    let took = begun.elapsed();
    reading
        .join()
        .map_err(|_| anyhow!("the readers panicked"))??;
    Ok((readers * EVENTS) as f64 / took.as_secs_f64())
}

fn until(count: &AtomicUsize, wanted: usize) -> anyhow::Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let is = count.load(Ordering::Relaxed);
        if is >= wanted {
            return Ok(());
        }
        ensure!(Instant::now() < end, "{is} of {wanted} after {PATIENCE:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reads until all events have arrived. Keeps the end of each chunk, which could be part of a mark.
async fn read(listen: SocketAddr, seen: Arc<Seen>) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(listen).await?;
    let request = "GET /api/v2/events?type=assistant.text HTTP/1.1\r\nhost: 127.0.0.1\r\n\
                   accept: text/event-stream\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let (mut left, mut is_answered) = (EVENTS, false);
    let mut text = Vec::new();
    while left > 0 {
        let kept = text.len().min(MARK.len() - 1);
        text.drain(..text.len() - kept);
        text.reserve(PIECE_BYTES);
        ensure!(stream.read_buf(&mut text).await? > 0, "{left} are missing");
        if !is_answered {
            ensure!(text.starts_with(b"HTTP/1.1 200"), "the stream was refused");
            is_answered = true;
            seen.answered.fetch_add(1, Ordering::Relaxed);
        }
        let count = memmem::find_iter(&text, MARK).count();
        left -= count.min(left);
        seen.events.fetch_add(count, Ordering::Relaxed);
    }
    Ok(())
}
