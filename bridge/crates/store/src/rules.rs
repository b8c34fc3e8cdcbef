//! Decisions that are the same in every store implementation.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::value::RawValue;

use super::record::{
    DispatchRecord, DispatchState, EventFilter, EventTotals, KeySpace, KeyVerdict, Known,
    NewDispatch,
};
use super::{Error, Result};
use forge_base::digest::Digest;
use forge_base::event::{Event, LogName, NewEvent, kind};
use forge_base::id::{DispatchId, RunId};
use forge_base::time;

/// Delivery attempts kept from the beginning, and from the end.
pub const FIRST_ATTEMPTS: u32 = 5;
pub const LAST_ATTEMPTS: u32 = 20;

/// Retention of events that belong to no dispatch and no run.
pub const UNBOUND_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

impl Known {
    /// Applies the rules for a repeated key: the operation `dispatch` of `openapi.json`.
    pub fn verdict(&self, space: KeySpace, fingerprint: &Digest) -> KeyVerdict {
        let failed = match &self.dispatch.state {
            DispatchState::Finished {
                error_code: Some(code),
                ..
            } => code != "cancelled",
            DispatchState::Queued
            | DispatchState::Running { .. }
            | DispatchState::Finished {
                error_code: None, ..
            } => false,
        };
        if failed && space == KeySpace::Task {
            KeyVerdict::TakeOver
        } else if self.fingerprint == *fingerprint {
            KeyVerdict::Same
        } else {
            KeyVerdict::Conflict
        }
    }
}

impl EventFilter {
    /// True if the filter selects the event.
    pub fn matches(&self, event: &Event) -> bool {
        self.matches_source(event)
            && same(&self.task_id, event.task_id.as_deref())
            && same(&self.kind, Some(&event.kind))
            && (self.run.is_some() || !repeats_a_dispatch(event))
    }

    /// True if the filter selects events of some type, and for a run of some task, from the owner and the adapter of
    /// this one.
    pub fn matches_source(&self, event: &Event) -> bool {
        self.matches_owner(event)
            && same(&self.provider, event.provider.as_deref())
            && same(&self.agent_id, event.agent_id.as_deref())
            && (is_of_run(event) || same(&self.task_id, event.task_id.as_deref()))
    }

    /// True if the filter selects events of the dispatch or run that this one belongs to.
    pub fn matches_owner(&self, event: &Event) -> bool {
        let is_of = |run: RunId| is_of_run(event) && event.run_id == Some(run.to_string());
        (self.dispatch.is_none() || self.dispatch == event.dispatch_id)
            && self.run.is_none_or(is_of)
    }

    /// True if the filter selects events of one owner, which have an index of their own.
    pub fn has_owner(&self) -> bool {
        self.dispatch.is_some() || self.run.is_some()
    }
}

/// Types of events of a run that repeat what its dispatches have reported.
const REPEATED: [&str; 4] = [
    "task.progress",
    "task.heartbeat",
    "tool.call",
    "tool.result",
];

/// True for an event of a run that the log has already as an event of a dispatch.
fn repeats_a_dispatch(event: &Event) -> bool {
    is_of_run(event) && REPEATED.contains(&event.kind.as_str())
}

/// True for an event that a run owns; that of a dispatch can name a run, too.
fn is_of_run(event: &Event) -> bool {
    event.dispatch_id.is_none() && event.run_id.is_some()
}

fn same(wanted: &Option<String>, value: Option<&str>) -> bool {
    wanted.is_none() || wanted.as_deref() == value
}

impl NewDispatch {
    /// Makes the dispatch wait for an approval.
    pub fn hold(&mut self) {
        self.is_held = true;
        let requested = NewEvent::new(kind::APPROVAL_REQUESTED, self.accepted_at);
        self.events.push(requested);
    }
}

/// Record of a dispatch that has just been accepted.
pub fn accepted(new: &NewDispatch, retry_of: Option<DispatchId>) -> DispatchRecord {
    DispatchRecord {
        id: new.id,
        task_id: new.task_id.clone(),
        agent_id: new.agent_id.clone(),
        run_id: new.run_id.clone(),
        trace_id: new.trace_id.clone(),
        provider: new.provider.clone(),
        pinned: new.pinned,
        routing: new.routing.clone(),
        session: new.session.clone(),
        priority: new.priority,
        state: DispatchState::Queued,
        attempts: 0,
        cancel_requested: false,
        is_held: new.is_held,
        is_blocked: false,
        accepted_at: new.accepted_at,
        not_before: new.not_before,
        start_by: new.start_by,
        first_started_at: None,
        retry_of,
        callback: new.callback.clone(),
        delivery: None,
        spending: None,
        result: None,
    }
}

/// Record of a dispatch whose next attempt starts at this time.
pub fn started(record: DispatchRecord, at: Timestamp) -> DispatchRecord {
    let attempt = record.attempts + 1;
    DispatchRecord {
        state: DispatchState::Running {
            attempt,
            started_at: at,
        },
        attempts: attempt,
        first_started_at: record.first_started_at.or(Some(at)),
        ..record
    }
}

/// True if this attempt, counted from 1, is the last one of a dispatch that was tried before. It might be the one that
/// crashes the process, so such attempts run one at a time: a crash then does not use up the attempts of the others.
pub fn is_last_attempt(attempt: u32, max_attempts: u32) -> bool {
    attempt > 1 && attempt >= max_attempts
}

/// Delivered form of a result: appends `"events": {"count", "lastCursor"}` as its last member.
pub fn with_events(result: &RawValue, log: &LogName, totals: EventTotals) -> Result<String> {
    let open = result
        .get()
        .trim_end()
        .strip_suffix('}')
        .filter(|_| result.get().trim_start().starts_with('{'))
        .ok_or(Error::InvalidState("a result is not a JSON object"))?
        .trim_end();
    let comma = if open.ends_with('{') { "" } else { "," };
    let (count, last) = (totals.count, log.cursor(totals.last));
    Ok(format!(
        r#"{open}{comma}"events":{{"count":{count},"lastCursor":"{last}"}}}}"#
    ))
}

/// A result of `with_events` without them, and their number.
pub fn without_events(body: &str) -> Option<(String, u64)> {
    let (result, events) = body.rsplit_once(r#""events":{"count":"#)?;
    let (count, _) = events.split_once(',')?;
    let open = result.strip_suffix(',').unwrap_or(result);
    Some((format!("{open}}}"), count.parse().ok()?))
}

/// New `start_by` of a requeued dispatch: it can wait as long as a new one.
pub fn start_again_by(dispatch: &DispatchRecord, now: Timestamp) -> Timestamp {
    let waits_from = dispatch
        .not_before
        .map_or(dispatch.accepted_at, |time| time.max(dispatch.accepted_at));
    let patience = time::left(waits_from, dispatch.start_by);
    later(now, patience).max(dispatch.start_by)
}

/// True if an origin such as `https://example.org:443` is at this `host` or `host:port`.
pub fn at_host(origin: &str, host: Option<&str>) -> bool {
    let Some(host) = host else { return true };
    let authority = origin.split_once("://").map_or(origin, |(_, rest)| rest);
    authority
        .strip_prefix(host)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

pub fn later(time: Timestamp, by: Duration) -> Timestamp {
    time.saturating_add(by).unwrap_or(Timestamp::MAX)
}

pub fn earlier(time: Timestamp, by: Duration) -> Timestamp {
    time.saturating_sub(by).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use KeySpace::{Header, Task};
    use KeyVerdict::{Conflict, Same, TakeOver};
    use forge_base::id::DispatchId;

    fn known(state: DispatchState) -> Known {
        let at = Timestamp::UNIX_EPOCH;
        let dispatch = DispatchRecord {
            id: DispatchId::new(),
            task_id: "t".into(),
            agent_id: "a".into(),
            run_id: None,
            trace_id: String::new(),
            provider: "echo".into(),
            pinned: false,
            routing: RawValue::from_string("[]".into()).unwrap(),
            session: None,
            priority: 0,
            state,
            attempts: 0,
            cancel_requested: false,
            is_held: false,
            is_blocked: false,
            accepted_at: at,
            not_before: None,
            start_by: at,
            first_started_at: None,
            retry_of: None,
            callback: None,
            delivery: None,
            spending: None,
            result: None,
        };
        Known {
            dispatch,
            fingerprint: [1; 32],
        }
    }

    #[test]
    fn a_key_answers_as_the_reference_says() {
        let finished = |code: Option<&str>| DispatchState::Finished {
            at: Timestamp::UNIX_EPOCH,
            error_code: code.map(str::to_owned),
        };
        let running = DispatchState::Running {
            attempt: 1,
            started_at: Timestamp::UNIX_EPOCH,
        };
        for (state, space, same_body, expected) in [
            (DispatchState::Queued, Task, true, Same),
            (DispatchState::Queued, Task, false, Conflict),
            (running.clone(), Header, true, Same),
            (running, Header, false, Conflict),
            (finished(None), Task, true, Same),
            (finished(None), Task, false, Conflict),
            (finished(Some("timeout")), Task, true, TakeOver),
            (finished(Some("timeout")), Task, false, TakeOver),
            (finished(Some("timeout")), Header, true, Same),
            (finished(Some("timeout")), Header, false, Conflict),
            (finished(Some("cancelled")), Task, true, Same),
            (finished(Some("cancelled")), Task, false, Conflict),
        ] {
            let fingerprint = if same_body { [1; 32] } else { [2; 32] };
            let verdict = known(state.clone()).verdict(space, &fingerprint);
            assert_eq!(
                verdict, expected,
                "{state:?} {space:?} same body: {same_body}"
            );
        }
    }

    #[test]
    fn a_host_is_named_with_or_without_its_port() {
        for (host, expected) in [
            ("example.org", true),
            ("example.org:443", true),
            ("example.org:44", false),
            ("example", false),
            ("ample.org", false),
        ] {
            assert_eq!(
                at_host("https://example.org:443", Some(host)),
                expected,
                "{host}"
            );
        }
        assert!(at_host("http://[::1]:80", Some("[::1]")));
    }

    #[test]
    fn a_result_gets_its_events_as_last_member() {
        let log = LogName::from_stored("abc".into());
        let totals = EventTotals { count: 3, last: 17 };
        let events = r#""events":{"count":3,"lastCursor":"abc-17"}}"#;
        for (result, expected) in [
            ("{}", format!("{{{events}")),
            (" { } ", format!("{{{events}")),
            (r#"{"a":{}}"#, format!(r#"{{"a":{{}},{events}"#)),
            (
                r#"{"events":{"count":1}}"#,
                format!(r#"{{"events":{{"count":1}},{events}"#),
            ),
        ] {
            let result = RawValue::from_string(result.into()).unwrap();
            assert_eq!(with_events(&result, &log, totals).unwrap(), expected);
            let (without, count) = without_events(&expected).unwrap();
            assert_eq!(count, 3);
            let without = RawValue::from_string(without).unwrap();
            assert_eq!(with_events(&without, &log, totals).unwrap(), expected);
        }
        assert_eq!(without_events("{}"), None);
        let list = RawValue::from_string("[]".into()).unwrap();
        assert!(with_events(&list, &log, totals).is_err());
    }
}
