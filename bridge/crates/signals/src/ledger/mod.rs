//! Ledger: rules over the stored signals. It judges each signal in the transaction that stores it, from totals in memory;
//! a total that is not there is counted from the stored records first. *Invariant: a total is the sum of the stored
//! records of its window.*

mod executions;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use forge_base::event::{NewEvent, kind};
use forge_base::tasks::Tasks;
use forge_base::time::Clock;
use forge_store::record::{
    Intervention, Judge, Judgement, SignalRecord, SignalSession, SignalVerdict,
};
use forge_store::roles::Signals;

use self::executions::Executions;
pub use self::executions::{Admission, Execution};
use crate::config::Price;
use crate::evaluate::report::RuleReport;
use crate::evaluate::{Evaluator, Key, Stored, Subject, Verdict};
use crate::record::Usage;
use crate::rule::Action;
use crate::terms::Terms;

/// Time that a signal waits for totals that are being counted. Then the rules over them do not judge it.
const COUNT_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two looks at the signals of other bridges.
const OTHERS: Duration = Duration::from_secs(2);
/// Interventions that are remembered over a restart.
const MOST_OPEN: usize = 65_536;

/// Dependencies of the ledger.
pub struct Setup {
    pub store: Arc<dyn Signals>,
    pub clock: Clock,
    /// Tokens of a session at which an event is written.
    pub milestones: Vec<u64>,
    pub terms: Terms,
    pub tracker: Tasks,
}

/// Handle of the ledger. Cheap to clone.
#[derive(Clone)]
pub struct Ledger {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Signals>,
    clock: Clock,
    milestones: Vec<u64>,
    tracker: Tasks,
    evaluator: Mutex<Evaluator>,
    prices: Mutex<Arc<BTreeMap<String, Price>>>,
    executions: Mutex<Executions>,
    /// Counts that run; a receiver is closed at the end of its count.
    counts: Mutex<HashMap<Key, watch::Receiver<()>>>,
    next_count: AtomicU64,
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    /// Reads the interventions that are open.
    pub async fn open(setup: Setup) -> forge_store::Result<Self> {
        let terms = setup.terms;
        let mut evaluator = Evaluator::new(terms.rules, terms.teams);
        let mut open = setup.store.open_interventions(MOST_OPEN).await?;
        open.reverse();
        evaluator.restore(open);
        let inner = Inner {
            store: setup.store,
            clock: setup.clock,
            milestones: setup.milestones,
            tracker: setup.tracker,
            evaluator: Mutex::new(evaluator),
            prices: Mutex::new(Arc::new(terms.prices)),
            executions: Mutex::default(),
            counts: Mutex::default(),
            next_count: AtomicU64::new(0),
        };
        Ok(Self {
            inner: Arc::new(inner),
        })
    }

    /// Adds, until `ending`, what other bridges of the store record to the totals, so that a limit is passed by what came
    /// within `OTHERS` at most.
    pub async fn follow_others(self, ending: CancellationToken) {
        let mut after = None;
        loop {
            // Without rules nothing is counted: the position is enough.
            after = after.filter(|_| self.rules() > 0);
            match self.inner.store.signals_of_others(after).await {
                Ok((next, others)) => {
                    after = Some(next);
                    self.evaluator().add_others(&others);
                }
                Err(error) => tracing::debug!(%error, "signals of other bridges are not read"),
            }
            if ending.run_until_cancelled(sleep(OTHERS)).await.is_none() {
                return;
            }
        }
    }

    /// Takes over changed settings. Totals that changed rules look at are counted again.
    pub fn replace(&self, terms: Terms) {
        self.evaluator().replace(terms.rules, terms.teams);
        *lock(&self.inner.prices) = Arc::new(terms.prices);
        lock(&self.inner.counts).clear();
    }

    /// Number of rules in force.
    pub fn rules(&self) -> usize {
        self.evaluator().rules().len()
    }

    /// Cost by the configured prices in micro-dollars; `None` for a model without a price.
    pub fn cost(&self, model: Option<&str>, usage: &Usage) -> Option<u64> {
        let prices = Arc::clone(&lock(&self.inner.prices));
        prices.get(model?)?.cost(usage)
    }

    /// Waits until the totals that a record counts for are counted, for a second at most.
    pub async fn prepare(&self, subject: &Subject<'_>) {
        self.prepare_within(subject, COUNT_TIMEOUT).await;
    }

    /// Rules and budgets of the file with their fullest windows. What a signal of these sessions would count for is
    /// counted first, so that windows are reported after a restart, too.
    pub async fn report(&self, sessions: &[SignalSession]) -> Vec<RuleReport> {
        let mut missing = HashSet::new();
        for session in sessions {
            let record = SignalRecord {
                user_id: session.user_id.clone(),
                project_id: session.project_id.clone(),
                ..SignalRecord::default()
            };
            missing.extend(self.evaluator().missing(&Subject::new(session, &record)));
        }
        self.count_within(missing, COUNT_TIMEOUT).await;
        self.evaluator().report(sessions, self.inner.clock.now())
    }

    async fn prepare_within(&self, subject: &Subject<'_>, wait: Duration) {
        let missing = self.evaluator().missing(subject);
        self.count_within(missing, wait).await;
    }

    async fn count_within(&self, missing: impl IntoIterator<Item = Key>, wait: Duration) {
        let counts: Vec<_> = missing.into_iter().map(|key| self.count(key)).collect();
        if counts.is_empty() {
            return;
        }
        let counted = async {
            for mut count in counts {
                // Nothing is ever sent: it fails at the end of the count.
                let _ = count.changed().await;
            }
        };
        if timeout(wait, counted).await.is_err() {
            tracing::warn!(
                "totals of signals are still being counted; rules over them do not judge yet"
            );
        }
    }

    /// Verdict from the totals in memory, for a signal that cannot be stored. It changes nothing.
    pub fn judge_unstored(&self, subject: &Subject<'_>) -> SignalVerdict {
        let mut evaluator = self.evaluator();
        let verdict = evaluator.judge(subject, subject.record.at);
        let told = verdict.told();
        evaluator.take_back(verdict.change);
        told
    }

    fn evaluator(&self) -> MutexGuard<'_, Evaluator> {
        lock(&self.inner.evaluator)
    }

    /// Begins to count a value unless that has begun.
    fn count(&self, key: Key) -> watch::Receiver<()> {
        let mut counts = lock(&self.inner.counts);
        if let Some(running) = counts.get(&key) {
            return running.clone();
        }
        let (ends, running) = watch::channel(());
        counts.insert(key.clone(), running.clone());
        drop(counts);
        let ledger = self.clone();
        let count = self.inner.next_count.fetch_add(1, Ordering::Relaxed);
        self.inner.tracker.spawn(async move {
            if let Err(error) = ledger.count_stored(&key, count).await {
                tracing::warn!("totals of signals cannot be counted: {error}");
                ledger.evaluator().abandon(&key, count);
            }
            lock(&ledger.inner.counts).remove(&key);
            drop(ends);
        });
        running
    }

    async fn count_stored(&self, key: &Key, count: u64) -> forge_store::Result<()> {
        let marked = {
            let (ledger, key) = (self.clone(), key.clone());
            Arc::new(move || ledger.evaluator().begin(&key, count))
        };
        let last = self.inner.store.mark_signals(marked).await?;
        let (group, since) = self.evaluator().stored(key, self.inner.clock.now());
        let amounts = self.inner.store.signal_amounts(group, since, last).await?;
        let (last, others) = self.inner.store.signals_of_others(Some(last)).await?;
        let stored = Stored {
            amounts,
            others,
            last,
        };
        self.evaluator().complete(key, count, &stored);
        Ok(())
    }
}

impl Judge for Ledger {
    fn judge(&self, session: &SignalSession, record: &SignalRecord) -> Judgement {
        let subject = Subject::new(session, record);
        let verdict = self.evaluator().judge(&subject, record.at);
        self.follow(&subject, &verdict.begun);
        let mut events: Vec<_> = verdict.interventions().flat_map(begun_events).collect();
        let mut told = verdict.told();
        for milestone in self.inner.reached(session, record) {
            told.is_noted = true;
            let milestone = json!({"sessionId": session.id, "milestone": milestone});
            events.push(NewEvent::new(kind::SIGNAL_MILESTONE, record.at).with(&milestone));
        }
        let begins = verdict.interventions().cloned().collect();
        let (ledger, change) = (self.clone(), verdict.change);
        Judgement {
            verdict: told,
            begins,
            ends: verdict.ended,
            events,
            undo: Box::new(move || ledger.evaluator().take_back(change)),
        }
    }
}

impl Inner {
    /// Milestones that the tokens of a session reach with a record.
    fn reached(&self, session: &SignalSession, record: &SignalRecord) -> Vec<u64> {
        let sum = |tokens_in: u64, tokens_out: u64| tokens_in.saturating_add(tokens_out);
        let before = sum(session.totals.tokens_in, session.totals.tokens_out);
        let tokens = [record.tokens_in, record.tokens_out].map(|tokens| tokens.unwrap_or(0));
        let after = before.saturating_add(sum(tokens[0], tokens[1]));
        let all = self.milestones.iter().copied();
        all.filter(|milestone| before < *milestone && *milestone <= after)
            .collect()
    }
}

impl Verdict {
    /// Interventions that began.
    fn interventions(&self) -> impl Iterator<Item = &Intervention> {
        self.begun
            .iter()
            .filter_map(|held| held.intervention.as_ref())
    }

    /// Answer to the tool: the rule that blocks, else a notification that began.
    fn told(&self) -> SignalVerdict {
        let blocked = self.is_blocked();
        let decided = self.decided.as_ref();
        let intervention = match blocked {
            true => decided.and_then(|held| held.intervention.as_ref()),
            false => self.interventions().next(),
        };
        SignalVerdict {
            blocked,
            intervention: intervention.cloned(),
            is_noted: decided.is_some_and(|held| held.rule.action == Action::Allow),
        }
    }
}

fn begun_events(one: &Intervention) -> Vec<NewEvent> {
    let told = json!({
        "interventionId": one.id, "ruleId": one.rule_id, "severity": one.severity, "sessionId": one.session_id,
    });
    let kinds = [kind::SIGNAL_INTERVENTION, kind::SIGNAL_BLOCKED];
    let kinds = kinds.into_iter().take(1 + usize::from(one.blocks));
    kinds
        .map(|kind| NewEvent::new(kind, one.at).with(&told))
        .collect()
}
