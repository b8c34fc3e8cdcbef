//! Tests of the cause that a failed result names.

use forge_adapter_api::{AdapterError, AdapterEvent};
use serde_json::{Value, json};

use super::cases::{answered, body, raw, run, subject};
use super::{Ending, normalise};
use crate::Config;
use crate::request::tests::minimal;

fn event(kind: &str, data: Value) -> AdapterEvent {
    AdapterEvent::new(kind).with(data)
}

/// The result of this ending after the events.
fn after(events: &[AdapterEvent], ending: Ending) -> Value {
    let mut raw = raw(ending);
    for event in events {
        raw.accumulator.observe(event);
    }
    body(&normalise(&raw, &subject(&minimal()), &Config::default()))
}

#[test]
fn an_execution_that_is_stopped_names_the_last_refusal_of_its_model() {
    let busy =
        json!({"reason": "rate_limited", "status": 429, "delayMs": 500, "error": "slow down"});
    let busy = event("model.retrying", busy);
    let left = json!({"from": "a", "to": "b", "reason": "overloaded", "error": "no room"});
    let left = event("model.fallback", left);
    let cause = json!({"lastRefusal": {"reason": "overloaded", "error": "no room"}});
    for ending in [
        Ending::TimedOut,
        Ending::Stalled,
        Ending::Cancelled { answer: None },
    ] {
        let body = after(&[busy.clone(), left.clone()], ending.clone());
        assert_eq!(body["details"], cause, "{body}");
        assert!(
            body["error"].as_str().unwrap().ends_with("no room"),
            "{body}"
        );
        for output in [
            event("assistant.text", json!({"delta": "a"})),
            event("assistant.thinking", json!({"delta": "a"})),
            event("tool.invoked", json!({"toolCallId": "1"})),
        ] {
            let body = after(&[busy.clone(), output], ending.clone());
            assert_eq!(body.get("details"), None, "{body}");
        }
    }
    let bare = event("model.retrying", json!({"reason": "overloaded"}));
    let body = after(&[bare], Ending::TimedOut);
    assert!(
        body["error"].as_str().unwrap().ends_with("overloaded"),
        "{body}"
    );
    let unrelated = after(&[busy], Ending::OverBudget("too dear".into()));
    assert_eq!(unrelated.get("details"), None, "{unrelated}");
}

#[test]
fn details_of_the_adapter_are_kept_within_bounds() {
    let details = json!({"reason": "rate_limited", "status": 429});
    let answer = json!({"status": "error", "errorCode": "rate_limited", "details": details});
    let body = run(answered(&answer), &minimal());
    assert_eq!(body["details"], details, "{body}");
    let error = |code: &str, details: &Value| {
        let error = AdapterError::new(code, "no");
        Ending::Failed(AdapterError {
            details: Some(details.clone()),
            ..error
        })
    };
    let body = run(error("rate_limited", &details), &minimal());
    assert_eq!(body["details"], details, "{body}");
    let long = json!({"output": "x".repeat(20_000)});
    for ending in [
        error("rate_limited", &long),
        error("output_too_large", &json!({"output": "x"})),
    ] {
        let body = run(ending, &minimal());
        assert_eq!(body.get("details"), None, "{body}");
    }
    let answer = json!({"status": "ok", "output": "x", "details": details});
    assert_eq!(run(answered(&answer), &minimal()).get("details"), None);
}
