//! Attempts of a dispatch, as its record shows them: when each began and ended, and why another one followed. The row
//! of a dispatch knows its first start and its finish; what lies between is read from its events.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::Failure;
use forge_base::event::{Event, kind};
use forge_store::Store;
use forge_store::record::{DispatchRecord, DispatchState, EventFilter};

/// Events read at a time.
const PAGE: usize = 1000;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AttemptLine {
    number: u32,
    #[serde(serialize_with = "forge_base::time::millis")]
    started_at: Timestamp,
    #[serde(
        serialize_with = "forge_base::time::millis_option",
        skip_serializing_if = "Option::is_none"
    )]
    ended_at: Option<Timestamp>,
    /// Reason for another attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    retried_because: Option<String>,
}

/// Attempts begun so far, in order.
pub(super) async fn of(
    store: &dyn Store,
    dispatch: &DispatchRecord,
) -> Result<Vec<AttemptLine>, Failure> {
    let (running, finished) = match &dispatch.state {
        DispatchState::Queued => (false, None),
        DispatchState::Running { .. } => (true, None),
        DispatchState::Finished { at, .. } => (false, Some(*at)),
    };
    let mut lines = match (dispatch.attempts, dispatch.first_started_at) {
        (0, _) | (_, None) => return Ok(Vec::new()),
        (1, Some(started_at)) if running || finished.is_some() => vec![AttemptLine {
            number: 1,
            started_at,
            ended_at: None,
            retried_because: None,
        }],
        (_, Some(_)) => recorded(store, dispatch).await?,
    };
    if let Some(last) = lines.last_mut() {
        last.ended_at = last.ended_at.or(finished);
    }
    Ok(lines)
}

/// Reads the attempts of a dispatch that had to be repeated from its events.
async fn recorded(
    store: &dyn Store,
    dispatch: &DispatchRecord,
) -> Result<Vec<AttemptLine>, Failure> {
    let filter = EventFilter {
        dispatch: Some(dispatch.id),
        ..EventFilter::default()
    };
    let queued = dispatch.state == DispatchState::Queued;
    let (mut lines, mut after) = (Vec::new(), 0);
    loop {
        let page = store.events(&filter, after, PAGE).await?;
        for event in &page.events {
            take(&mut lines, event, dispatch.attempts);
        }
        let last = lines
            .last()
            .filter(|last: &&AttemptLine| last.number == dispatch.attempts);
        let complete = last.is_some_and(|last| !queued || last.ended_at.is_some());
        if complete || !page.more {
            return Ok(lines);
        }
        after = page.scanned;
    }
}

/// Adds what an event says about the first `attempts` attempts.
fn take(lines: &mut Vec<AttemptLine>, event: &Event, attempts: u32) {
    #[derive(Deserialize)]
    struct Retrying {
        reason: Option<String>,
    }
    match (event.kind.as_str(), lines.last_mut()) {
        (kind::STARTED, _) if event.attempt <= attempts => lines.push(AttemptLine {
            number: event.attempt,
            started_at: event.timestamp,
            ended_at: None,
            retried_because: None,
        }),
        (kind::RETRYING, Some(last)) if last.ended_at.is_none() => {
            last.ended_at = Some(event.timestamp);
            let data = event.data.as_ref();
            let read = data.and_then(|data| serde_json::from_str::<Retrying>(data.get()).ok());
            last.retried_because = read.and_then(|retrying| retrying.reason);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing::{Edge, event};
    use super::*;
    use forge_base::event::NewEvent;
    use forge_base::id::DispatchId;
    use forge_store::record::{Claim, Lease, Requeue};

    async fn retry(edge: &Edge, lease: Lease, reason: &str) {
        let retrying = NewEvent::new(kind::RETRYING, Timestamp::now());
        let requeue = Requeue {
            event: retrying.with(&json!({ "reason": reason })),
        };
        let claim = Claim::Attempt(lease);
        edge.store.requeue(claim, requeue).await.unwrap();
    }

    /// Number, end and reason of each attempt in the record; every start has to be there.
    async fn shown(edge: &Edge, id: DispatchId) -> Vec<(u64, bool, Value)> {
        let record = edge.get(&format!("/api/v2/dispatch/{id}")).await.json();
        let attempts = record["attempts"].as_array().unwrap().iter();
        attempts
            .map(|attempt| {
                assert!(attempt["startedAt"].is_string(), "{attempt}");
                let reason = attempt.get("retriedBecause").cloned().unwrap_or_default();
                let number = attempt["number"].as_u64().unwrap();
                (number, attempt.get("endedAt").is_some(), reason)
            })
            .collect()
    }

    #[tokio::test]
    async fn a_record_lists_every_attempt_and_why_it_was_repeated() {
        let edge = Edge::new().await;
        let id = edge.accept("task").await;
        let none = Value::Null;
        assert_eq!(shown(&edge, id).await, []);
        let lease = edge.begin(id).await;
        assert_eq!(shown(&edge, id).await, [(1, false, none.clone())]);
        retry(&edge, lease, "a crash").await;
        let first = (1, true, json!("a crash"));
        assert_eq!(shown(&edge, id).await, std::slice::from_ref(&first));
        let lease = edge.begin(id).await;
        // More events than one page has.
        let many = (0..=PAGE).map(|_| event(kind::USAGE)).collect();
        edge.tell(&lease, many).await;
        retry(&edge, lease, "a reload").await;
        let lease = edge.begin(id).await;
        edge.finish(lease, None).await;
        let second = (2, true, json!("a reload"));
        let third = (3, true, none.clone());
        assert_eq!(shown(&edge, id).await, [first, second, third]);
        let record = edge.get(&format!("/api/v2/dispatch/{id}")).await.json();
        assert_eq!(record["attempts"][0]["startedAt"], record["startedAt"]);
        assert_eq!(record["attempts"][2]["endedAt"], record["finishedAt"]);

        let (once, _) = edge.done("once").await;
        assert_eq!(shown(&edge, once).await, [(1, true, none)]);
        let list = edge.get("/api/v2/dispatches").await.json();
        assert_eq!(list["dispatches"][0].get("attempts"), None);
    }
}
