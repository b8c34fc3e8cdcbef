//! Signals that were refused as unauthorized: counted by API, adapter and reason, and logged at most once a minute for
//! each. Anybody can cause them, so the number of adapters is bounded and the request does not wait for the log.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use forge_base::event::{NewEvent, kind};
use forge_base::metrics::Table;
use forge_base::tasks::Rounds;
use forge_base::text::is_unseen;
use forge_base::time::{self, Clock};
use forge_store::roles::Signals;

/// Adapters with a row of their own; the others share one.
const ADAPTERS: usize = 64;
/// Label of signals whose adapter is not known.
const UNKNOWN: &str = "unknown";
/// Maximum length of a label, in bytes.
const LABEL_BYTES: usize = 64;
/// Minimum time between two events of one API, adapter and reason.
const LOG_EVERY: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// API that refused a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    Agent,
    Engine,
}

const APIS: [&str; 2] = ["agent", "engine"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No token, or an unknown or expired one.
    Token,
    /// No signature, several ones, or another form.
    SignatureForm,
    /// Signed with another key, or for a session that is not known.
    Signature,
}

const REASONS: [&str; 3] = ["token", "signature_form", "signature"];

/// Counts of one API, adapter and reason.
#[derive(Debug, Default)]
struct Cell {
    count: AtomicU64,
    logged: Mutex<Logged>,
}

#[derive(Debug, Default)]
struct Logged {
    count: u64,
    at: Option<Timestamp>,
}

impl Cell {
    /// Number of refusals to log now.
    fn due(&self, now: Timestamp) -> Option<u64> {
        let count = self.count.load(Ordering::Relaxed);
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let is_early = logged
            .at
            .is_some_and(|at| !time::has_come(time::after(at, LOG_EVERY), now, LOG_EVERY));
        if count == logged.count || is_early {
            return None;
        }
        let new = count - logged.count;
        *logged = Logged {
            count,
            at: Some(now),
        };
        Some(new)
    }
}

/// Counts and log of refusals. Cheap to clone.
#[derive(Clone)]
pub struct Refusals {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Signals>,
    clock: Clock,
    /// By `APIS`, then `REASONS`.
    adapters: Table<[[Cell; REASONS.len()]; APIS.len()]>,
}

impl fmt::Debug for Refusals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refusals").finish_non_exhaustive()
    }
}

impl Refusals {
    pub fn new(store: Arc<dyn Signals>, clock: Clock) -> Self {
        let adapters = Table::new(ADAPTERS);
        // It is there from the start, so that a rate has a value before the first refusal.
        adapters.row(UNKNOWN);
        Self {
            inner: Arc::new(Inner {
                store,
                clock,
                adapters,
            }),
        }
    }

    /// Counts a refusal. The adapter is the one that the signal names, if it could be read.
    pub fn count(&self, api: Api, adapter: Option<&str>, reason: Reason) {
        let named = adapter
            .filter(|name| (1..=LABEL_BYTES).contains(&name.len()) && !name.contains(is_unseen));
        let row = self.inner.adapters.row(named.unwrap_or(UNKNOWN));
        let cell = &row[api as usize][reason as usize];
        cell.count.fetch_add(1, Ordering::Relaxed);
    }

    /// API, adapter, reason and number of refusals, where the number is not 0 or the adapter not known.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, &str, &'static str, u64)> {
        self.cells().filter_map(|(api, adapter, reason, cell)| {
            let count = cell.count.load(Ordering::Relaxed);
            let is_shown = count > 0 || adapter == UNKNOWN;
            is_shown.then_some((api, adapter, reason, count))
        })
    }

    fn cells(&self) -> impl Iterator<Item = (&'static str, &str, &'static str, &Cell)> {
        self.inner.adapters.rows().flat_map(|(adapter, apis)| {
            APIS.into_iter().zip(apis).flat_map(move |(api, reasons)| {
                let cells = REASONS.into_iter().zip(reasons);
                cells.map(move |(reason, cell)| (api, adapter, reason, cell))
            })
        })
    }

    /// Logs what was refused, until the token is cancelled.
    pub async fn run(self, ending: CancellationToken) {
        let mut rounds = Rounds::every(LOOK_EVERY, ending);
        while rounds.due().await {
            rounds.work(self.log()).await;
        }
    }

    async fn log(&self) {
        let now = self.inner.clock.now();
        let due = self.cells().filter_map(|(source, adapter, reason, cell)| {
            let count = cell.due(now)?;
            tracing::warn!(
                source,
                adapter,
                reason,
                count,
                "signals were refused: {count} of {adapter:?} on the API {source}, for the {reason}"
            );
            let event = NewEvent::new(kind::SIGNAL_REFUSED, now);
            Some(event.with(&json!({
                "source": source, "adapter": adapter, "reason": reason, "count": count,
            })))
        });
        let events: Vec<_> = due.collect();
        if events.is_empty() {
            return;
        }
        // It ends no session, and appends the events.
        let appended = self.inner.store.end_signal_sessions(Vec::new(), events);
        if let Err(error) = appended.await {
            tracing::warn!("events about refused signals are not stored: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use forge_store::memory::Memory;
    use forge_store::record::EventFilter;
    use forge_store::roles::EventLog as _;

    use super::*;

    async fn logged(store: &Memory) -> Vec<String> {
        let page = store.events(&EventFilter::default(), 0, 100).await.unwrap();
        let data = page.events.iter();
        data.map(|event| event.data.as_ref().unwrap().get().to_owned())
            .collect()
    }

    #[tokio::test]
    async fn a_refusal_is_logged_once_a_minute_with_the_number_of_the_others() {
        tokio::time::pause();
        let store = Arc::new(Memory::default());
        let refusals = Refusals::new(Arc::clone(&store) as _, Clock::tokio());
        let refuse = |times: u64| {
            (0..times).for_each(|_| refusals.count(Api::Engine, Some("a"), Reason::Signature));
        };
        refusals.log().await;
        refuse(1);
        refusals.log().await;
        refuse(3);
        refusals.count(Api::Agent, None, Reason::Token);
        tokio::time::advance(LOG_EVERY - Duration::from_millis(1)).await;
        refusals.log().await;
        // In the order of their rows.
        let first = r#"{"adapter":"a","count":1,"reason":"signature","source":"engine"}"#;
        let other = r#"{"adapter":"unknown","count":1,"reason":"token","source":"agent"}"#;
        assert_eq!(logged(&store).await, [first, other]);
        tokio::time::advance(Duration::from_millis(1)).await;
        refusals.log().await;
        refusals.log().await;
        let later = r#"{"adapter":"a","count":3,"reason":"signature","source":"engine"}"#;
        assert_eq!(logged(&store).await, [first, other, later]);
        let counts = refusals.counts().filter(|(.., count)| *count > 0);
        let counts: Vec<_> = counts.collect();
        let expected = [
            ("agent", "unknown", "token", 1),
            ("engine", "a", "signature", 4),
        ];
        assert_eq!(counts, expected);
    }

    #[tokio::test]
    async fn more_adapters_than_have_a_row_share_one() {
        let refusals = Refusals::new(Arc::new(Memory::default()), Clock::System);
        for number in 0..100 {
            let name = format!("adapter-{number}");
            refusals.count(Api::Agent, Some(&name), Reason::Signature);
        }
        refusals.count(Api::Agent, Some(&"x".repeat(65)), Reason::Signature);
        let mut names: Vec<_> = refusals.counts().map(|(_, name, _, _)| name).collect();
        names.dedup();
        assert_eq!(names.len(), ADAPTERS + 1);
        assert_eq!(names.last(), Some(&"other"));
        let all: u64 = refusals.counts().map(|(.., count)| count).sum();
        assert_eq!(all, 101);
    }
}
