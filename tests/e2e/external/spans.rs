//! Trace spans of calls: one for each, below the caller's, with the names of the entry and the outcome.

use tokio::task::JoinSet;

use super::*;
use crate::harness::process::{Home, Process};
use crate::harness::until;
use crate::traces::{CALLER, Collector, TRACE, Told, home, sampled};

const CALL: &str = "call probe.run";

/// A bridge that exports its spans to the collector, with the services `probe` and `denied`.
fn start(collector: &Collector, sink: &CallbackSink) -> (Home, Process) {
    let home = home(&collector.0.url(""), &[]);
    let root = home.dir.path();
    let mut denied = probe(sink);
    denied["service"]["name"] = "denied".into();
    denied["entries"][0]["policy"] = "user".into();
    register(root, &[probe(sink), denied]);
    let file = root.join("forge.toml");
    let settings =
        std::fs::read_to_string(&file).unwrap() + &format!("[external]\nroot = {root:?}\n");
    std::fs::write(file, settings).unwrap();
    let bridge = home.start();
    (home, bridge)
}

/// Posts `secret` as the argument; returns the answer.
async fn post(bridge: &Process, path: &str, traceparent: Option<&str>) -> (StatusCode, Value) {
    let request = bridge.api.request(Method::POST, path);
    let request = request.json_body(&json!({"args": {"a": "secret"}}));
    answer(traceparent.into_iter().fold(request, |request, value| {
        request.header("traceparent", value)
    }))
    .await
}

/// Waits for spans of calls; returns them in the order of their arrival.
async fn calls(collector: &Collector, count: usize) -> Vec<Told> {
    until("the spans of the calls", || async {
        let mut spans = collector.spans();
        spans.retain(|span| span.name.starts_with("call "));
        (spans.len() >= count).then_some(spans)
    })
    .await
}

#[tokio::test]
async fn a_call_is_a_span_of_its_caller() {
    let (collector, sink) = (Collector::start().await, sink_with(json!("secret")).await);
    let (_home, bridge) = start(&collector, &sink);
    let unsampled = format!("00-{}-{CALLER}-00", TRACE.replace('0', "1"));
    assert_eq!(
        post(&bridge, COMMAND, Some(&unsampled)).await.0,
        StatusCode::OK
    );
    let (status, body) = post(&bridge, COMMAND, Some(&sampled(TRACE))).await;
    assert_eq!((status, &body["traceId"]), (StatusCode::OK, &json!(TRACE)));
    let (_, begun) = post(&bridge, COMMAND, None).await;
    let denied = "/external/denied/commands/run";
    assert_eq!(
        post(&bridge, denied, Some(&sampled(TRACE))).await.0,
        StatusCode::FORBIDDEN
    );
    sink.answer(Answer::status(500).body(r#"{"error":{"code":"secret","message":"secret"}}"#));
    assert_eq!(
        post(&bridge, QUERY, Some(&sampled(TRACE))).await.0,
        StatusCode::BAD_REQUEST
    );

    let spans = calls(&collector, 4).await;
    let seen: Vec<_> = spans
        .iter()
        .map(|span| {
            let text = |name: &str| span.attributes[name].as_str().unwrap();
            let attributes = [
                "forge.service",
                "forge.entry",
                "forge.entry.kind",
                "forge.outcome",
            ];
            (
                span.name.as_str(),
                attributes.map(text),
                span.parent.as_str(),
                span.error,
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            (CALL, ["probe", "run", "command", "ok"], CALLER, false),
            (CALL, ["probe", "run", "command", "ok"], "", false),
            (
                "call denied.run",
                ["denied", "run", "command", "denied"],
                CALLER,
                true
            ),
            (
                "call probe.look",
                ["probe", "look", "query", "failed"],
                CALLER,
                true
            ),
        ]
    );
    assert_eq!(begun["traceId"], spans[1].trace.as_str());
    // The service is told the span of its call.
    let received = sink.received();
    assert!(received[0].headers["traceparent"].ends_with("-00"));
    for (call, span) in received[1..3].iter().zip(&spans) {
        let told = format!("00-{}-{}-01", span.trace, span.id);
        assert_eq!(call.headers["traceparent"], told);
    }
    for request in collector.0.received() {
        let text = String::from_utf8_lossy(&request.body);
        assert!(!text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn a_call_of_a_dispatch_is_a_span_of_its_attempt() {
    let (collector, sink) = (Collector::start().await, sink_with(json!(1)).await);
    let (_home, bridge) = start(&collector, &sink);
    let body = json!({
        "taskId": "t", "agentId": "agent", "provider": "external", "model": "probe.run", "message": "{}",
        "callbackUrl": null,
    });
    let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let request = request.header("traceparent", sampled(TRACE));
    assert_eq!(
        answer(request.json_body(&body)).await.0,
        StatusCode::ACCEPTED
    );
    let attempt = "invoke_agent agent";
    let spans = collector.until(TRACE, &["dispatch", attempt, CALL]).await;
    assert_eq!(spans[CALL].parent, spans[attempt].id);
    assert_eq!(spans["dispatch"].parent, CALLER);

    // A command with a key is a dispatch below its caller, too.
    let other = TRACE.replace('0', "2");
    let request = bridge.api.request(Method::POST, COMMAND);
    let request = request.header("traceparent", sampled(&other));
    let (status, body) = answer(request.header("idempotency-key", "k")).await;
    assert_eq!((status, &body["traceId"]), (StatusCode::OK, &json!(other)));
    let attempt = "invoke_agent probe";
    let spans = collector.until(&other, &["dispatch", attempt, CALL]).await;
    assert_eq!(spans[CALL].parent, spans[attempt].id);
    assert_eq!(spans["dispatch"].parent, CALLER);
}

#[tokio::test]
async fn a_call_whose_caller_left_is_a_span() {
    let (collector, sink) = (Collector::start().await, CallbackSink::start().await);
    sink.answer(Answer::hang());
    let (_home, bridge) = start(&collector, &sink);
    let api = bridge.api.clone();
    let mut calling = JoinSet::new();
    calling.spawn(async move { api.request(Method::POST, COMMAND).send().await });
    sink.until(1).await;
    drop(calling);
    let span = calls(&collector, 1).await.remove(0);
    assert_eq!((span.name.as_str(), span.error), (CALL, true));
    assert_eq!(span.attributes["forge.outcome"], "cancelled");
}
