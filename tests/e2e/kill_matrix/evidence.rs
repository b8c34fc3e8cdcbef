//! Checks of a bridge that was killed and has caught up, from the observations of its clients, its receiver and the
//! journal of its adapter.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::iter::Sum;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::super::harness::Api;
use super::load::{Load, Receiver, ask};

/// Counts over one or more kills.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    accepted: usize,
    executed: usize,
    delivered: usize,
    duplicates: usize,
    lost: usize,
}

impl Sum for Tally {
    fn sum<I: Iterator<Item = Self>>(tallies: I) -> Self {
        tallies.fold(Self::default(), |sum, one| Self {
            accepted: sum.accepted + one.accepted,
            executed: sum.executed + one.executed,
            delivered: sum.delivered + one.delivered,
            duplicates: sum.duplicates + one.duplicates,
            lost: sum.lost + one.lost,
        })
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            accepted,
            executed,
            delivered,
            duplicates,
            lost,
        } = self;
        write!(
            f,
            "{accepted} accepted, {executed} executed, {delivered} delivered, \
             {duplicates} duplicates at the receiver, {lost} lost"
        )
    }
}

/// Waits until no dispatch waits or runs, external ones included, and no delivery is pending, at most 60 s. Never returns
/// if the bridge is gone. The lists are asked and not the health report, whose numbers can be 2 s old where nodes share a
/// database.
pub(super) async fn until_quiet(api: &Api) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline {
        let mut is_quiet = true;
        for (path, list) in [
            ("/api/v2/dispatches?status=queued&limit=1", "dispatches"),
            ("/api/v2/dispatches?status=running&limit=1", "dispatches"),
            ("/api/v2/deliveries?status=pending&limit=1", "deliveries"),
        ] {
            let Some((_, page)) = ask(api.request(Method::GET, path)).await else {
                // The bridge has died, which the caller detects in another branch.
                return std::future::pending().await;
            };
            is_quiet &= page[list] == json!([]);
        }
        if is_quiet {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Counts, and lists broken promises.
pub(super) async fn examine(api: &Api, load: &Load, receiver: &Receiver) -> (Tally, Vec<String>) {
    let seen = std::mem::take(&mut *load.seen.lock().unwrap());
    let mut case = Case {
        broken: seen.strange,
        tally: Tally::default(),
        callbacks: callbacks(receiver),
        runs: runs(load),
        calls: calls(receiver),
    };
    for (task, ids) in &seen.accepted {
        let mut newest_first = Vec::new();
        for id in ids {
            case.tally.accepted += 1;
            let (status, record) = api.get(&format!("/api/v2/dispatch/{id}")).await;
            if !status.is_success() {
                case.tally.lost += 1;
                case.refuse(format!("{task}: {id} is gone: {status} {record}"));
                continue;
            }
            case.record(task, id, &record, seen.policies[task]);
            case.events(id, &api.events(id).await);
            let before = seen.results.get(id);
            if before.is_some_and(|before| *before != record["result"]) {
                case.refuse(format!("{task}: another result than before: {record}"));
            }
            if seen.cancelled.contains(id) && record["result"]["errorCode"] != "cancelled" {
                case.refuse(format!("{task}: the cancel was forgotten: {record}"));
            }
            newest_first.push(record);
        }
        // A second dispatch of a task retries one that failed, and no other.
        newest_first.sort_by_key(|record| record["acceptedAt"].as_str().unwrap().to_owned());
        newest_first.pop();
        for older in newest_first {
            let result = &older["result"];
            if result["status"] == "ok" || result["errorCode"] == "cancelled" {
                case.refuse(format!("{task}: was executed again after {result}"));
            }
        }
    }
    case.log(&api.event_log().await, &seen.events);
    (case.tally, case.broken)
}

struct Case {
    broken: Vec<String>,
    tally: Tally,
    /// `webhook-id`s and bodies in order of arrival, by dispatch.
    callbacks: BTreeMap<String, Vec<(String, Value)>>,
    /// Attempts started by the adapter, by dispatch.
    runs: BTreeMap<String, Vec<u32>>,
    /// Number of calls of the external service, by dispatch.
    calls: BTreeMap<String, usize>,
}

fn callbacks(receiver: &Receiver) -> BTreeMap<String, Vec<(String, Value)>> {
    let mut found: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
    for request in receiver.sink.received() {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let id = body["dispatchId"].as_str().unwrap().to_owned();
        let webhook_id = request.headers["webhook-id"].clone();
        found.entry(id).or_default().push((webhook_id, body));
    }
    found
}

fn calls(receiver: &Receiver) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for call in receiver.service.received() {
        *found
            .entry(call.headers["idempotency-key"].clone())
            .or_default() += 1;
    }
    found
}

fn runs(load: &Load) -> BTreeMap<String, Vec<u32>> {
    let mut found: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let journal = std::fs::read_to_string(&load.journal).unwrap_or_default();
    for line in journal.lines() {
        let (id, attempt) = line.split_once('/').unwrap();
        let attempt = attempt.parse().unwrap();
        found.entry(id.to_owned()).or_default().push(attempt);
    }
    found
}

impl Case {
    fn refuse(&mut self, why: String) {
        self.broken.push(why);
    }

    fn record(&mut self, task: &str, id: &str, record: &Value, policy: &str) {
        let result = &record["result"];
        if record["status"] != "finished" || !result["status"].is_string() {
            self.tally.lost += 1;
            self.refuse(format!("{task}: {id} has no result: {record}"));
            return;
        }
        match record["provider"] == "external" {
            true => self.calls_of(task, id, result, policy),
            false => self.runs_of(task, id, record, policy),
        }
        let callbacks = self.callbacks.remove(id).unwrap_or_default();
        let deliveries = record["deliveries"].as_array().unwrap();
        match deliveries.as_slice() {
            [] if record["callbackUrl"].is_null() => {}
            [delivery] if !record["callbackUrl"].is_null() => {
                let state = delivery["status"].as_str().unwrap();
                let known = ["delivered", "dead", "superseded"].contains(&state);
                if !known || state != "superseded" && callbacks.is_empty() {
                    self.tally.lost += 1;
                    self.refuse(format!("{task}: its callback is {state}: {record}"));
                }
                self.tally.delivered += usize::from(state == "delivered");
                self.tally.duplicates += callbacks.len().saturating_sub(1);
                for (webhook_id, body) in &callbacks {
                    if *webhook_id != delivery["id"] {
                        self.refuse(format!("{task}: another webhook-id, {webhook_id}"));
                    }
                    if body != result {
                        self.refuse(format!(
                            "{task}: it was told {body}, the record has {result}"
                        ));
                    }
                }
            }
            _ => self.refuse(format!("{task}: wrong deliveries: {record}")),
        }
    }

    /// Checks that no dispatch runs twice unless its policy allows it, and that each one with a result has run.
    fn runs_of(&mut self, task: &str, id: &str, record: &Value, policy: &str) {
        let runs = self.runs.remove(id).unwrap_or_default();
        self.tally.executed += runs.len();
        let distinct: BTreeSet<_> = runs.iter().collect();
        let most = if policy == "fail" { 1 } else { 3 };
        let attempt = record["attempt"].as_u64().unwrap();
        if distinct.len() != runs.len() || runs.len() > most {
            self.refuse(format!("{task} ({policy}) ran as {runs:?}"));
        }
        if runs.iter().any(|run| u64::from(*run) > attempt) {
            self.refuse(format!("{task}: ran as {runs:?}, recorded are {attempt}"));
        }
        let answered = record["result"]["status"] == "ok";
        if answered && runs.last().copied().map(u64::from) != Some(attempt) {
            self.refuse(format!("{task}: a result of {attempt}, it ran as {runs:?}"));
        }
    }

    /// Checks that a held command is called only as approved, and no more often than its policy allows.
    fn calls_of(&mut self, task: &str, id: &str, result: &Value, policy: &str) {
        let calls = self.calls.remove(id).unwrap_or_default();
        self.tally.executed += calls;
        let most = match (task.starts_with("denied"), policy) {
            (true, _) => 0,
            (false, "fail") => 1,
            (false, _) => 3,
        };
        let is_denied = result["errorCode"] == "blocked_by_policy";
        if calls > most || is_denied != task.starts_with("denied") {
            self.refuse(format!(
                "{task} ({policy}) was called {calls} times: {result}"
            ));
        }
        if result["status"] == "ok" && calls == 0 {
            self.refuse(format!("{task}: a result without a call: {result}"));
        }
    }

    /// Checks that `seq` has no gap, and that one end follows all other execution events.
    fn events(&mut self, id: &str, events: &[Value]) {
        let seqs: Vec<_> = events
            .iter()
            .filter_map(|event| event["seq"].as_u64())
            .collect();
        if !seqs.iter().copied().eq(1..=seqs.len() as u64) {
            self.refuse(format!("{id}: the events count {seqs:?}"));
        }
        let kinds: Vec<_> = events
            .iter()
            .filter_map(|event| event["type"].as_str())
            .collect();
        let is_end = |kind: &&str| ["execution.completed", "execution.failed"].contains(kind);
        let ends = kinds.iter().filter(|kind| is_end(kind)).count();
        let end = kinds.iter().position(is_end);
        let after = kinds.iter().skip(end.unwrap_or(0) + 1);
        if ends != 1 || after.clone().any(|kind| !kind.starts_with("callback.")) {
            self.refuse(format!("{id}: its events are {kinds:?}"));
        }
    }

    /// Checks that no event id is used twice, and that events read before the kill are unchanged.
    fn log(&mut self, all: &[Value], before: &[Value]) {
        let mut by_id = BTreeMap::new();
        for event in all {
            let id = event["id"].as_str().unwrap();
            if by_id.insert(id, event).is_some() {
                self.refuse(format!("two events are {id}"));
            }
        }
        for event in before {
            if by_id.get(event["id"].as_str().unwrap()) != Some(&event) {
                self.refuse(format!("this event was read, and is not there: {event}"));
            }
        }
    }
}
