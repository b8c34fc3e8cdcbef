//! Answers of services over HTTP, in all their forms, and limits of a call.

use std::time::Duration;

use tokio::task::JoinSet;

use super::*;
use crate::harness::port::Reserved;
use crate::harness::until;

#[tokio::test]
async fn every_form_of_an_answer_is_read() {
    let sink = CallbackSink::start().await;
    let setup = Setup::new(&[probe(&sink)], "answer_bytes = 4096").await;
    let body = |status: u16, body: &str| Answer::status(status).body(body);
    for (answer, result) in [
        (
            body(200, r#"{"ok":true,"result":{"id":1}}"#),
            json!({"id": 1}),
        ),
        (body(201, "[1]"), json!([1])),
        (body(200, r#"{"result":null}"#), json!(null)),
        (body(200, "\u{feff}{\"result\":1}"), json!(1)),
        (body(200, "5").header("content-type", "text/html"), json!(5)),
        (
            body(200, &format!("\"{}\"", "x".repeat(4094))),
            json!("x".repeat(4094)),
        ),
    ] {
        sink.answer(answer);
        let (status, body) = setup.call(COMMAND).await;
        assert_eq!(
            (status, &body["result"]),
            (StatusCode::OK, &result),
            "{body}"
        );
        assert_eq!(body["ok"], true);
    }
    let elsewhere = CallbackSink::start().await;
    let failed = "FORGE_EXTERNAL_RUNTIME_FAILED";
    let bad = "FORGE_EXTERNAL_RUNTIME_BAD_RESPONSE";
    for (answer, status, code, message) in [
        (
            body(200, r#"{"ok":false,"error":{"code":"C","message":"m"}}"#),
            400,
            "C",
            "m",
        ),
        (
            body(500, r#"{"ok":true}"#),
            400,
            failed,
            "external runtime returned HTTP 500",
        ),
        (
            body(
                200,
                r#"{"ok":false,"error":{"code":"FORGE_POLICY_DENIED","message":"no"}}"#,
            ),
            403,
            "FORGE_POLICY_DENIED",
            "no",
        ),
        (body(204, ""), 400, bad, "without a body"),
        (body(200, ""), 400, bad, "without a body"),
        (body(404, "<html>"), 400, bad, "non-JSON"),
        (
            body(200, &format!("\"{}\"", "x".repeat(4095))),
            400,
            bad,
            "external.answer_bytes",
        ),
        (Answer::cut(r#"{"result":1}"#), 400, bad, "cut"),
        (Answer::close(), 400, failed, "closed before the answer"),
        (
            Answer::status(307)
                .header("location", &elsewhere.url("/"))
                .body("{}"),
            400,
            failed,
            "redirects are not followed",
        ),
    ] {
        let shown = format!("{answer:?}");
        sink.answer(answer);
        let (found, found_code, found_message) = setup.failure(COMMAND, json!({})).await;
        assert_eq!(
            (found, found_code.as_str()),
            (status, code),
            "{found_message}"
        );
        assert!(found_message.contains(message), "{found_message}: {shown}");
    }
    assert!(elsewhere.received().is_empty());
    setup.bridge.stop().await;
}

#[tokio::test]
async fn only_a_short_visible_trace_id_replaces_that_of_the_bridge() {
    let sink = CallbackSink::start().await;
    let setup = Setup::new(&[probe(&sink)], "").await;
    let own = "0af7651916cd43dd8448eb211c80319c";
    let given = format!("00-{own}-b7ad6b7169203331-01");
    for (id, shown) in [
        (json!("trace_1"), "trace_1"),
        (json!("a\r\nset-cookie: x"), own),
        (json!(""), own),
        (json!(7), own),
        (json!({"a": 1}), own),
        (json!("\u{e9}"), own),
        (json!("x".repeat(65)), own),
    ] {
        for ok in [true, false] {
            let text = json!({"ok": ok, "result": 1, "traceId": id}).to_string();
            sink.answer(Answer::status(200).body(text));
            let request = setup.bridge.api.request(Method::POST, COMMAND);
            let request = request.header("traceparent", &given);
            let answer = request.send().await.unwrap();
            assert_eq!(answer.headers()["x-forge-trace-id"], shown, "{id} {ok}");
            assert!(answer.headers().get("set-cookie").is_none());
            let body: Value = answer.json().await.unwrap();
            assert_eq!(body["traceId"], shown, "{id} {ok}");
        }
    }
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_service_that_hangs_is_a_timeout() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::hang());
    let setup = Setup::new(&[probe(&sink)], "timeout = \"2s\"").await;
    for path in [COMMAND, QUERY] {
        let (status, code, message) = setup.failure(path, json!({})).await;
        let expected = (504, "FORGE_EXTERNAL_RUNTIME_TIMEOUT");
        assert_eq!((status, code.as_str()), expected, "{message}");
    }
    assert_eq!(
        sink.received().len(),
        2,
        "a call that was sent is not repeated"
    );
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_query_is_repeated_where_a_command_is_not() {
    let sink = CallbackSink::start().await;
    let setup = Setup::new(&[probe(&sink)], "").await;
    let unavailable = || Answer::status(503).body("{}");
    let done = || Answer::status(200).body("1");
    sink.script(vec![unavailable(), unavailable(), done()]);
    assert_eq!(setup.call(QUERY).await.0, StatusCode::OK);
    assert_eq!(sink.received().len(), 3);
    sink.answer(unavailable());
    assert_eq!(setup.failure(QUERY, json!({})).await.0, 400);
    assert_eq!(sink.received().len(), 6);
    assert_eq!(setup.failure(COMMAND, json!({})).await.0, 400);
    assert_eq!(sink.received().len(), 7);
    setup.bridge.stop().await;
}

#[tokio::test]
async fn an_address_that_is_not_allowed_or_does_not_answer_is_a_failure() {
    let sink = sink_with(json!(1)).await;
    let setup = Setup::new(&[probe(&sink)], "allow = []").await;
    let (status, code, message) = setup.failure(COMMAND, json!({})).await;
    assert_eq!(
        (status, code.as_str()),
        (400, "FORGE_EXTERNAL_RUNTIME_FAILED")
    );
    assert!(message.contains("external.allow"), "{message}");
    assert!(sink.received().is_empty());
    setup.bridge.stop().await;

    let silent = Reserved::new();
    let base = format!("http://{}", silent.address());
    let service = json!({"name": "probe", "transport": "http", "baseUrl": base});
    let entries = json!([{"name": "run", "kind": "command"}]);
    let setup = Setup::new(&[manifest(&service, &entries)], "").await;
    let (status, code, message) = setup.failure(COMMAND, json!({})).await;
    assert_eq!(
        (status, code.as_str()),
        (400, "FORGE_EXTERNAL_RUNTIME_FAILED")
    );
    assert!(message.contains("not reachable"), "{message}");
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_full_service_refuses_calls_and_a_caller_that_leaves_makes_room() {
    let (slow, other) = (CallbackSink::start().await, sink_with(json!(2)).await);
    slow.answer(Answer::hang());
    let mut second = probe(&other);
    second["service"]["name"] = "other".into();
    let setup = Setup::new(&[second, probe(&slow)], "max_calls = 1").await;
    let api = setup.bridge.api.clone();
    let mut hanging = JoinSet::new();
    hanging.spawn(async move { api.request(Method::POST, COMMAND).send().await });
    slow.until(1).await;
    let request = setup.bridge.api.request(Method::POST, COMMAND);
    let refused = request.send().await.unwrap();
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(refused.headers()["retry-after"], "1");
    let body: Value = refused.json().await.unwrap();
    assert_eq!(body["code"], "FORGE_EXTERNAL_RUNTIME_UNAVAILABLE", "{body}");
    let (status, _) = setup.call("/external/other/commands/run").await;
    assert_eq!(
        status,
        StatusCode::OK,
        "other services are served meanwhile"
    );
    drop(hanging);
    slow.answer(Answer::status(200).body("1"));
    until("the place of the caller that left", || async {
        let request = setup.bridge.api.request(Method::POST, COMMAND);
        (request.send().await.unwrap().status() == StatusCode::OK).then_some(())
    })
    .await;
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_service_that_fails_repeatedly_is_left_alone() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(502).body("{}"));
    let settings = "[external.breaker]\nmin_samples = 3\nopen = \"1m\"\n";
    let setup = Setup::new(&[probe(&sink)], settings).await;
    for _ in 0..3 {
        assert_eq!(setup.failure(COMMAND, json!({})).await.0, 400);
    }
    let (status, code, _) = setup.failure(COMMAND, json!({})).await;
    assert_eq!(
        (status, code.as_str()),
        (503, "FORGE_EXTERNAL_RUNTIME_UNAVAILABLE")
    );
    assert_eq!(sink.received().len(), 3);
    let (_, list) = setup.bridge.api.get("/api/v2/external").await;
    assert_eq!(list["services"][0]["breaker"]["state"], "open", "{list}");
    let (_, health) = setup.bridge.api.get("/api/health").await;
    assert_eq!(health["status"], "healthy", "{health}");
    assert_eq!(
        health["services"],
        json!({"known": 1, "problems": 0, "unavailable": 1})
    );
    let metrics = setup.bridge.api.request(Method::GET, "/metrics");
    let metrics = metrics.send().await.unwrap().text().await.unwrap();
    for (outcome, count) in [("failed", 3), ("unavailable", 1), ("ok", 0)] {
        let line = format!(
            "external_calls_total{{service=\"probe\",kind=\"command\",outcome=\"{outcome}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_slow_service_is_waited_for() {
    let sink = CallbackSink::start().await;
    sink.answer(
        Answer::status(200)
            .body("1")
            .after(Duration::from_millis(300)),
    );
    let settings = "timeout = \"100ms\"\n[external.services.probe]\ntimeout = \"1m\"\n";
    let setup = Setup::new(&[probe(&sink)], settings).await;
    let (status, body) = setup.call(COMMAND).await;
    assert_eq!(
        status,
        StatusCode::OK,
        "the service's own limit counts: {body}"
    );
    setup.bridge.stop().await;
}
