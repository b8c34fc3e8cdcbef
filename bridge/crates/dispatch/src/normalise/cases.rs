//! Tests of the result of every ending.

use std::time::Duration;

use forge_adapter_api::request::Budget;
use forge_adapter_api::{AdapterError, AdapterEvent, OutputStrategy};
use serde_json::{Value, json};

use crate::Config;
use crate::accumulator::Accumulator;
use crate::capture::Captured;
use crate::request::DispatchRequest;
use crate::request::tests::minimal;
use forge_base::id::DispatchId;

use super::{Ending, Outcome, Raw, Subject, normalise};

/// Execution that streamed the text `partial` and used 7 output tokens before its end.
pub(super) fn raw(ending: Ending) -> Raw {
    let mut accumulator = Accumulator::new(None, 1000);
    for (kind, data) in [
        ("assistant.text", json!({"delta": "partial"})),
        ("usage", json!({"outputTokens": 7})),
    ] {
        accumulator.observe(&AdapterEvent {
            kind: kind.to_owned(),
            data: Some(data),
            timestamp: None,
        });
    }
    Raw {
        ending,
        file: None,
        output_files: Vec::new(),
        accumulator,
    }
}

pub(super) fn answered(result: &Value) -> Ending {
    Ending::Answered(serde_json::to_vec(result).unwrap())
}

pub(super) fn subject(dispatch: &DispatchRequest) -> Subject<'_> {
    Subject {
        id: DispatchId::new(),
        dispatch,
        provider: "echo",
        attempt: 1,
        retry_of: None,
        strategy: OutputStrategy::Stream,
        session: None,
        started_at: Some("2026-01-01T00:00:00Z".parse().unwrap()),
        completed_at: "2026-01-01T00:00:01.5Z".parse().unwrap(),
        elapsed: Duration::from_millis(1500),
    }
}

pub(super) fn body(outcome: &Outcome) -> Value {
    serde_json::from_str(outcome.result.get()).unwrap()
}

pub(super) fn run(ending: Ending, dispatch: &DispatchRequest) -> Value {
    let outcome = normalise(&raw(ending), &subject(dispatch), &Config::default());
    let body = body(&outcome);
    assert_eq!(outcome.error_code.as_deref(), body["errorCode"].as_str());
    assert_eq!(body["status"] == "ok", outcome.error_code.is_none());
    body
}

#[test]
fn every_ending_has_its_code_and_keeps_what_there_is() {
    for (ending, code, output) in [
        (
            answered(&json!({"status": "ok", "output": "done"})),
            None,
            "done",
        ),
        (answered(&json!({"status": "ok", "output": ""})), None, ""),
        (answered(&json!({"status": "ok"})), None, "partial"),
        (
            answered(&json!({"status": "error", "error": "no"})),
            Some("adapter_error"),
            "partial",
        ),
        (
            answered(&json!({"status": "error", "errorCode": "acme_busy"})),
            Some("acme_busy"),
            "partial",
        ),
        (
            answered(&json!({"status": "error", "errorCode": "cancelled"})),
            Some("adapter_error"),
            "partial",
        ),
        (
            answered(&json!({"status": "error", "errorCode": "can\u{0}celled"})),
            Some("adapter_error"),
            "partial",
        ),
        (
            answered(&json!({"status": "error", "errorCode": "\u{1}"})),
            Some("adapter_error"),
            "partial",
        ),
        (
            answered(
                &json!({"status": "ok", "output": "x", "toolCalls": [{"toolCallId": "1", "name": "t", "input": {}}]}),
            ),
            Some("input_required"),
            "x",
        ),
        (
            answered(&json!({"status": "ok", "output": "x", "inputRequest": {"question": "?"}})),
            Some("input_required"),
            "x",
        ),
        (
            Ending::Answered(b"garbage".to_vec()),
            Some("protocol_violation"),
            "partial",
        ),
        (
            Ending::Failed(AdapterError::new("adapter_panic", "boom")),
            Some("adapter_panic"),
            "partial",
        ),
        (
            Ending::Failed(AdapterError::new("", "")),
            Some("adapter_error"),
            "partial",
        ),
        (Ending::TimedOut, Some("timeout"), "partial"),
        (Ending::Stalled, Some("stalled"), "partial"),
        (
            Ending::Cancelled { answer: None },
            Some("cancelled"),
            "partial",
        ),
        (
            Ending::Cancelled {
                answer: Some(br#"{"status":"ok","output":"late"}"#.to_vec()),
            },
            Some("cancelled"),
            "late",
        ),
        (
            Ending::Cancelled {
                answer: Some(b"garbage".to_vec()),
            },
            Some("cancelled"),
            "partial",
        ),
        (
            Ending::Interrupted("the bridge was stopped".into()),
            Some("interrupted"),
            "partial",
        ),
        (
            Ending::OverBudget("too dear".into()),
            Some("budget_exceeded"),
            "partial",
        ),
        (Ending::QueueTimeout, Some("queue_timeout"), "partial"),
        (
            Ending::Unavailable("gone".into()),
            Some("adapter_unavailable"),
            "partial",
        ),
    ] {
        let body = run(ending, &minimal());
        assert_eq!(body["errorCode"].as_str(), code);
        assert_eq!(body["output"], output, "{code:?}");
        assert_eq!(body["usage"]["outputTokens"], 7, "{code:?}");
        let said = body["error"].as_str().is_some_and(|text| !text.is_empty());
        assert_eq!(said, code.is_some(), "{code:?}");
    }
}

#[test]
fn a_full_result_has_every_field_of_the_reference() {
    let dispatch = DispatchRequest {
        run_id: Some("run".into()),
        step_id: Some("step".into()),
        gateway_id: Some("gateway".into()),
        metadata: json!({"k": 1}).as_object().cloned(),
        ..minimal()
    };
    let ending = answered(&json!({
        "status": "ok", "output": "done", "durationMs": 99_999, "model": "m", "modelProvider": "p",
        "usage": {"inputTokens": 5, "outputTokens": 9}, "costUsd": 0.5, "sessionId": "s",
    }));
    let subject = Subject {
        attempt: 2,
        retry_of: Some(DispatchId::new()),
        ..subject(&dispatch)
    };
    let outcome = normalise(&raw(ending), &subject, &Config::default());
    let expected = json!({
        "taskId": "task", "agentId": "agent", "dispatchId": subject.id, "provider": "echo",
        "status": "ok", "output": "done", "durationMs": 1500,
        "usage": {
            "inputTokens": 5, "outputTokens": 9, "thinkingTokens": null,
            "totalTokens": null, "cacheReadTokens": null, "cacheWriteTokens": null,
        },
        "model": "m", "modelProvider": "p", "costUsd": 0.5, "sessionId": "s", "attempt": 2,
        "startedAt": "2026-01-01T00:00:00.000Z", "completedAt": "2026-01-01T00:00:01.500Z",
        "traceId": dispatch.trace.trace_id, "runId": "run", "stepId": "step",
        "gatewayId": "gateway", "retryOf": subject.retry_of, "metadata": {"k": 1},
    });
    assert_eq!(body(&outcome), expected);
    assert_eq!(outcome.output, None);
}

#[test]
fn a_result_without_a_start_says_so() {
    let dispatch = minimal();
    let subject = Subject {
        attempt: 0,
        started_at: None,
        elapsed: Duration::ZERO,
        ..subject(&dispatch)
    };
    let raw = Raw {
        accumulator: Accumulator::new(None, 10),
        ..raw(Ending::QueueTimeout)
    };
    let body = body(&normalise(&raw, &subject, &Config::default()));
    assert_eq!(body["startedAt"], Value::Null);
    assert_eq!(
        (&body["attempt"], &body["durationMs"]),
        (&json!(0), &json!(0))
    );
    assert!(body.get("output").is_none());
    assert_eq!(body["usage"]["totalTokens"], Value::Null);
}

#[test]
fn an_abort_after_the_timeout_is_a_timeout() {
    let dispatch = DispatchRequest {
        timeout: Duration::from_secs(1),
        ..minimal()
    };
    let aborted = json!({"status": "error", "error": "aborted", "errorCode": "cancelled"});
    assert_eq!(run(answered(&aborted), &dispatch)["errorCode"], "timeout");
}

#[test]
fn an_error_of_the_adapter_keeps_its_own_code_beside_tool_calls() {
    let result = json!({
        "status": "error", "error": "broken", "errorCode": "upstream_error",
        "toolCalls": [{"toolCallId": "1", "name": "t", "input": {}}],
    });
    let body = run(answered(&result), &minimal());
    assert_eq!(body["errorCode"], "upstream_error");
    assert_eq!(body["toolCalls"][0]["toolCallId"], "1");
}

#[test]
fn hints_of_the_adapter_are_kept_and_bounded() {
    let hinted = AdapterError {
        retry_after_ms: Some(u64::MAX),
        ..AdapterError::new("rate_limited", "slow down").retryable()
    };
    for (ending, retryable, after) in [
        (
            answered(&json!({"status": "error", "retryable": true, "retryAfterMs": 1500})),
            json!(true),
            json!(1500),
        ),
        (
            answered(
                &json!({"status": "error", "durationMs": -1, "retryable": false, "retryAfterMs": "soon"}),
            ),
            json!(false),
            json!(null),
        ),
        (Ending::Failed(hinted), json!(true), json!(86_400_000)),
        // The hints of an answer that is not an error.
        (
            answered(&json!({"status": "ok", "retryable": true, "retryAfterMs": 1})),
            json!(null),
            json!(null),
        ),
        (Ending::TimedOut, json!(null), json!(null)),
    ] {
        let shown = format!("{ending:?}");
        let body = run(ending, &minimal());
        assert_eq!(
            (&body["retryable"], &body["retryAfterMs"]),
            (&retryable, &after),
            "{shown}"
        );
    }
}

#[test]
fn structured_output_is_checked_and_raw_output_kept() {
    let dispatch = DispatchRequest {
        output_schema: Some(json!({"type": "object", "required": ["a"]})),
        ..minimal()
    };
    let good = run(
        answered(&json!({"status": "ok", "output": "{\"a\": 1}"})),
        &dispatch,
    );
    assert_eq!(good["structuredOutput"], json!({"a": 1}));
    assert_eq!(good["output"], "{\"a\": 1}");
    for (result, output) in [
        (json!({"status": "ok", "output": "text"}), "text"),
        (
            json!({"status": "ok", "output": "raw", "structuredOutput": {}}),
            "raw",
        ),
    ] {
        let bad = run(answered(&result), &dispatch);
        assert_eq!(bad["errorCode"], "output_invalid");
        assert_eq!(bad["output"], output);
        assert!(bad.get("structuredOutput").is_none());
    }
    let failed = run(
        answered(&json!({"status": "error", "errorCode": "x"})),
        &dispatch,
    );
    assert_eq!(failed["errorCode"], "x");
}

#[test]
fn a_file_is_the_output_or_missing() {
    let dispatch = minimal();
    let subject = Subject {
        strategy: OutputStrategy::File,
        ..subject(&dispatch)
    };
    let missing = || {
        Some(Captured::Missing(
            "output file \"output.md\" is gone".into(),
        ))
    };
    for (status, file, code, output) in [
        (
            "ok",
            Some(Captured::Read(b"a\xffb\0c".to_vec())),
            None,
            "a\u{fffd}bc",
        ),
        ("ok", missing(), Some("output_missing"), "said"),
        ("ok", None, Some("output_missing"), "said"),
        ("error", missing(), Some("adapter_error"), "said"),
    ] {
        let raw = Raw {
            file,
            ..raw(answered(&json!({"status": status, "output": "said"})))
        };
        let outcome = normalise(&raw, &subject, &Config::default());
        assert_eq!(outcome.error_code.as_deref(), code);
        assert_eq!(body(&outcome)["output"], output);
    }
}

#[test]
fn usage_in_the_result_counts_against_the_budget() {
    let dispatch = DispatchRequest {
        budget: Some(Budget {
            max_tokens: Some(10),
            max_cost_usd: None,
        }),
        ..minimal()
    };
    for (tokens, code) in [(10, None), (11, Some("budget_exceeded"))] {
        let result = json!({"status": "ok", "output": "x", "usage": {"outputTokens": tokens}});
        let body = run(answered(&result), &dispatch);
        assert_eq!(body["errorCode"].as_str(), code);
        assert_eq!(body["output"], "x");
        assert_eq!(body["usage"]["outputTokens"], tokens);
    }
}

#[test]
fn long_outputs_are_cut_and_too_long_ones_refused() {
    let dispatch = minimal();
    let config = Config {
        output_inline_bytes: 4,
        output_limit_bytes: 8,
        ..Config::default()
    };
    let finish = |result: &Value| normalise(&raw(answered(result)), &subject(&dispatch), &config);

    let cut = finish(&json!({"status": "ok", "output": "123456"}));
    assert_eq!(cut.error_code, None);
    assert_eq!(cut.output.as_deref(), Some("123456"));
    assert_eq!(body(&cut)["output"], "1234");
    assert_eq!(body(&cut)["outputTruncated"]["bytes"], 6);

    let refused = finish(&json!({"status": "ok", "output": "123456789"}));
    assert_eq!(refused.error_code.as_deref(), Some("output_too_large"));
    assert_eq!(refused.output, None);
    assert_eq!(body(&refused)["output"], "1234");

    let failed = finish(&json!({"status": "error", "errorCode": "x", "output": "123456789"}));
    assert_eq!(failed.error_code.as_deref(), Some("x"));

    let config = Config {
        output_limit_bytes: 100,
        ..config.clone()
    };
    let large = json!({"status": "ok", "structuredOutput": {"a": "x".repeat(200)}});
    let beside = normalise(&raw(answered(&large)), &subject(&dispatch), &config);
    assert_eq!(beside.error_code.as_deref(), Some("output_too_large"));
    assert!(body(&beside).get("structuredOutput").is_none());
}

#[test]
fn the_beginning_of_an_answer_that_was_too_large_is_kept() {
    let dispatch = minimal();
    let mut accumulator = Accumulator::new(None, 100);
    accumulator.observe(&AdapterEvent::text("streamed"));
    for (code, details, output) in [
        (
            "output_too_large",
            Some(json!({"output": "beginning"})),
            "beginning",
        ),
        (
            "output_too_large",
            Some(json!({"output": null})),
            "streamed",
        ),
        ("output_too_large", None, "streamed"),
        ("other", Some(json!({"output": "beginning"})), "streamed"),
    ] {
        let error = AdapterError {
            details,
            ..AdapterError::new(code, "text")
        };
        let raw = Raw {
            accumulator: accumulator.clone(),
            ..raw(Ending::Failed(error))
        };
        let outcome = normalise(&raw, &subject(&dispatch), &Config::default());
        let body = body(&outcome);
        assert_eq!(body["errorCode"], code);
        assert_eq!(body["output"], output);
    }
}

#[test]
fn streamed_text_that_was_not_kept_whole_is_too_large() {
    let (dispatch, config) = (minimal(), Config::default());
    let mut accumulator = Accumulator::new(None, 4);
    accumulator.observe(&AdapterEvent {
        kind: "assistant.text".into(),
        data: Some(json!({"delta": "123456"})),
        timestamp: None,
    });
    for (result, code, output) in [
        (json!({"status": "ok"}), Some("output_too_large"), "1234"),
        (json!({"status": "ok", "output": "123456"}), None, "123456"),
    ] {
        let raw = Raw {
            accumulator: accumulator.clone(),
            ..raw(answered(&result))
        };
        let outcome = normalise(&raw, &subject(&dispatch), &config);
        assert_eq!(outcome.error_code.as_deref(), code);
        assert_eq!(body(&outcome)["output"], output);
    }
}

#[test]
fn sessions_are_echoed_from_the_nearest_source() {
    let dispatch = minimal();
    let given = Subject {
        session: Some("given"),
        ..subject(&dispatch)
    };
    let mut events = raw(answered(&json!({"status": "ok"})));
    events.accumulator.session = Some("event".into());
    let result = raw(answered(&json!({"status": "ok", "sessionId": "result"})));
    let plain = raw(answered(&json!({"status": "ok"})));
    for (raw, subject, expected) in [
        (&result, &given, json!("result")),
        (&events, &given, json!("event")),
        (&plain, &given, json!("given")),
        (&plain, &self::subject(&dispatch), Value::Null),
    ] {
        let outcome = normalise(raw, subject, &Config::default());
        assert_eq!(body(&outcome)["sessionId"], expected);
    }
}

#[test]
fn codes_and_texts_are_bounded() {
    let error = AdapterError::new("c\n".repeat(500), "e\0".repeat(100_000));
    let body = run(Ending::Failed(error), &minimal());
    assert_eq!(body["errorCode"].as_str().unwrap().len(), 128);
    let text = body["error"].as_str().unwrap();
    assert!(text.len() <= 16 * 1024 && !text.contains('\0'));
}
