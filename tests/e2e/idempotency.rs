//! Idempotency: a repeated request is the same dispatch.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use forge_base::digest::{hex, sha256};

use super::harness::api::{JsonBody, answer, owed, quiet, with};
use super::harness::{Answer, Bridge, CallbackSink};

async fn keyed(bridge: &Bridge, key: &str, body: &Value) -> (StatusCode, Value) {
    let request = bridge
        .api
        .request(Method::POST, "/api/v2/dispatch")
        .json_body(body);
    answer(request.header("idempotency-key", key)).await
}

async fn again(bridge: &Bridge, body: &Value) -> (String, bool) {
    let (status, answer) = bridge.api.post("/api/v2/dispatch", body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    let id = answer["dispatchId"].as_str().unwrap().to_owned();
    (id, answer["duplicate"].as_bool().unwrap())
}

async fn all(bridge: &Bridge, task: &str) -> Vec<Value> {
    let (_, all) = bridge
        .api
        .get(&format!("/api/v2/dispatch/{task}?all=true"))
        .await;
    all["dispatches"].as_array().unwrap().clone()
}

#[tokio::test]
async fn the_same_again_is_the_stored_one_and_its_callback_comes_again() {
    let sink = CallbackSink::start().await;
    let bridge = Bridge::start().await;
    let api = &bridge.api;
    let body = owed("t", "slow:300", &sink.url("/cb"));
    let id = api.dispatch(body.clone()).await;
    assert_eq!(
        again(&bridge, &body).await,
        (id.clone(), true),
        "while it runs"
    );
    api.delivery_is(&id, "delivered").await;

    // Members that may differ between repetitions are ignored, and so are alternative spellings of names.
    let mut same = with(
        body.clone(),
        &json!({"metadata": {"try": 2}, "unknown": "field"}),
    );
    let members = same.as_object_mut().unwrap();
    let agent = members.remove("agentId").unwrap();
    members.insert("agent_id".to_owned(), agent);
    assert_eq!(again(&bridge, &same).await, (id.clone(), true));
    let received = sink.until(2).await;
    assert_eq!(
        received[0].headers["webhook-id"],
        received[1].headers["webhook-id"]
    );
    assert_eq!(received[0].body, received[1].body);
    let record = api.delivery_is(&id, "delivered").await;
    assert_eq!(record["deliveries"].as_array().unwrap().len(), 1);
    assert_eq!(record["attempt"], 1, "no second execution");

    let different = with(body, &json!({"message": "something else"}));
    let refused = api.refused(&different, 409, "CONFLICT").await;
    assert_eq!(refused["details"]["dispatchId"], id);
    assert_eq!(all(&bridge, "t").await.len(), 1);
    bridge.stop().await;
}

#[tokio::test]
async fn a_failed_task_is_tried_again_as_a_new_dispatch() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(503));
    let bridge = Bridge::start().await;
    let api = &bridge.api;
    let body = owed("t", "fail", &sink.url("/cb"));
    let first = api.dispatch(body.clone()).await;
    api.finished(&first).await;
    sink.until(1).await;

    let (second, duplicate) = again(&bridge, &body).await;
    assert!(!duplicate);
    assert_ne!(first, second);
    let record = api.finished(&second).await;
    assert_eq!(record["retryOf"], first);
    assert_eq!(record["result"]["retryOf"], first);
    let old = api.record(&first).await;
    assert_eq!(old["deliveries"][0]["status"], "superseded", "{old}");

    // A task that failed may be retried with another body; it succeeds here.
    let fixed = owed("t", "ok", &sink.url("/cb"));
    sink.answer(Answer::status(200));
    let (third, duplicate) = again(&bridge, &fixed).await;
    assert!(!duplicate);
    assert_eq!(
        api.delivery_is(&third, "delivered").await["retryOf"],
        second
    );
    assert_eq!(again(&bridge, &fixed).await, (third.clone(), true));
    api.refused(&body, 409, "CONFLICT").await;
    let tries = all(&bridge, "t").await;
    let ids: Vec<_> = tries
        .iter()
        .map(|dispatch| dispatch["dispatchId"].clone())
        .collect();
    assert_eq!(ids, [third.clone(), second, first], "the newest first");
    api.delivery_is(&third, "delivered").await;
    let (_, newest) = api.get("/api/v2/dispatch/t").await;
    assert_eq!(newest["dispatchId"], third);
    bridge.stop().await;
}

#[tokio::test]
async fn with_a_header_the_stored_one_stays_even_when_it_failed() {
    let bridge = Bridge::start().await;
    let body = quiet("t", "fail");
    let (status, first) = keyed(&bridge, "key-1", &body).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    bridge
        .api
        .finished(first["dispatchId"].as_str().unwrap())
        .await;
    let (_, second) = keyed(&bridge, "key-1", &body).await;
    assert_eq!(second["dispatchId"], first["dispatchId"]);
    assert_eq!(second["duplicate"], true);
    let (status, refused) = keyed(&bridge, "key-1", &quiet("other", "fail")).await;
    assert_eq!(
        (status.as_u16(), &refused["code"]),
        (409, &json!("CONFLICT"))
    );
    // The header and the task id are separate namespaces.
    let (third, duplicate) = again(&bridge, &body).await;
    assert!(!duplicate);
    bridge.api.finished(&third).await;
    let (_, fourth) = keyed(&bridge, "t", &body).await;
    assert_eq!(fourth["duplicate"], false);
    bridge
        .api
        .finished(fourth["dispatchId"].as_str().unwrap())
        .await;
    bridge.stop().await;
}

#[tokio::test]
async fn what_was_cancelled_stays_cancelled() {
    let bridge = Bridge::with(&[("BRIDGE_DISPATCH_CANCEL_GRACE", "50ms")]).await;
    let body = quiet("t", "hang");
    let id = bridge.api.dispatch(body.clone()).await;
    assert!(bridge.api.cancel(&id).await);
    bridge.api.finished(&id).await;
    assert_eq!(again(&bridge, &body).await, (id, true));
    bridge.api.refused(&quiet("t", "ok"), 409, "CONFLICT").await;
    bridge.stop().await;
}

#[tokio::test]
async fn many_at_once_are_one() {
    let sink = CallbackSink::start().await;
    let bridge = Bridge::start().await;
    let bodies = ["by-task", "by-header"].map(|task| owed(task, "ok", &sink.url("/cb")));
    let mut seen = Vec::new();
    for body in &bodies {
        let by_header = body["taskId"] == "by-header";
        let posts = (0..64).map(|_| async {
            let (status, answer) = match by_header {
                true => keyed(&bridge, "key", body).await,
                false => bridge.api.post("/api/v2/dispatch", body).await,
            };
            assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
            (
                answer["dispatchId"].as_str().unwrap().to_owned(),
                answer["duplicate"] == true,
            )
        });
        let answers = join_all(posts).await;
        let ids: BTreeSet<_> = answers.iter().map(|(id, _)| id.clone()).collect();
        assert_eq!(ids.len(), 1);
        assert_eq!(
            answers.iter().filter(|(_, duplicate)| !duplicate).count(),
            1
        );
        seen.extend(ids);
    }
    for id in &seen {
        let record = bridge.api.delivery_is(id, "delivered").await;
        assert_eq!(record["attempt"], 1);
        let events = bridge.api.events(id).await;
        let ends = events
            .iter()
            .filter(|event| event["type"] == "execution.completed");
        assert_eq!(ends.count(), 1);
    }
    bridge.stop().await;
}

/// Posts a body, or gets the path if there is none, with a token.
async fn asked(
    bridge: &Bridge,
    token: &str,
    path: &str,
    key: Option<&str>,
    body: Option<&Value>,
) -> (StatusCode, Value) {
    let method = if body.is_some() {
        Method::POST
    } else {
        Method::GET
    };
    let mut request = bridge.api.request(method, path).bearer_auth(token);
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    match body {
        Some(body) => answer(request.json_body(body)).await,
        None => answer(request).await,
    }
}

#[tokio::test]
async fn keys_and_task_ids_belong_to_their_caller() {
    let token = |name: &str, rest: &str| {
        let hash = hex(&sha256(name));
        format!("[[auth.token]]\nhash = \"{hash}\"\n{rest}\n")
    };
    let file = [
        token("a", "name = \"a\""),
        token("b", "name = \"b\""),
        token("blind", "name = \"blind\"\nscopes = [\"dispatch\"]"),
        token("old", "space = \"team\""),
        token("new", "space = \"team\""),
        token(
            "t1",
            "name = \"n\"\nidentity = { user_id = \"u\", tenant_id = \"t1\" }",
        ),
        token(
            "t2",
            "name = \"n\"\nidentity = { user_id = \"u\", tenant_id = \"t2\" }",
        ),
        token("unnamed", ""),
    ];
    let bridge = Bridge::configured(&file.concat(), &[("BRIDGE_TOKENS", "plain,other")]).await;
    let path = "/api/v2/dispatch";
    for key in [None, Some("key")] {
        let task = key.map_or("t", |_| "keyed");
        let mut ids = BTreeSet::new();
        for token in [
            "a", "b", "blind", "old", "t1", "t2", "unnamed", "plain", "other",
        ] {
            let body = quiet(task, token);
            let (status, first) = asked(&bridge, token, path, key, Some(&body)).await;
            assert_eq!(status, StatusCode::ACCEPTED, "{token}: {first}");
            assert_eq!(first["duplicate"], false, "{token}");
            let id = first["dispatchId"].as_str().unwrap().to_owned();
            assert!(ids.insert(id.clone()), "{token}");
            let (_, again) = asked(&bridge, token, path, key, Some(&body)).await;
            let expected = (&json!(id), &json!(true));
            assert_eq!(
                (&again["dispatchId"], &again["duplicate"]),
                expected,
                "{token}"
            );
            let other = with(body, &json!({"message": "another"}));
            let (status, refused) = asked(&bridge, token, path, key, Some(&other)).await;
            assert_eq!(status, StatusCode::CONFLICT, "{token}: {refused}");
            assert_eq!(refused["details"]["dispatchId"], id, "{token}");
        }
        // The next token of a rotation has the keys of the one before.
        let (_, known) = asked(&bridge, "new", path, key, Some(&quiet(task, "old"))).await;
        assert_eq!(known["duplicate"], true, "{known}");
    }
    let (_, own) = asked(&bridge, "a", "/api/v2/dispatch/t?wait=9", None, None).await;
    let (_, others) = asked(&bridge, "b", "/api/v2/dispatch/t?wait=9", None, None).await;
    assert_ne!(own["dispatchId"], others["dispatchId"]);
    // A caller without a dispatch of this name finds the one of another if it may read, and does not stop it otherwise.
    let (_, mine) = asked(&bridge, "a", path, None, Some(&quiet("mine", "slow:20000"))).await;
    let (_, found) = asked(&bridge, "b", "/api/v2/dispatch/mine", None, None).await;
    assert_eq!(found["dispatchId"], mine["dispatchId"]);
    let cancel = "/api/v2/dispatch/mine/cancel";
    let (status, _) = asked(&bridge, "blind", cancel, None, Some(&json!({}))).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (status, _) = asked(&bridge, "a", cancel, None, Some(&json!({}))).await;
    assert_eq!(status, StatusCode::OK);
    let ended = "/api/v2/dispatch/mine?wait=20";
    let (_, record) = asked(&bridge, "a", ended, None, None).await;
    assert_eq!(record["status"], "finished", "{record}");
    bridge.stop().await;
}
