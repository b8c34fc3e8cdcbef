//! Durable calls: dispatches to provider `external`, and commands with an `Idempotency-Key`.

use std::time::Duration;

use super::*;
use crate::harness::port::Reserved;
use crate::harness::process::Home;
use crate::harness::until;

const BILLING: &str = "[external.policies.billing]\nroles = [\"admin\"]\n";

fn dispatch(task: &str, message: &Value) -> Value {
    json!({
        "taskId": task, "agentId": "agent", "provider": "external", "model": "probe.run",
        "message": message.to_string(), "callbackUrl": null,
    })
}

fn extended(body: Value, extra: &Value) -> Value {
    crate::harness::api::with(body, extra)
}

#[tokio::test]
async fn a_dispatch_calls_the_entry_and_its_result_is_the_answer() {
    let sink = sink_with(json!({"id": 7})).await;
    let setup = Setup::new(&[probe(&sink)], "").await;
    let (_, listed) = setup.bridge.api.get("/api/v2/adapters").await;
    let providers = listed["adapters"].as_array().unwrap().iter();
    let providers: Vec<_> = providers.map(|one| one["provider"].clone()).collect();
    assert_eq!(providers, ["echo", "external"]);
    let id = setup
        .bridge
        .api
        .dispatch(dispatch("t", &json!({"n": 1})))
        .await;
    let record = setup.bridge.api.finished(&id).await;
    let result = &record["result"];
    assert_eq!(result["status"], "ok", "{record}");
    assert_eq!(result["structuredOutput"], json!({"id": 7}));
    let received = sink.until(1).await.remove(0);
    assert_eq!(received.headers["idempotency-key"], id);
    let sent: Value = serde_json::from_slice(&received.body).unwrap();
    assert_eq!(sent["args"], json!({"n": 1}));
    assert_eq!(sent["forge"]["traceId"], record["traceId"]);
    // The query of the same service by its kind, and without arguments.
    let query = extended(
        dispatch("q", &json!({})),
        &json!({"model": "query:probe.look"}),
    );
    assert_eq!(setup.bridge.api.run(query).await["status"], "ok");
    // A dispatch that names no provider never comes here.
    let other = crate::harness::api::quiet("o", "ok");
    assert_eq!(setup.bridge.api.run(other).await["provider"], "echo");
    setup.bridge.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_call_is_said_when_it_is_accepted() {
    let sink = sink_with(json!(1)).await;
    let mut service = probe(&sink);
    let entries = service["entries"].as_array_mut().unwrap();
    entries[0]["inputSchema"] = json!({"type": "object", "required": ["n"]});
    entries.push(json!({"name": "pay", "kind": "command", "policy": "billing"}));
    entries.push(json!({"name": "pay", "kind": "query"}));
    let setup = Setup::new(&[service], BILLING).await;
    let api = &setup.bridge.api;
    let fine = dispatch("t", &json!({"n": 1}));
    for (extra, field, message) in [
        (json!({"model": null}), "model", "is required"),
        (
            json!({"model": "probe.gone"}),
            "model",
            "no external service has",
        ),
        (json!({"model": "probe.pay"}), "model", "command:probe.pay"),
        (json!({"message": "create it"}), "message", "as JSON"),
        (json!({"message": "{}"}), "message", "inputSchema"),
    ] {
        let body = extended(fine.clone(), &extra);
        let failure = api.refused(&body, 400, "INVALID_REQUEST").await;
        let detail = &failure["details"][0];
        assert_eq!(detail["field"], field, "{failure}");
        assert!(
            detail["message"].as_str().unwrap().contains(message),
            "{failure}"
        );
    }
    let denied = extended(fine.clone(), &json!({"model": "command:probe.pay"}));
    api.refused(&denied, 403, "FORBIDDEN").await;
    assert!(sink.received().is_empty());
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_call_is_repeated_as_its_recovery_says() {
    let sink = CallbackSink::start().await;
    let setup = Setup::new(&[probe(&sink)], "").await;
    let api = &setup.bridge.api;
    let away = || {
        vec![
            Answer::status(503).body("{}"),
            Answer::status(429).body("{}"),
        ]
    };
    let fine = || Answer::status(200).body(r#"{"result":1}"#);
    sink.script([away(), vec![fine()]].concat());
    let again = extended(dispatch("again", &json!({})), &json!({"recovery": "retry"}));
    assert_eq!(api.run(again).await["status"], "ok");
    let keys = sink.until(3).await;
    assert!(
        keys.iter()
            .all(|one| one.headers["idempotency-key"] == keys[0].headers["idempotency-key"])
    );

    sink.script(away());
    let failed = api.run(dispatch("once", &json!({}))).await;
    assert_eq!(
        failed["errorCode"], "FORGE_EXTERNAL_RUNTIME_FAILED",
        "{failed}"
    );
    assert_eq!(
        failed["details"]["diagnostics"][0]["code"],
        failed["errorCode"]
    );
    assert_eq!(
        sink.received().len(),
        4,
        "a command that was answered is not repeated"
    );
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_service_says_when_it_is_called_again() {
    let sink = CallbackSink::start().await;
    let setup = Setup::new(&[probe(&sink)], "").await;
    let api = &setup.bridge.api;
    let away = |wait: &str| Answer::status(503).header("retry-after", wait).body("{}");
    let fine = Answer::status(200).body(r#"{"result":1}"#);
    sink.script(vec![away("1"), fine]);
    let again = extended(dispatch("again", &json!({})), &json!({"recovery": "retry"}));
    assert_eq!(api.run(again).await["status"], "ok");
    let calls = sink.received();
    let wait = calls[1].at.duration_since(calls[0].at).unwrap();
    assert!(wait >= Duration::from_secs(1), "{wait:?}");

    // Later than the end of the call: there is nothing to wait for.
    sink.answer(away("3600"));
    let late = dispatch("late", &json!({}));
    let late = extended(late, &json!({"recovery": "retry", "timeout": 30}));
    let failed = api.run(late).await;
    assert_eq!(
        failed["errorCode"], "FORGE_EXTERNAL_RUNTIME_FAILED",
        "{failed}"
    );
    assert_eq!(sink.received().len(), 3);
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_call_that_waits_takes_no_place_from_others() {
    let sink = CallbackSink::start().await;
    let setup = Setup::new(&[probe(&sink)], "max_calls = 1\n").await;
    let api = &setup.bridge.api;
    let away = Answer::status(503).header("retry-after", "2").body("{}");
    let fine = Answer::status(200).body(r#"{"result":1}"#);
    sink.script(vec![away, fine.clone(), fine]);
    let waiting = extended(
        dispatch("waiting", &json!({})),
        &json!({"recovery": "retry"}),
    );
    let waiting = api.dispatch(waiting).await;
    sink.until(1).await;
    // The place is free as soon as the answer has been read.
    until("the query is answered", || async {
        let (status, _) = setup.call(QUERY).await;
        (status == StatusCode::OK).then_some(())
    })
    .await;
    assert_eq!(api.record(&waiting).await["status"], "running");
    assert_eq!(api.finished(&waiting).await["result"]["status"], "ok");
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_call_waits_for_a_service_that_is_not_there_yet() {
    let port = Reserved::new();
    let url = format!("http://{}/", port.address());
    let service = json!({"name": "probe", "transport": "http", "baseUrl": url});
    let service = manifest(&service, &json!([{"name": "run", "kind": "command"}]));
    let setup = Setup::new(&[service], "").await;
    let id = setup.bridge.api.dispatch(dispatch("t", &json!({}))).await;
    setup.bridge.api.running(&id).await;
    let late = extended(dispatch("late", &json!({})), &json!({"timeout": 0.5}));
    let late = setup.bridge.api.run(late).await;
    assert_ne!(late["status"], "ok", "{late}");
    let record = setup.bridge.api.record(&id).await;
    assert_eq!(record["status"], "running", "{record}");
    assert!(setup.bridge.api.cancel(&id).await);
    let ended = setup.bridge.api.finished(&id).await;
    assert_eq!(ended["errorCode"], "cancelled", "{ended}");
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_cancelled_call_leaves_no_connection() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::hang());
    let setup = Setup::new(&[probe(&sink)], "").await;
    let id = setup.bridge.api.dispatch(dispatch("t", &json!({}))).await;
    sink.until(1).await;
    assert!(setup.bridge.api.cancel(&id).await);
    let ended = setup.bridge.api.finished(&id).await;
    assert_eq!(ended["errorCode"], "cancelled", "{ended}");
    let busy = async || {
        let (_, overview) = setup.bridge.api.get("/api/v2/external").await;
        (overview["services"][0]["running"] == 0).then_some(())
    };
    until("the place of the call to be free", busy).await;
    let timed = extended(dispatch("time", &json!({})), &json!({"timeout": 0.3}));
    assert_eq!(setup.bridge.api.run(timed).await["errorCode"], "timeout");
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_command_with_a_key_is_made_once() {
    let sink = CallbackSink::start().await;
    sink.answer_with(|received| {
        let body = json!({"result": {"number": received.number}});
        Answer::status(200).body(body.to_string())
    });
    let setup = Setup::new(&[probe(&sink)], "").await;
    let key = [("idempotency-key", "k1")];
    let body = json!({"args": {"n": 1}});
    for _ in 0..3 {
        let (status, answer) = setup.post(COMMAND, &body, &key).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        assert_eq!(
            (&answer["ok"], &answer["result"]["number"]),
            (&json!(true), &json!(1))
        );
    }
    let (status, answer) = setup.post(COMMAND, &json!({"args": {"n": 2}}), &key).await;
    assert_eq!(
        (status, &answer["code"]),
        (StatusCode::CONFLICT, &json!("CONFLICT"))
    );
    let other = [("idempotency-key", "k2")];
    let (_, answer) = setup.post(COMMAND, &body, &other).await;
    assert_eq!(answer["result"]["number"], 2);
    // A failure is kept, too.
    sink.answer(Answer::status(200).body(r#"{"ok":false,"error":{"code":"C","message":"m"}}"#));
    for _ in 0..2 {
        let third = [("idempotency-key", "k3")];
        let (status, answer) = setup.post(COMMAND, &body, &third).await;
        assert_eq!(
            (status.as_u16(), &answer["code"]),
            (400, &json!("C")),
            "{answer}"
        );
    }
    assert_eq!(sink.received().len(), 3);
    setup.bridge.stop().await;
}

/// Two users may use the same key, and must not read the answers of each other.
#[tokio::test]
async fn the_key_of_another_caller_is_refused() {
    let sink = sink_with(json!("private")).await;
    let setup = Setup::new(&[probe(&sink)], "auth = \"dev-headers\"").await;
    let body = json!({"args": {}});
    let of = |user: &'static str| {
        [
            ("idempotency-key", "k"),
            ("x-forge-user-id", user),
            ("x-forge-role", "r"),
        ]
    };
    assert_eq!(
        setup.post(COMMAND, &body, &of("ann")).await.0,
        StatusCode::OK
    );
    let (status, answer) = setup.post(COMMAND, &body, &of("bob")).await;
    assert_eq!(status, StatusCode::CONFLICT, "{answer}");
    assert!(!answer.to_string().contains("private"), "{answer}");
    setup.bridge.stop().await;
}

#[tokio::test]
async fn an_accepted_call_survives_kill_9() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::hang());
    let home = Home::new(&[]);
    register(home.dir.path(), &[probe(&sink)]);
    let file = format!("[external]\nroot = {:?}\n", home.dir.path());
    std::fs::write(home.dir.path().join("forge-bridge.toml"), file).unwrap();
    let bridge = home.start();
    let body = extended(
        dispatch("t", &json!({"n": 1})),
        &json!({"recovery": "retry"}),
    );
    let id = bridge.api.dispatch(body).await;
    sink.until(1).await;
    bridge.kill();
    sink.answer(Answer::status(200).body(r#"{"result":"done"}"#));
    let bridge = home.start();
    let record = bridge.api.finished(&id).await;
    assert_eq!(record["result"]["structuredOutput"], "done", "{record}");
    let received = sink.received();
    assert_eq!(received.len(), 2);
    for one in received {
        assert_eq!(one.headers["idempotency-key"], id);
    }
    bridge.kill();
}
