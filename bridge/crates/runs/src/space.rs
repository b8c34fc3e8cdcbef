//! Watch of the disk: nothing new starts while it is short of space, and the largest attempt is ended before the store
//! suffers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use forge_base::id::{DispatchId, RunId};
use forge_base::time;

use crate::Inner;
use crate::agent::Place;
use crate::decide::Action;
use crate::git::Git;
use crate::wait::{Cause, Wait};

/// Interval at which free space is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest interval at which the sizes of attempts are measured.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);
/// Measuring takes at most one part of this many of the time.
const MEASURE_SHARE: u32 = 20;
/// Time for an attempt to end before another one is ended.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Code of an attempt that was ended because the disk was full. It is no fault of the agent.
pub(crate) const DISK_FULL: &str = "disk_full";
/// Code of an attempt that has exceeded `runs.attempt_bytes`.
const TOO_LARGE: &str = "attempt_too_large";

/// Mark of a dead attempt whose checkout was removed to make room.
pub const REMOVED_FOR_ROOM: &str =
    "disk_full: the disk of the runs was full when the bridge started";

/// State of the disk, and the attempts that run on it.
pub(crate) struct Space {
    short: watch::Sender<Option<Wait>>,
    running: Mutex<BTreeMap<DispatchId, (RunId, Place)>>,
}

impl Space {
    pub(crate) fn new() -> Self {
        Self {
            short: watch::Sender::new(None),
            running: Mutex::default(),
        }
    }

    /// Wait for which nothing new starts.
    pub(crate) fn shortage(&self) -> Option<Wait> {
        self.short.borrow().clone()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<Option<Wait>> {
        self.short.subscribe()
    }

    /// Notes that a dispatch of an agent runs, until the result is dropped.
    pub(crate) fn register(
        inner: &Arc<Inner>,
        run: RunId,
        id: DispatchId,
        place: &Place,
    ) -> Occupied {
        inner.space.running().insert(id, (run, place.clone()));
        Occupied {
            inner: Arc::clone(inner),
            id,
        }
    }

    fn running(&self) -> std::sync::MutexGuard<'_, BTreeMap<DispatchId, (RunId, Place)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attempts(&self) -> Vec<Attempt> {
        let running = self.running();
        let mut attempts: Vec<_> = running
            .values()
            .map(|(run, place)| (*run, place.task.clone(), place.attempt))
            .collect();
        attempts.sort();
        attempts.dedup();
        attempts
    }
}

type Attempt = (RunId, String, u32);

/// Place of a running dispatch in [`Space`].
pub(crate) struct Occupied {
    inner: Arc<Inner>,
    id: DispatchId,
}

impl Drop for Occupied {
    fn drop(&mut self) {
        self.inner.space.running().remove(&self.id);
    }
}

/// True for an action that makes folders or lets something run in them, which waits while the disk is short of space.
pub(crate) fn needs_space(action: &Action) -> bool {
    match action {
        Action::Attach | Action::Captain { .. } | Action::Start { .. } | Action::Merge { .. } => {
            true
        }
        Action::Follow(_) | Action::Push { .. } | Action::Record(_) => false,
    }
}

/// True if the disk is short of space: below the bound, and then until a quarter more is free, so that what starts does
/// not end at once.
fn is_short(was_short: bool, free: u64, bound: u64) -> bool {
    let wanted = match was_short {
        true => bound.saturating_add(bound / 4),
        false => bound,
    };
    free < wanted
}

/// Watches the disk of the runs until the bridge stops.
pub(crate) async fn watch(inner: Arc<Inner>) {
    let Ok(git) = inner.git.clone() else { return };
    let mut measured_at = Instant::now();
    let mut interval = MEASURE_INTERVAL;
    let mut ending: Option<(Attempt, Instant)> = None;
    loop {
        sleep(LOOK_INTERVAL).await;
        let bound = inner.config.free_bytes;
        let looking = git.clone();
        let Ok(Ok(free)) = spawn_blocking(move || looking.free_bytes()).await else {
            continue;
        };
        let was_short = inner.space.short.borrow().is_some();
        let is_short = is_short(was_short, free, bound);
        if is_short != was_short {
            let reason = format!(
                "the disk of `runs.folder` has {free} bytes free, below `runs.free_bytes` ({bound}); nothing new starts"
            );
            match is_short {
                true => tracing::warn!("{reason}"),
                false => tracing::info!("the disk of the runs has {free} bytes free again"),
            }
            let since = inner.clock.now();
            let wait = Wait {
                cause: Cause::Disk,
                reason,
                since,
                until: time::after(since, LOOK_INTERVAL),
                tries: 1,
            };
            inner.space.short.send_replace(is_short.then_some(wait));
        }
        let attempts = inner.space.attempts();
        let is_ending = ending.as_ref().is_some_and(|(attempt, since)| {
            attempts.contains(attempt) && since.elapsed() < END_TIMEOUT
        });
        let must_end = free < bound && !is_ending;
        if attempts.is_empty() || !(must_end || measured_at.elapsed() >= interval) {
            continue;
        }
        let begun = Instant::now();
        let sizes = measure(&git, attempts).await;
        measured_at = Instant::now();
        interval = MEASURE_INTERVAL.max(begun.elapsed() * MEASURE_SHARE);
        let most = inner.config.attempt_bytes;
        for (size, attempt) in sizes.iter().filter(|(size, _)| *size > most) {
            let text = format!(
                "{TOO_LARGE}: its folder has {size} bytes, more than `runs.attempt_bytes` ({most})"
            );
            end(&inner, &git, attempt, &text).await;
        }
        let largest = sizes.into_iter().filter(|(size, _)| *size <= most).max();
        if let Some((size, attempt)) = largest.filter(|_| must_end) {
            let text = format!(
                "{DISK_FULL}: the disk of the runs has {free} bytes free; this attempt was the largest, with {size} bytes"
            );
            end(&inner, &git, &attempt, &text).await;
            ending = Some((attempt, Instant::now()));
        }
    }
}

async fn measure(git: &Git, attempts: Vec<Attempt>) -> Vec<(u64, Attempt)> {
    let git = git.clone();
    let measuring = spawn_blocking(move || {
        let sizes = attempts.into_iter().filter_map(|(run, task, attempt)| {
            let branch = Place::first(&task, attempt).branch(run).ok()?;
            let size = git.attempt_bytes(&run.to_string(), &branch).ok()?;
            Some((size, (run, task, attempt)))
        });
        sizes.collect()
    });
    measuring.await.unwrap_or_default()
}

/// Marks an attempt and cancels its dispatches. Their end is that of the attempt, with the text of the mark.
async fn end(inner: &Inner, git: &Git, (run, task, attempt): &Attempt, text: &str) {
    let Ok(branch) = Place::first(task, *attempt).branch(*run) else {
        return;
    };
    tracing::warn!(%run, "attempt {attempt} of {task} is ended: {text}");
    if let Err(error) = git.mark(&run.to_string(), &branch, text) {
        tracing::warn!(%run, "the reason for the end of an attempt is not kept: {error}");
    }
    let is_of =
        |(of, place): &(RunId, Place)| (of, &place.task, &place.attempt) == (run, task, attempt);
    let running = inner.space.running().clone();
    for (dispatch, _) in running.iter().filter(|(_, place)| is_of(place)) {
        if let Err(error) = inner.dispatcher.cancel(*dispatch).await {
            tracing::warn!(%dispatch, "a step of an attempt without space was not cancelled: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_short_below_the_bound_and_until_a_quarter_more_is_free() {
        for (was_short, free, expected) in [
            (false, 100, false),
            (false, 99, true),
            (true, 100, true),
            (true, 124, true),
            (true, 125, false),
        ] {
            assert_eq!(
                is_short(was_short, free, 100),
                expected,
                "{was_short} {free}"
            );
        }
        assert!(!is_short(true, 0, 0), "without a bound nothing is short");
        assert!(is_short(true, 0, u64::MAX));
    }
}
