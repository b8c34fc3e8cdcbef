//! Normalisation of an adapter's events and answer into one result.

use std::time::Duration;

use forge_adapter_api::OutputStrategy;
use forge_base::id::DispatchId;
use forge_base::text::is_unseen;
use forge_dispatch::Config;
use forge_dispatch::accumulator::Accumulator;
use forge_dispatch::capture::Captured;
use forge_dispatch::normalise::{Ending, Raw, Subject, normalise};
use forge_dispatch::request::DispatchRequest;
use forge_plugin_host::fuzzing::event;
use jiff::Timestamp;
use serde_json::{Value, json};

const INLINE: usize = 64;
const LIMIT: usize = 256;

/// Input: a byte that selects the ending, events, one per line, and the answer after an empty line.
pub(crate) fn run(data: &[u8]) {
    let Some((&choice, said)) = data.split_first() else {
        return;
    };
    let (events, answer) = match said.windows(2).position(|pair| pair == b"\n\n") {
        Some(at) => (&said[..at], &said[at + 2..]),
        None => (&b""[..], said),
    };
    let mut accumulator = Accumulator::new(None, LIMIT);
    for line in events.split(|byte| *byte == b'\n') {
        if let Ok(event) = event(line) {
            accumulator.observe(&event);
        }
        assert!(accumulator.text.len() <= LIMIT);
    }
    let answer = answer.to_vec();
    let file = match choice & 8 {
        0 => None,
        _ => Some(Captured::Read(answer.clone())),
    };
    let strategy = match file {
        None => OutputStrategy::Stream,
        Some(_) => OutputStrategy::File,
    };
    let ending = match choice % 4 {
        0 | 1 => Ending::Answered(answer),
        2 => Ending::Cancelled {
            answer: Some(answer),
        },
        _ => Ending::Failed(forge_plugin_host::fuzzing::error(&answer)),
    };
    let raw = Raw {
        ending,
        file,
        output_files: Vec::new(),
        accumulator,
    };
    check(&raw, strategy, choice & 16 != 0);
}

fn dispatch(schema: Option<&Value>) -> DispatchRequest {
    let stored = json!({
        "taskId": "t", "agentId": "a", "message": "m", "timeoutSeconds": 1.0,
        "queueTimeoutSeconds": 1.0, "traceId": "0", "traceparent": "0", "outputSchema": schema,
        "budget": {"maxTokens": 1000},
    });
    serde_json::from_value(stored).unwrap()
}

fn check(raw: &Raw, strategy: OutputStrategy, wants_object: bool) {
    let object = json!({"type": "object"});
    let dispatch = dispatch(wants_object.then_some(&object));
    let config = Config {
        output_inline_bytes: INLINE,
        output_limit_bytes: LIMIT,
        ..Config::default()
    };
    let subject = Subject {
        id: DispatchId::from_bytes([1; 16]),
        dispatch: &dispatch,
        provider: "echo",
        attempt: 1,
        retry_of: None,
        strategy,
        session: None,
        started_at: Some(Timestamp::UNIX_EPOCH),
        completed_at: Timestamp::UNIX_EPOCH,
        elapsed: Duration::ZERO,
    };
    let outcome = normalise(raw, &subject, &config);
    let result: Value = serde_json::from_str(outcome.result.get()).unwrap();
    let text = |name: &str| result[name].as_str();
    assert_eq!(outcome.error_code.as_deref(), text("errorCode"));
    assert_eq!(outcome.error_code.is_some(), outcome.error.is_some());
    assert_eq!(result["status"] == "ok", outcome.error_code.is_none());
    if let Some(code) = &outcome.error_code {
        assert!(!code.is_empty() && !code.contains(is_unseen), "{code:?}");
        assert!(code.len() <= 128 && text("error").unwrap().len() <= 16 * 1024);
    }
    let cancelled = matches!(raw.ending, Ending::Cancelled { .. });
    assert_eq!(text("errorCode") == Some("cancelled"), cancelled);
    let output = text("output").unwrap_or_default();
    assert!(
        output.len() <= INLINE && !output.contains('\0'),
        "{output:?}"
    );
    if let Some(whole) = &outcome.output {
        assert!(whole.len() <= LIMIT && whole.starts_with(output));
        assert_eq!(result["outputTruncated"]["bytes"], whole.len());
    }
    for (name, count) in result["usage"].as_object().unwrap() {
        assert!(count.is_null() || count.is_u64(), "{name} {count}");
    }
    let cost = &result["costUsd"];
    assert!(cost.is_null() || cost.as_f64().unwrap() >= 0.0, "{cost}");
    // Data beside the output is bounded like the output.
    assert!(outcome.result.get().len() < 64 * 1024 + 8 * LIMIT + data_len(raw));
}

fn data_len(raw: &Raw) -> usize {
    match &raw.ending {
        Ending::Answered(answer) => 6 * answer.len(),
        _ => 0,
    }
}
