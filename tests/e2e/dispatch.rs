//! Routes of dispatches: waiting, lookup, lists, cancellation, and every kind of timeout.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{answer, owed, quiet, with};
use super::harness::{Bridge, CallbackSink, until};

/// Starts a bridge that soon drops cancelled executions which do not end.
async fn impatient() -> Bridge {
    Bridge::with(&[("BRIDGE_DISPATCH_CANCEL_GRACE", "100ms")]).await
}

#[tokio::test]
async fn waiting_holds_until_the_end() {
    let bridge = impatient().await;
    let api = &bridge.api;
    let id = api.dispatch(quiet("t", "hang")).await;
    api.running(&id).await;
    let (_, early) = api.get(&format!("/api/v2/dispatch/{id}?wait=1")).await;
    assert_eq!(
        early["status"], "running",
        "the wait ends before the dispatch does"
    );
    assert_eq!(early.get("result"), None);
    let (record, cancelled) = tokio::join!(api.finished(&id), api.cancel(&id));
    assert!(cancelled);
    assert_eq!(record["errorCode"], "cancelled");
    for wait in ["-1", "61", "soon", "1.5"] {
        let (status, envelope) = api.get(&format!("/api/v2/dispatch/{id}?wait={wait}")).await;
        assert_eq!(status, 400, "{wait}");
        assert_eq!(envelope["details"][0]["field"], "wait", "{envelope}");
    }
    for unknown in [
        "unknown",
        "dsp_0",
        "dsp_019a0000-0000-7000-8000-000000000000",
    ] {
        for path in ["", "?all=true", "?wait=1", "/events", "/output"] {
            let (status, envelope) = api.get(&format!("/api/v2/dispatch/{unknown}{path}")).await;
            assert_eq!(status, 404, "{unknown}{path}: {envelope}");
            assert_eq!(envelope["code"], "NOT_FOUND");
        }
    }
    bridge.stop().await;
}

#[tokio::test]
async fn lists_are_filtered_and_continue_with_their_cursor() {
    let bridge = Bridge::start().await;
    let api = &bridge.api;
    for number in 0..5 {
        let run = ["run-a", "run-b"][number % 2];
        let body = with(quiet(&format!("t{number}"), "ok"), &json!({"runId": run}));
        let id = api
            .dispatch(with(body, &json!({"agentId": format!("agent-{number}")})))
            .await;
        api.finished(&id).await;
    }
    let failed = api.dispatch(quiet("failed", "fail")).await;
    let failed = api.finished(&failed).await;
    let since = failed["acceptedAt"].as_str().unwrap();
    for (query, expected) in [
        ("", &["failed", "t4", "t3", "t2", "t1", "t0"][..]),
        ("status=ok", &["t4", "t3", "t2", "t1", "t0"]),
        ("status=error", &["failed"]),
        ("status=queued", &[]),
        ("status=running", &[]),
        ("provider=echo&status=error", &["failed"]),
        ("provider=other", &[]),
        ("agentId=agent-3", &["t3"]),
        ("runId=run-a", &["t4", "t2", "t0"]),
        ("runId=run-a&limit=1", &["t4"]),
        (&format!("since={since}"), &["failed"]),
        ("since=2100-01-01T00:00:00Z", &[]),
    ] {
        assert_eq!(tasks(&page(&bridge, query).await), expected, "{query}");
    }

    let mut found = Vec::new();
    let mut query = "limit=2".to_owned();
    loop {
        let page = page(&bridge, &query).await;
        found.extend(tasks(&page));
        let Some(cursor) = page["nextCursor"].as_str() else {
            break;
        };
        query = format!("limit=2&cursor={cursor}");
    }
    assert_eq!(found, ["failed", "t4", "t3", "t2", "t1", "t0"]);
    for query in [
        "limit=0",
        "limit=many",
        "status=done",
        "since=yesterday",
        "cursor=%00",
    ] {
        let (status, envelope) = api.get(&format!("/api/v2/dispatches?{query}")).await;
        assert_eq!(status, 400, "{query}: {envelope}");
    }
    bridge.stop().await;
}

async fn page(bridge: &Bridge, query: &str) -> Value {
    let (status, page) = bridge.api.get(&format!("/api/v2/dispatches?{query}")).await;
    assert_eq!(status, 200, "{page}");
    page
}

fn tasks(page: &Value) -> Vec<String> {
    let listed = page["dispatches"].as_array().unwrap().iter();
    listed
        .map(|dispatch| dispatch["taskId"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_cancel_ends_what_waits_and_what_runs_and_nothing_else() {
    let sink = CallbackSink::start().await;
    let bridge = Bridge::with(&[
        ("BRIDGE_DISPATCH_CANCEL_GRACE", "100ms"),
        ("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", "1"),
    ])
    .await;
    let api = &bridge.api;
    // The adapter ignores cancellation; the execution is dropped after the grace period.
    let running = api
        .dispatch(owed("running", "hang", &sink.url("/running")))
        .await;
    api.running(&running).await;
    let queued = api
        .dispatch(owed("queued", "ok", &sink.url("/queued")))
        .await;
    assert!(api.cancel(&queued).await);
    let record = api.record(&queued).await;
    assert_eq!(record["status"], "finished", "at once");
    assert_eq!(record["result"]["attempt"], 0);
    assert_eq!(record["result"]["startedAt"], Value::Null);

    assert!(api.cancel(&running).await);
    assert!(api.cancel(&running).await || api.record(&running).await["status"] == "finished");
    for id in [&running, &queued] {
        let record = api.delivery_is(id, "delivered").await;
        assert_eq!(record["errorCode"], "cancelled", "{record}");
        assert_eq!(record["cancelRequested"], true);
        assert!(!api.cancel(id).await, "it is finished");
    }
    let (status, _) = api
        .post("/api/v2/dispatch/unknown/cancel", &json!({}))
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND);

    // Its slot is free again.
    let id = api.dispatch(owed("after", "ok", &sink.url("/after"))).await;
    api.delivery_is(&id, "delivered").await;
    assert!(!api.cancel("after").await);
    bridge.stop().await;
    let received = sink.received();
    let mut paths: Vec<_> = received
        .iter()
        .map(|request| request.path.as_str())
        .collect();
    paths.sort_unstable();
    assert_eq!(
        paths,
        ["/after", "/queued", "/running"],
        "exactly one callback each"
    );
}

#[tokio::test]
async fn a_cancelled_run_keeps_what_it_used() {
    let bridge = Bridge::start().await;
    let api = &bridge.api;
    let id = api.dispatch(quiet("t", "usage:100000")).await;
    let path = "/api/v2/events?taskId=t&type=usage&after=0&wait=30";
    let request = api
        .request(Method::GET, path)
        .header("accept", "application/json");
    let (_, page) = answer(request).await;
    assert_eq!(page["events"][0]["type"], "usage", "{page}");
    assert!(api.cancel(&id).await);
    let record = api.finished(&id).await;
    assert_eq!(record["errorCode"], "cancelled");
    assert!(
        record["result"]["usage"]["inputTokens"].is_u64(),
        "{record}"
    );
    assert!(record["result"]["costUsd"].is_f64(), "{record}");
    let events = api.events(&id).await;
    assert_eq!(events.last().unwrap()["type"], "execution.failed");
    assert_eq!(events.last().unwrap()["data"]["errorCode"], "cancelled");
    bridge.stop().await;
}

#[tokio::test]
async fn the_clock_ends_what_does_not_end_itself() {
    let bridge = impatient().await;
    let api = &bridge.api;
    let soon = jiff::Timestamp::now() + Duration::from_secs(5);
    let rows = [
        ("hang", "hang", json!({"timeout": 0.2}), "timeout"),
        (
            "slow",
            "slow:60000",
            json!({"timeoutSeconds": 0.2}),
            "timeout",
        ),
        (
            "snake",
            "slow:60000",
            json!({"timeout_seconds": 0.2}),
            "timeout",
        ),
        (
            "deadline",
            "slow:60000",
            json!({"deadline": soon.to_string()}),
            "timeout",
        ),
        (
            "idle",
            "hang",
            json!({"idleTimeoutSeconds": 0.2}),
            "stalled",
        ),
        (
            "nearer",
            "hang",
            json!({"idleTimeoutSeconds": 60, "timeout": 0.2}),
            "timeout",
        ),
        // Events every 20 ms prevent the idle timeout; the total timeout applies.
        (
            "lively",
            "usage:100000",
            json!({"idleTimeoutSeconds": 60, "timeout": 0.5}),
            "timeout",
        ),
    ];
    let runs = rows
        .into_iter()
        .map(|(task, model, extra, code)| async move {
            let id = api.dispatch(with(quiet(task, model), &extra)).await;
            let record = api.finished(&id).await;
            assert_eq!(record["result"]["errorCode"], code, "{task}: {record}");
            assert_eq!(record["result"]["status"], "error", "{task}");
            let events = api.events(&id).await;
            let ends = events
                .iter()
                .filter(|event| event["type"] == "execution.failed");
            assert_eq!(ends.count(), 1, "{task}");
        });
    join_all(runs).await;
    assert_eq!(api.run(quiet("well", "ok")).await["status"], "ok");
    bridge.stop().await;
}

#[tokio::test]
async fn a_timeout_while_a_model_refuses_names_the_refusal() {
    let sink = CallbackSink::start().await;
    let bridge = Bridge::start().await;
    let body = with(
        owed("busy", "busy:60000", &sink.url("/cb")),
        &json!({"timeoutSeconds": 1}),
    );
    let id = bridge.api.dispatch(body).await;
    let result = bridge.api.finished(&id).await["result"].clone();
    let delivered: Value = serde_json::from_slice(&sink.until(1).await[0].body).unwrap();
    for result in [&result, &delivered] {
        assert_eq!(result["errorCode"], "timeout", "{result}");
        let text = result["error"].as_str().unwrap();
        assert!(text.ends_with("rate_limited"), "{text}");
        let cause = json!({"lastRefusal": {"reason": "rate_limited"}});
        assert_eq!(result["details"], cause, "{result}");
    }
    bridge.api.delivery_is(&id, "delivered").await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_repeated_request_to_a_model_is_progress_counted_and_its_hints_reach_the_caller() {
    let sink = CallbackSink::start().await;
    let bridge = Bridge::start().await;
    let api = &bridge.api;
    // The announced wait is longer than the idle timeout, which would end the attempt.
    let body = with(
        owed("busy", "busy:4000", &sink.url("/cb")),
        &json!({"idleTimeoutSeconds": 3}),
    );
    let id = api.dispatch(body).await;
    let result = api.finished(&id).await["result"].clone();
    assert_eq!(result["errorCode"], "rate_limited", "{result}");
    let delivered: Value = serde_json::from_slice(&sink.until(1).await[0].body).unwrap();
    for result in [&result, &delivered] {
        assert_eq!(result["retryable"], true, "{result}");
        assert_eq!(result["retryAfterMs"], 4000, "{result}");
    }
    let events = api.events(&id).await;
    let retrying = events
        .iter()
        .find(|event| event["type"] == "model.retrying");
    let data = &retrying.unwrap()["data"];
    assert_eq!(*data, json!({"reason": "rate_limited", "delayMs": 4000}));
    let page = api.request(Method::GET, "/metrics").send().await.unwrap();
    let page = page.text().await.unwrap();
    let counted = "forge_bridge_model_retries_total{adapter=\"echo\",reason=\"rate_limited\"} 1\n";
    assert!(page.contains(counted), "{page}");
    until("the delivery to be settled", || async {
        let record = api.record(&id).await;
        (record["deliveries"][0]["status"] == "delivered").then_some(())
    })
    .await;
    bridge.stop().await;
}
