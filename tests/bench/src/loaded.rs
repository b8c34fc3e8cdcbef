//! Cost of background load: many queued dispatches, many running ones, many readers of the event log
//! (`readers.rs`). The same measurement runs without and with the background load, on one bridge, several
//! times each. The cost of one item is the growth of the bridge's memory divided by their number.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use jiff::{SignedDuration, Timestamp};

use super::flat_out;
use super::load::{self, Latency, Measured};
use super::readers::{self, Readers};
use super::report::{median, say};
use super::target::{Kind, Target};

/// Connections that create the background load.
const CALLERS: usize = 64;
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Args)]
pub(crate) struct Plan {
    /// Dispatches queued for a time far in the future.
    #[arg(long, default_value_t = 0)]
    waiting: usize,
    /// Dispatches that run without end.
    #[arg(long, default_value_t = 0)]
    running: usize,
    /// Readers of the event log, one connection each.
    #[arg(long, default_value_t = 0)]
    readers: usize,
    /// Number of measurements without and with the background load.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Duration of each measurement, in seconds.
    #[arg(long, default_value_t = 3.0, value_parser = load::positive)]
    seconds: f64,
    /// Dispatches per second while the 202 is timed.
    #[arg(long, default_value_t = 200.0, value_parser = load::positive)]
    rate: f64,
}

pub(crate) fn run(plan: &Plan, here: &Path, bridge: &Path, folder: &Path) -> anyhow::Result<()> {
    let settings = [
        ("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", plan.running + 1000),
        ("BRIDGE_DISPATCH_QUEUE_LIMIT", plan.waiting + 100_000),
        ("BRIDGE_HTTP_MAX_CONNECTIONS", plan.readers + 1000),
        ("BRIDGE_HTTP_MAX_STREAMS", plan.readers + 1000),
    ]
    .map(|(name, value)| (name, value.to_string()));
    let mut target = Target::start_with(Kind::Bridge, here, bridge, folder, &settings)?;
    // The first load allocates memory that stays; exclude it from the cost of the background load.
    measure(plan, &target)?;
    let alone = measure(plan, &target)?;
    let later = Timestamp::now() + SignedDuration::from_hours(20 * 24);
    for (name, count, metric, rest) in [
        (
            "waiting",
            plan.waiting,
            "forge_bridge_dispatches_queued",
            format!(r#""notBefore":"{later}""#),
        ),
        (
            "running",
            plan.running,
            "forge_bridge_dispatches_running",
            r#""model":"slow:80000000","timeout":86400"#.to_owned(),
        ),
    ] {
        if count > 0 {
            let before = (target.used()?.rss_kib, target.disk_kib()?);
            let took = crowd(&target, count, &rest)?;
            settle(&target, metric, count)?;
            let after = (target.used()?.rss_kib, target.disk_kib()?);
            let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / count as f64;
            say(&format!(
                "{count} {name}: accepted at {:.0}/s, {:.2} KiB of memory each, {:.2} KiB on disk each",
                count as f64 / took.as_secs_f64(),
                each(before.0, after.0),
                each(before.1, after.1),
            ));
        }
    }
    let readers = match plan.readers {
        0 => None,
        count => {
            let events = (10.0 * plan.seconds * plan.rounds as f64) as usize;
            let floor = Target::start(Kind::Floor, here, bridge, folder)?;
            flat_out::compare(&floor, &target, count)?;
            let least = Readers::open(&floor, count)?.measure(events, &floor)?;
            drop(floor);
            let readers = Readers::open(&target, count)?;
            least.report(&readers.measure(events, &target)?);
            Some(readers)
        }
    };
    let over = AtomicBool::new(readers.is_none());
    let with = thread::scope(|scope| {
        let news = scope.spawn(|| readers::tell(&target, &over));
        let with = measure(plan, &target);
        over.store(true, Ordering::Relaxed);
        news.join()
            .map_err(|_| anyhow!("the event sender panicked"))??;
        with
    })?;
    report(&alone, &with);
    drop(readers);
    if plan.waiting > 0 {
        let begun = Instant::now();
        target.restart()?;
        let listening = begun.elapsed();
        load::first(&target)?;
        let (listening, called) = (listening.as_millis(), begun.elapsed().as_millis());
        say(&format!(
            "killed and restarted: listens after {listening} ms, the first callback after {called} ms"
        ));
    }
    Ok(())
}

/// Sends `count` dispatches with bodies that end with `rest`, over a few connections; returns the time taken.
fn crowd(target: &Target, count: usize, rest: &str) -> anyhow::Result<Duration> {
    let next = AtomicUsize::new(0);
    let begun = Instant::now();
    thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut caller = Caller::connect(target)?;
                    while next.fetch_add(1, Ordering::Relaxed) < count {
                        caller.dispatch("crowd", rest)?;
                    }
                    anyhow::Ok(())
                })
            })
            .collect();
        for caller in callers {
            caller.join().map_err(|_| anyhow!("a caller panicked"))??;
        }
        anyhow::Ok(())
    })?;
    Ok(begun.elapsed())
}

/// Waits until the bridge's metric reaches `count`.
fn settle(target: &Target, metric: &str, count: usize) -> anyhow::Result<()> {
    let begun = Instant::now();
    loop {
        let (status, metrics) = Caller::connect(target)?.call("GET", "/metrics", "")?;
        ensure!(status == 200, "/metrics is answered {status}: {metrics}");
        let there: f64 = metrics
            .lines()
            .filter(|found| found.starts_with(metric))
            .filter_map(|found| found.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum();
        if there >= count as f64 {
            return Ok(());
        }
        ensure!(
            begun.elapsed() < PATIENCE,
            "{metric} is {there}, expected {count}"
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// Measurements in one state of the bridge.
struct Figures {
    load: Vec<Measured>,
    paced: Vec<Latency>,
}

fn measure(plan: &Plan, target: &Target) -> anyhow::Result<Figures> {
    let duration = Duration::from_secs_f64(plan.seconds);
    let mut figures = Figures {
        load: Vec::new(),
        paced: Vec::new(),
    };
    for _ in 0..plan.rounds {
        figures.load.push(load::run(
            &load::Plan {
                concurrency: CALLERS,
                duration,
            },
            &[target],
        )?);
        figures.paced.push(paced(target, plan.rate, duration)?);
    }
    Ok(figures)
}

/// Latency of the 202 at a rate that leaves the bridge mostly idle.
fn paced(target: &Target, rate: f64, duration: Duration) -> anyhow::Result<Latency> {
    let mut caller = Caller::connect(target)?;
    let mut times = Vec::new();
    at_pace(rate, (rate * duration.as_secs_f64()) as usize, |_| {
        times.push(caller.dispatch("paced", r#""model":"ok""#)?);
        Ok(())
    })?;
    Ok(load::latency(times.into_iter()))
}

/// Calls `call` `count` times with its number, waiting for each, at `rate` per second or slower if a call
/// takes longer.
pub(crate) fn at_pace(
    rate: f64,
    count: usize,
    mut call: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    for number in 0..count {
        let at = begun + Duration::from_secs_f64(number as f64 / rate);
        thread::sleep(at.saturating_duration_since(Instant::now()));
        call(number)?;
    }
    Ok(())
}

fn report(alone: &Figures, with: &Figures) {
    let mut lines =
        String::from("\n| figure (median) | unloaded | loaded | ratio |\n|---|---|---|---|\n");
    type Figure = fn(&Figures) -> f64;
    let figures: [(&str, Figure); 4] = [
        ("dispatches per second, 64 in flight", |f| {
            median(f.load.iter().map(|m| m.per_second))
        }),
        ("processor time of a dispatch, µs, 64 in flight", |f| {
            median(f.load.iter().map(|m| m.cpu_us))
        }),
        ("202, p50 µs, at a pace", |f| {
            median(f.paced.iter().map(|l| l.p50_us))
        }),
        ("202, p99 µs, at a pace", |f| {
            median(f.paced.iter().map(|l| l.p99_us))
        }),
    ];
    for (name, figure) in figures {
        let (before, after) = (figure(alone), figure(with));
        lines += &format!(
            "| {name} | {before:.0} | {after:.0} | {:.3} |\n",
            after / before
        );
    }
    say(&lines);
}

/// Connection with one request at a time.
pub(crate) struct Caller {
    stream: TcpStream,
    authority: String,
}

static NUMBER: AtomicU64 = AtomicU64::new(0);

impl Caller {
    pub(crate) fn connect(target: &Target) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(target.listen)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self {
            stream,
            authority: target.listen.to_string(),
        })
    }

    /// Sends one dispatch; returns the time until the 202.
    pub(crate) fn dispatch(&mut self, agent: &str, rest: &str) -> anyhow::Result<Duration> {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        self.dispatch_as(&format!("{agent}-{number}"), agent, rest)
    }

    pub(crate) fn dispatch_as(
        &mut self,
        task: &str,
        agent: &str,
        rest: &str,
    ) -> anyhow::Result<Duration> {
        let body = format!(
            r#"{{"taskId":"{task}","agentId":"{agent}","message":"crowd","provider":"echo","callbackUrl":null,{rest}}}"#
        );
        let begun = Instant::now();
        let (status, answer) = self.call("POST", "/api/v2/dispatch", &body)?;
        ensure!(status == 202, "{status}: {answer}");
        Ok(begun.elapsed())
    }

    /// Sends one request; returns status and body of its answer.
    pub(crate) fn call(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
    ) -> anyhow::Result<(u16, String)> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            self.authority,
            body.len()
        );
        self.stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let mut piece = [0; 16 << 10];
        loop {
            let count = self.stream.read(&mut piece)?;
            ensure!(count > 0, "the bridge closed the connection");
            answer.extend_from_slice(&piece[..count]);
            if let Some((status, body)) = parsed(&answer)? {
                return Ok((status, body));
            }
        }
    }
}

/// Parses an answer with a content length; `None` until it is complete.
fn parsed(answer: &[u8]) -> anyhow::Result<Option<(u16, String)>> {
    let text = String::from_utf8_lossy(answer);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return Ok(None);
    };
    let status = head.get(9..12).context("no status line")?.parse()?;
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .map(|(_, value)| value.trim().parse::<usize>());
    let Some(length) = length.transpose()? else {
        bail!("an answer without a content length: {head}");
    };
    Ok((body.len() >= length).then(|| (status, body.to_owned())))
}
