//! Accepted dispatches and their outcomes, as seen by the drill's clients, its receiver and the adapter's journal.
//! The bridge itself is not queried before the end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::sleep;

use super::super::client::{Client, Error, Target};
use super::super::screen::text;
use super::super::sink::Callback;

/// Concurrent requests at the end.
const AT_ONCE: usize = 16;
/// Pause before a record is read again.
const AGAIN: Duration = Duration::from_millis(50);
const PAGE: &str = "1000";
/// Maximum attempts of a dispatch whose policy allows retries after a crash.
const MOST_ATTEMPTS: usize = 3;

#[derive(Default)]
pub(super) struct Ledger {
    state: Mutex<State>,
}

#[derive(Clone, Default)]
struct State {
    /// Recovery policy by dispatch id.
    accepted: BTreeMap<String, &'static str>,
    /// First callback by dispatch id.
    received: HashMap<String, Receipt>,
    /// Dispatches accepted without a callback so far.
    open: BTreeSet<String>,
    duplicates: usize,
    broken: Vec<String>,
    /// Last kill and the dispatches open at that time; `None` once the first of their callbacks arrives.
    killed: Option<(Instant, BTreeSet<String>)>,
    waits: Vec<Duration>,
    /// Times at which executions were interrupted, and what was to go on with them.
    faults: Vec<(Timestamp, Recovery)>,
}

/// Way in which the work of a killed or stopped bridge is continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recovery {
    /// Its next start.
    Restart,
    /// The others, after the end of its lease.
    TakeOver,
}

#[derive(Clone)]
struct Receipt {
    webhook_id: String,
    body: u64,
}

/// Counts and violations at the end of a drill.
pub(super) struct Findings {
    pub(super) accepted: usize,
    pub(super) executed: usize,
    pub(super) executed_again: usize,
    pub(super) interrupted: usize,
    pub(super) delivered: usize,
    pub(super) duplicates: usize,
    pub(super) lost: usize,
    pub(super) events: usize,
    /// Violated guarantees.
    pub(super) broken: Vec<String>,
    /// Time from each kill to the first callback of a dispatch open at that kill.
    pub(super) waits: Vec<Duration>,
    /// Time from each kill without a restart, and from each stop, to the last take-over that it caused.
    pub(super) take_overs: Vec<Duration>,
}

impl Ledger {
    pub(super) fn accept(&self, id: String, policy: &'static str) {
        let mut state = self.state();
        if !state.received.contains_key(&id) {
            state.open.insert(id.clone());
        }
        state.accepted.insert(id, policy);
    }

    pub(super) fn breach(&self, what: String) {
        self.state().broken.push(what);
    }

    /// Number of dispatches accepted without a callback so far.
    pub(super) fn open(&self) -> usize {
        self.state().open.len()
    }

    /// Numbers of accepted dispatches, delivered dispatches and duplicate callbacks.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let state = self.state();
        let accepted = state.accepted.len();
        (accepted, accepted - state.open.len(), state.duplicates)
    }

    /// Notes that a bridge was stopped for longer than its lease.
    pub(super) fn stopped(&self) {
        let fault = (Timestamp::now(), Recovery::TakeOver);
        self.state().faults.push(fault);
    }

    pub(super) fn killed(&self, at: Instant, recovery: Recovery) {
        let mut state = self.state();
        state.faults.push((Timestamp::now(), recovery));
        let owed = state.open.clone();
        state.killed = (!owed.is_empty()).then_some((at, owed));
    }

    pub(super) fn receive(&self, callback: &Callback) {
        let now = Instant::now();
        let mut state = self.state();
        let Ok(body) = serde_json::from_slice::<Value>(&callback.body) else {
            return state.broken.push("a callback is not JSON".to_owned());
        };
        let id = text(&body, "/dispatchId");
        let receipt = Receipt {
            webhook_id: callback.header("webhook-id").unwrap_or("-").to_owned(),
            body: digest(&body),
        };
        if let Some((at, owed)) = &state.killed
            && owed.contains(&id)
        {
            let wait = now.duration_since(*at);
            state.waits.push(wait);
            state.killed = None;
        }
        state.open.remove(&id);
        match state.received.get(&id) {
            None => {
                state.received.insert(id, receipt);
            }
            Some(first) => {
                let same_id = first.webhook_id == receipt.webhook_id;
                let same_body = first.body == receipt.body;
                state.duplicates += 1;
                if !same_id {
                    let what = format!("{id} was delivered with two webhook-ids");
                    state.broken.push(what);
                }
                if !same_body {
                    state.broken.push(format!("{id} has conflicting results"));
                }
            }
        }
    }

    /// Reads every accepted dispatch once it is settled, or at the deadline, and the event log, and compares them with
    /// the callbacks and the journal.
    pub(super) async fn settle(
        &self,
        client: &Client,
        journal: &Path,
        deadline: Instant,
    ) -> anyhow::Result<Findings> {
        let ids: Vec<String> = self.state().accepted.keys().cloned().collect();
        let records: Vec<_> = stream::iter(ids)
            .map(|id| async move {
                let record = self.settled(client, &id, deadline).await;
                (id, record)
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut state = self.state().clone();
        let runs = runs(journal)?;
        let mut findings = Findings {
            accepted: state.accepted.len(),
            executed: runs.values().map(Vec::len).sum(),
            executed_again: runs.values().map(|runs| runs.len() - 1).sum(),
            interrupted: 0,
            delivered: 0,
            duplicates: state.duplicates,
            lost: 0,
            events: 0,
            broken: std::mem::take(&mut state.broken),
            waits: std::mem::take(&mut state.waits),
            take_overs: Vec::new(),
        };
        for (id, record) in records {
            let what = match record {
                Ok(record) => findings.record(&state, &id, &record, &runs),
                Err(error) => Err(format!("{id} was answered 202 but cannot be read: {error}")),
            };
            if let Err(what) = what {
                findings.lost += 1;
                findings.broken.push(what);
            }
        }
        findings.log(client, &state.faults).await?;
        Ok(findings)
    }

    /// Record of a dispatch once it is finished and its callback has arrived, or at the deadline. The health report is not
    /// asked, because its numbers can be 2 s old where nodes share a database.
    async fn settled(&self, client: &Client, id: &str, deadline: Instant) -> Result<Value, Error> {
        loop {
            let path = ["api", "v2", "dispatch", id];
            // A node that has just lost its lease answers 503 until it has another one.
            let record = client.get(Target::path(&path)).await;
            if record
                .as_ref()
                .is_ok_and(|record| self.is_settled(id, record))
                || Instant::now() >= deadline
            {
                return record;
            }
            sleep(AGAIN).await;
        }
    }

    fn is_settled(&self, id: &str, record: &Value) -> bool {
        record["status"] == "finished"
            && match text(record, "/deliveries/0/status").as_str() {
                "pending" => false,
                // The answer to the bridge precedes the note of the callback here.
                "delivered" => self.state().received.contains_key(id),
                _ => true,
            }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fault that others have taken over with this event, and the time since then.
fn take_over(event: &Value, faults: &[(Timestamp, Recovery)]) -> Option<(usize, Duration)> {
    let is_one = event["type"] == "execution.retrying"
        || event["type"] == "execution.failed" && event["data"]["errorCode"] == "interrupted";
    if !is_one {
        return None;
    }
    let at: Timestamp = event["timestamp"].as_str()?.parse().ok()?;
    let fault = faults.iter().rposition(|(fault, _)| *fault <= at)?;
    let (since, recovery) = faults[fault];
    let time = at.duration_since(since).try_into().ok()?;
    (recovery == Recovery::TakeOver).then_some((fault, time))
}

/// Attempts started by the adapter, by dispatch id.
fn runs(journal: &Path) -> anyhow::Result<BTreeMap<String, Vec<String>>> {
    let mut runs: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let text = std::fs::read_to_string(journal).context("cannot read the adapter's journal")?;
    for (id, attempt) in text.lines().filter_map(|line| line.split_once('/')) {
        let attempts = runs.entry(id.to_owned()).or_default();
        attempts.push(attempt.to_owned());
    }
    Ok(runs)
}

fn digest(body: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    body.to_string().hash(&mut hasher);
    hasher.finish()
}

impl Findings {
    /// Checks one record. An error means that the dispatch is lost.
    fn record(
        &mut self,
        state: &State,
        id: &str,
        record: &Value,
        runs: &BTreeMap<String, Vec<String>>,
    ) -> Result<(), String> {
        if record["status"] != "finished" || record["result"].is_null() {
            return Err(format!(
                "{id} has no result; its status is {}",
                text(record, "/status")
            ));
        }
        if record["result"]["errorCode"] == "interrupted" {
            self.interrupted += 1;
        }
        let policy = state.accepted.get(id).copied().unwrap_or_default();
        let attempts = runs.get(id).map_or(&[][..], Vec::as_slice);
        let distinct: BTreeSet<_> = attempts.iter().collect();
        let most = if policy == "fail" { 1 } else { MOST_ATTEMPTS };
        if attempts.len() > most || distinct.len() < attempts.len() {
            let what = format!("{id} (recovery: {policy}) was executed as {attempts:?}");
            self.broken.push(what);
        }
        match text(record, "/deliveries/0/status").as_str() {
            "superseded" => Ok(()),
            "delivered" => match state.received.get(id) {
                None => Err(format!("{id} counts as delivered, but no callback arrived")),
                Some(receipt) => {
                    self.delivered += 1;
                    if receipt.body != digest(&record["result"]) {
                        let what = format!("{id}: callback and record have different results");
                        self.broken.push(what);
                    }
                    Ok(())
                }
            },
            other => Err(format!("{id}: its callback is {other}")),
        }
    }

    /// Reads all events and checks that each occurs once, in order, without gaps.
    async fn log(
        &mut self,
        client: &Client,
        faults: &[(Timestamp, Recovery)],
    ) -> anyhow::Result<()> {
        // By the number of the fault.
        let mut take_overs = BTreeMap::new();
        let mut after = "0".to_owned();
        let mut last_id = 0;
        let mut seqs: HashMap<String, u64> = HashMap::new();
        loop {
            let target = Target {
                path: &["api", "v2", "events"],
                query: &[("after", &after), ("limit", PAGE)],
            };
            let page = client.get(target).await?;
            let events = page["events"].as_array().map_or(&[][..], Vec::as_slice);
            if events.is_empty() {
                self.take_overs = take_overs.into_values().collect();
                return Ok(());
            }
            for event in events {
                self.events += 1;
                if let Some((fault, time)) = take_over(event, faults) {
                    let longest = take_overs.entry(fault).or_insert(time);
                    *longest = time.max(*longest);
                }
                let id = text(event, "/id");
                let number = id.rsplit('-').next().and_then(|n| n.parse::<u64>().ok());
                if number.is_none_or(|number| number <= last_id) {
                    self.broken.push(format!("event {id} is out of order"));
                }
                last_id = number.unwrap_or(last_id);
                let (Some(dispatch), Some(seq)) =
                    (event["dispatchId"].as_str(), event["seq"].as_u64())
                else {
                    continue;
                };
                let before = seqs.insert(dispatch.to_owned(), seq).unwrap_or(0);
                if seq != before + 1 {
                    let what = format!("{dispatch}: event {seq} follows event {before}");
                    self.broken.push(what);
                }
            }
            after = text(&page, "/nextCursor");
        }
    }
}
