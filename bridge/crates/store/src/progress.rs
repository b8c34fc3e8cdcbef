//! Progress of the writer of a store, the same for every store: the age of the oldest change without an answer, of the
//! operation under way and of the last commit. A writer that hangs reports no error, so its health is judged by these
//! ages. *Invariant: an update is a few atomic operations and never waits.*

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Age from which the store is degraded.
pub const SLOW: Duration = Duration::from_secs(2);
/// Shortest pause between two looks of `WriteProgress::stalled`.
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// Bits of the kind in `WriteProgress::work`, below the time.
const WORK_BITS: u32 = 4;

/// Operation of the writer that can hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Connecting to a database, with its handshakes.
    Connect,
    /// Statements of a transaction before its commit.
    Statement,
    Commit,
    Checkpoint,
    /// The question what became of a commit whose answer was lost.
    Outcome,
    /// The last checkpoint, and the end of the connections.
    Close,
}

impl Work {
    const ALL: [Self; 6] = [
        Self::Connect,
        Self::Statement,
        Self::Commit,
        Self::Checkpoint,
        Self::Outcome,
        Self::Close,
    ];

    /// Number above zero, which means none.
    fn code(self) -> u64 {
        self as u64 + 1
    }

    fn of(code: u64) -> Option<Self> {
        let place = usize::try_from(code.checked_sub(1)?).ok()?;
        Self::ALL.get(place).copied()
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "a connection to the database",
            Self::Statement => "a write",
            Self::Commit => "a commit",
            Self::Checkpoint => "a checkpoint",
            Self::Outcome => "the question about the outcome of a commit",
            Self::Close => "the close of the store",
        })
    }
}

/// Ages at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgressReport {
    /// Age of the oldest change that waits in the queue or is in the batch under way.
    pub oldest_change: Option<Duration>,
    /// Operation under way, and its age.
    pub work: Option<(Work, Duration)>,
    /// Time since the last commit, or since the store was opened.
    pub last_commit: Duration,
}

impl ProgressReport {
    /// Time for which nothing has moved although there is something to do.
    pub fn standstill(&self) -> Duration {
        let work = self.work.map_or(Duration::ZERO, |(_, age)| age);
        // A long queue that is worked off is slow, but no standstill.
        let oldest = self.oldest_change.unwrap_or_default();
        work.max(oldest.min(self.last_commit))
    }
}

/// Ability of a store to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreHealth {
    Well,
    /// Changes are made, but late; with the reason.
    Degraded(String),
    /// Changes are refused; with the reason.
    Offline(String),
}

impl StoreHealth {
    /// Reason of a degraded or offline store.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Well => None,
            Self::Degraded(reason) | Self::Offline(reason) => Some(reason),
        }
    }

    /// `Ok` while changes are made, otherwise the reason why not.
    pub fn writable(self) -> Result<(), String> {
        match self {
            Self::Well | Self::Degraded(_) => Ok(()),
            Self::Offline(reason) => Err(reason),
        }
    }
}

/// Judges the ages: degraded from [`SLOW`], offline when nothing has moved for `stall`.
pub fn judge(report: &ProgressReport, stall: Duration) -> StoreHealth {
    let standstill = report.standstill();
    let oldest = report.oldest_change.unwrap_or_default();
    let age = standstill.max(oldest);
    if age < SLOW.min(stall) {
        return StoreHealth::Well;
    }
    let reason = match report.work {
        Some((work, age)) if age >= SLOW.min(stall) => {
            format!("{work} has been under way for {} s", age.as_secs())
        }
        Some(_) | None => format!(
            "a change has been waiting to be written for {} s",
            oldest.as_secs()
        ),
    };
    match standstill >= stall {
        true => StoreHealth::Offline(reason),
        false => StoreHealth::Degraded(reason),
    }
}

/// Progress of one writer, which publishes it; anything else reads it. Times are those of the monotonic clock.
#[derive(Debug)]
pub struct WriteProgress {
    stall: Duration,
    opened: Instant,
    // Microseconds since `opened`, plus one; 0: none.
    waiting_since: AtomicU64,
    batch_since: AtomicU64,
    committed_at: AtomicU64,
    /// Begin of the work, with its kind in the low bits.
    work: AtomicU64,
}

impl WriteProgress {
    /// Progress of a store that is offline after a standstill of `stall`.
    pub fn new(stall: Duration) -> Self {
        Self {
            stall,
            opened: Instant::now(),
            waiting_since: AtomicU64::new(0),
            batch_since: AtomicU64::new(0),
            committed_at: AtomicU64::new(0),
            work: AtomicU64::new(0),
        }
    }

    pub fn stall(&self) -> Duration {
        self.stall
    }

    /// Publishes the arrival of the oldest change in the queue. The caller holds the lock of the queue.
    pub fn set_waiting(&self, oldest: Option<Instant>) {
        self.waiting_since
            .store(self.mark(oldest), Ordering::Relaxed);
    }

    /// Publishes the arrival of the oldest change of the batch under way; `None` once all of it is answered.
    pub fn set_batch(&self, oldest: Option<Instant>) {
        self.batch_since.store(self.mark(oldest), Ordering::Relaxed);
    }

    /// Publishes a commit.
    pub fn committed(&self) {
        let now = self.mark(Some(Instant::now()));
        self.committed_at.store(now, Ordering::Relaxed);
    }

    /// Publishes an operation of the writer until the guard is dropped. Inside another one it hides that one.
    pub fn working(&self, work: Work) -> Working<'_> {
        let mark = self.mark(Some(Instant::now())) << WORK_BITS | work.code();
        Working {
            progress: self,
            before: self.work.swap(mark, Ordering::Relaxed),
        }
    }

    pub fn report(&self) -> ProgressReport {
        let now = Instant::now();
        let age = |mark: &AtomicU64| self.age(mark.load(Ordering::Relaxed), now);
        let work = self.work.load(Ordering::Relaxed);
        let kind = Work::of(work & ((1 << WORK_BITS) - 1));
        ProgressReport {
            oldest_change: age(&self.waiting_since).max(age(&self.batch_since)),
            work: kind.zip(self.age(work >> WORK_BITS, now)),
            last_commit: age(&self.committed_at)
                .unwrap_or_else(|| now.saturating_duration_since(self.opened)),
        }
    }

    pub fn health(&self) -> StoreHealth {
        judge(&self.report(), self.stall)
    }

    /// Reason why a change is refused at once: nothing has moved for `stall`.
    pub fn refusal(&self) -> Option<String> {
        self.health().writable().err()
    }

    /// Returns, with the reason, once nothing has moved for `stall`.
    pub async fn stalled(&self) -> String {
        loop {
            let report = self.report();
            if let StoreHealth::Offline(reason) = judge(&report, self.stall) {
                return reason;
            }
            let left = self.stall.saturating_sub(report.standstill());
            tokio::time::sleep(left.max(MIN_PAUSE)).await;
        }
    }

    fn mark(&self, at: Option<Instant>) -> u64 {
        let since = at.map(|at| at.saturating_duration_since(self.opened));
        since.map_or(0, |since| since.as_micros() as u64 + 1)
    }

    fn age(&self, mark: u64, now: Instant) -> Option<Duration> {
        let since = Duration::from_micros(mark.checked_sub(1)?);
        Some(now.saturating_duration_since(self.opened + since))
    }
}

/// An operation under way, from [`WriteProgress::working`].
#[derive(Debug)]
#[must_use = "the operation ends when this is dropped"]
pub struct Working<'a> {
    progress: &'a WriteProgress,
    before: u64,
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.progress.work.store(self.before, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALL: Duration = Duration::from_secs(10);

    fn report(oldest: Option<u64>, work: Option<(Work, u64)>, commit: u64) -> ProgressReport {
        ProgressReport {
            oldest_change: oldest.map(Duration::from_millis),
            work: work.map(|(work, age)| (work, Duration::from_millis(age))),
            last_commit: Duration::from_millis(commit),
        }
    }

    #[test]
    fn health_follows_the_ages() {
        let degraded = |text: &str| StoreHealth::Degraded(text.to_owned());
        let offline = |text: &str| StoreHealth::Offline(text.to_owned());
        for (oldest, work, commit, health) in [
            (None, None, 0, StoreHealth::Well),
            // Nothing to do for an hour.
            (None, None, 3_600_000, StoreHealth::Well),
            (
                Some(1_999),
                Some((Work::Commit, 1_990)),
                1_999,
                StoreHealth::Well,
            ),
            (
                Some(2_000),
                Some((Work::Commit, 2_000)),
                2_000,
                degraded("a commit has been under way for 2 s"),
            ),
            (
                None,
                Some((Work::Checkpoint, 9_999)),
                20_000,
                degraded("a checkpoint has been under way for 9 s"),
            ),
            (
                None,
                Some((Work::Checkpoint, 10_000)),
                20_000,
                offline("a checkpoint has been under way for 10 s"),
            ),
            // No operation takes long, but all together do.
            (
                Some(12_000),
                Some((Work::Statement, 300)),
                60_000,
                offline("a change has been waiting to be written for 12 s"),
            ),
            // A long queue that is worked off.
            (
                Some(12_000),
                Some((Work::Statement, 3)),
                30,
                degraded("a change has been waiting to be written for 12 s"),
            ),
            // The first change after an idle hour.
            (
                Some(3),
                Some((Work::Commit, 2)),
                3_600_000,
                StoreHealth::Well,
            ),
        ] {
            let report = report(oldest, work, commit);
            assert_eq!(judge(&report, STALL), health, "{report:?}");
        }
    }

    #[test]
    fn a_stall_below_two_seconds_is_offline_at_once() {
        let report = report(None, Some((Work::Commit, 700)), 700);
        let health = judge(&report, Duration::from_millis(500));
        assert!(matches!(health, StoreHealth::Offline(_)), "{health:?}");
    }

    #[test]
    fn every_kind_of_work_is_found_again() {
        let progress = WriteProgress::new(STALL);
        for work in Work::ALL {
            let _working = progress.working(work);
            assert_eq!(progress.report().work.map(|(work, _)| work), Some(work));
        }
        assert_eq!(progress.report().work, None);
    }

    #[test]
    fn an_operation_ends_with_its_guard_and_uncovers_the_outer_one() {
        let progress = WriteProgress::new(STALL);
        let outer = progress.working(Work::Outcome);
        drop(progress.working(Work::Connect));
        assert_eq!(
            progress.report().work.map(|(work, _)| work),
            Some(Work::Outcome)
        );
        drop(outer);
        assert_eq!(progress.report().work, None);
    }

    #[tokio::test]
    async fn a_standstill_is_noticed_and_forgotten() {
        let progress = WriteProgress::new(Duration::from_millis(50));
        assert_eq!(progress.refusal(), None);
        progress.set_waiting(Some(Instant::now()));
        let reason = progress.stalled().await;
        assert!(reason.contains("waiting to be written"), "{reason}");
        progress.set_waiting(None);
        assert_eq!(progress.health(), StoreHealth::Well);
    }
}
