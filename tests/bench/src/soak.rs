//! Soak test: a long run at a fixed rate, bridge and floor side by side. Reports stalls of one without the
//! other, and whether memory and files stay constant while retention removes old records.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;

use super::load::{self, Paced};
use super::report::say;
use super::target::{Kind, Target};

/// Minimum answer time that counts as a stall.
const STALL: Duration = Duration::from_millis(100);
/// Maximum distance of stalls in both that count as one cause, such as the disk.
const TOGETHER: Duration = Duration::from_secs(1);
const MIB: f64 = 1024.0;

#[derive(Args)]
pub(crate) struct Plan {
    /// Dispatches per second, to each of the two servers.
    #[arg(long, default_value_t = 200.0, value_parser = load::positive)]
    rate: f64,
    #[arg(long, default_value_t = 30.0, value_parser = load::positive)]
    minutes: f64,
    /// Retention of finished dispatches in the bridge.
    #[arg(long, default_value = "2m")]
    keep: String,
}

pub(crate) fn run(plan: &Plan, here: &Path, bridge: &Path, folder: &Path) -> anyhow::Result<()> {
    let settings = [
        ("BRIDGE_RETENTION_RECORDS", plan.keep.clone()),
        ("BRIDGE_RETENTION_EVERY", "10s".to_owned()),
    ];
    let floor = Target::start(Kind::Floor, here, bridge, folder)?;
    let bridge = Target::start_with(Kind::Bridge, here, bridge, folder, &settings)?;
    let duration = Duration::from_secs_f64(plan.minutes * 60.0);
    let begun = Instant::now();
    let (of_floor, of_bridge) = thread::scope(|scope| {
        let send = |target| scope.spawn(move || load::paced(target, plan.rate, duration));
        let (of_floor, of_bridge) = (send(&floor), send(&bridge));
        watch(&bridge, begun, duration)?;
        let joined = |sender: thread::ScopedJoinHandle<'_, anyhow::Result<Paced>>| {
            sender.join().map_err(|_| anyhow!("a sender panicked"))?
        };
        anyhow::Ok((joined(of_floor)?, joined(of_bridge)?))
    })?;
    let floor_stalled = stalls(&of_floor, begun);
    let alone = stalls(&of_bridge, begun).into_iter().filter(|at| {
        let together = |other: &Duration| other.abs_diff(*at) <= TOGETHER;
        !floor_stalled.iter().any(together)
    });
    let alone: Vec<Duration> = alone.collect();
    for (name, paced) in [("floor", &of_floor), ("bridge", &of_bridge)] {
        let took = load::latency(acks(paced));
        let slowest = acks(paced).max();
        say(&format!(
            "{name}: {} answered, {} lost, 202 after p50 {:.2} ms, p99 {:.2} ms, max {:.1} ms",
            paced.answered.len(),
            paced.lost,
            took.p50_us / 1000.0,
            took.p99_us / 1000.0,
            slowest.unwrap_or_default().as_secs_f64() * 1000.0,
        ));
    }
    say(&format!(
        "stalls above {} ms: floor {}, bridge alone {}{}",
        STALL.as_millis(),
        floor_stalled.len(),
        alone.len(),
        alone
            .first()
            .map(|at| format!(", the first after {:.1} s", at.as_secs_f64()))
            .unwrap_or_default(),
    ));
    Ok(())
}

/// Reports the bridge's memory and disk use once a minute.
fn watch(bridge: &Target, begun: Instant, duration: Duration) -> anyhow::Result<()> {
    let mut minute = 0;
    while begun.elapsed() < duration {
        minute += 1;
        let next = (begun + Duration::from_secs(60 * minute)).min(begun + duration);
        thread::sleep(next.saturating_duration_since(Instant::now()));
        say(&format!(
            "minute {minute}: memory {:.1} MiB, files {:.1} MiB",
            bridge.used()?.rss_kib as f64 / MIB,
            bridge.disk_kib()? as f64 / MIB,
        ));
    }
    Ok(())
}

fn acks(paced: &Paced) -> impl Iterator<Item = Duration> {
    paced.answered.iter().map(|answered| answered.ack)
}

/// Send times of late answers, relative to `begun`; times within `TOGETHER` count as one stall.
fn stalls(paced: &Paced, begun: Instant) -> Vec<Duration> {
    let late = paced
        .answered
        .iter()
        .filter(|answered| answered.ack > STALL);
    let mut late: Vec<Duration> = late.map(|answered| answered.sent - begun).collect();
    late.sort_unstable();
    late.dedup_by(|later, first| *later - *first <= TOGETHER);
    late
}
