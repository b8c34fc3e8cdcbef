//! Start of a bridge whose store has many ended runs.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use serde_json::json;

use super::super::loaded::{Caller, PATIENCE};
use super::super::target::Target;
use super::origin::Origin;

const CALLERS: usize = 16;

/// Creates runs that end at once, since their repository has no such branch.
pub(crate) fn fill(target: &Target, origin: &Origin, runs: usize) -> anyhow::Result<()> {
    let body = json!({ "repoUrl": origin.url(), "ref": "absent" }).to_string();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let worker = || {
            let mut caller = Caller::connect(target)?;
            while next.fetch_add(1, Ordering::Relaxed) < runs {
                let (status, answer) = caller.call("POST", "/api/v1/runs", &body)?;
                ensure!(status == 201, "{status}: {answer}");
            }
            anyhow::Ok(())
        };
        let workers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a caller panicked"))??;
        }
        anyhow::Ok(())
    })?;
    let mut caller = Caller::connect(target)?;
    let ended = format!("forge_bridge_runs_ended_total{{status=\"failed\"}} {runs}");
    let (begun, patience) = (Instant::now(), PATIENCE * 10);
    loop {
        let (_, page) = caller.call("GET", "/metrics", "")?;
        if page.lines().any(|line| line == ended) {
            return Ok(());
        }
        ensure!(begun.elapsed() < patience, "the runs do not end");
        thread::sleep(Duration::from_millis(100));
    }
}

/// Kills and restarts the bridge; returns the time until it listens.
pub(crate) fn again(target: &mut Target) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    target.restart()?;
    Ok(begun.elapsed())
}
