//! The main path in full: dispatch, events, signed callback, record.

use reqwest::Method;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use super::harness::api::{JsonBody, owed, with};
use super::harness::{Bridge, CallbackSink};
use forge_test_support::callback::Received;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

#[tokio::test]
async fn the_demo() {
    let sink = CallbackSink::start().await;
    let bridge = Bridge::start().await;
    let api = &bridge.api;

    let body = with(
        owed("review-auth", "stream:3", &sink.url("/done?step=1")),
        &json!({"runId": "run-7", "stepId": "step-1", "gatewayId": "gw", "metadata": {"k": [1]}}),
    );
    let request = api
        .request(Method::POST, "/api/v2/dispatch")
        .json_body(&body);
    let request = request.header("traceparent", format!("00-{TRACE}-b7ad6b7169203331-01"));
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 202);
    let location = response.headers()["location"].to_str().unwrap().to_owned();
    let answer: Value = serde_json::from_slice(&response.bytes().await.unwrap()).unwrap();
    let id = answer["dispatchId"].as_str().unwrap();
    assert_eq!(location, format!("/api/v2/dispatch/{id}"));
    let expected = json!({
        "taskId": "review-auth", "dispatchId": id, "status": "accepted", "provider": "echo",
        "duplicate": false, "warnings": [],
        "links": {
            "self": location, "events": format!("{location}/events"),
            "cancel": format!("{location}/cancel"),
        },
    });
    assert_eq!(answer, expected);

    let record = api.delivery_is(id, "delivered").await;
    let received = sink.received();
    assert_eq!(received.len(), 1);
    let result = verified(&bridge, &received[0]);
    assert_eq!(received[0].path, "/done?step=1");
    assert_eq!(
        received[0].headers["webhook-id"],
        record["deliveries"][0]["id"]
    );
    assert!(received[0].headers["traceparent"].starts_with(&format!("00-{TRACE}-")));
    for (member, expected) in [
        ("taskId", json!("review-auth")),
        ("agentId", json!("agent")),
        ("dispatchId", json!(id)),
        ("provider", json!("echo")),
        ("status", json!("ok")),
        ("output", json!("hello 1\nhello 2\nhello 3\n")),
        ("attempt", json!(1)),
        ("model", json!("stream:3")),
        ("traceId", json!(TRACE)),
        ("runId", json!("run-7")),
        ("stepId", json!("step-1")),
        ("gatewayId", json!("gw")),
        ("metadata", json!({"k": [1]})),
    ] {
        assert_eq!(result[member], expected, "{member}: {result}");
    }
    assert_eq!(result.get("errorCode"), None);

    let events = api.events(id).await;
    let kinds: Vec<_> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        kinds,
        [
            "execution.accepted",
            "execution.queued",
            "execution.started",
            "assistant.text",
            "assistant.text",
            "assistant.text",
            "execution.completed",
            "callback.attempted",
            "callback.delivered",
        ]
    );
    for (event, seq) in events.iter().zip(1..) {
        assert_eq!(event["seq"], seq, "{event}");
        assert_eq!(event["traceId"], TRACE, "{event}");
        assert_eq!(event["runId"], "run-7", "{event}");
    }
    assert_eq!(
        result["events"],
        json!({"count": 7, "lastCursor": events[6]["id"]})
    );

    assert_eq!(record["status"], "finished");
    assert_eq!(record["outcome"], "ok");
    assert_eq!(record["result"], result, "what is shown is what was sent");
    assert_eq!(record["links"]["self"], location);
    assert_eq!(record["deliveries"].as_array().unwrap().len(), 1);
    assert_eq!(record["deliveries"][0]["attemptCount"], 1);
    let layers = record["routing"].as_array().unwrap();
    assert!(
        layers.iter().all(|layer| layer["kept"] == json!(["echo"])),
        "{layers:?}"
    );
    bridge.stop().await;
}

/// Verifies a callback with the reference implementation of its signature; returns the result.
fn verified(bridge: &Bridge, request: &Received) -> Value {
    let described = bridge.app.as_ref().unwrap().signer.describe();
    let oracle = Webhook::new(described[0].secrets[0].expose_secret()).unwrap();
    let mut headers = HeaderMap::new();
    for (name, value) in &request.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.insert(name, HeaderValue::from_str(value).unwrap());
    }
    oracle.verify(&request.body, &headers).unwrap();
    let mut forged = request.body.clone();
    forged[0] ^= 1;
    assert!(oracle.verify(&forged, &headers).is_err());
    serde_json::from_slice(&request.body).unwrap()
}
