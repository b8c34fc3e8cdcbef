//! Routing of dispatches between several adapters of one library.

use reqwest::Method;
use serde_json::{Value, json};

use super::harness::Bridge;
use super::harness::api::{JsonBody, quiet, with};

/// Adapters: a cheap one without sessions, an expensive one with all capabilities, and one that is always offline.
const ADAPTERS: &str = r#"
[adapters.cheap]
library = "echo"
capabilities = ["streaming"]
output_strategies = ["stream"]
options = ["temperature", "seed"]
cost_tier = "low"
latency_profile = "variable"

[adapters.dear]
library = "echo"
cost_tier = "high"
latency_profile = "fast"
health = "degraded"

[adapters.away]
library = "echo"
capabilities = ["streaming", "session_resume", "structured_output", "cost_tracking", "vision"]
health = "offline"
"#;
const ALL: (&str, &str) = ("BRIDGE_ADAPTERS", "cheap,dear,away");

async fn routed(bridge: &Bridge, task: &str, extra: &Value) -> (String, Value) {
    let body = with(quiet(task, "ok"), extra);
    let (status, answer) = bridge.api.post("/api/v2/dispatch", &body).await;
    assert_eq!(status, 202, "{extra}: {answer}");
    let id = answer["dispatchId"].as_str().unwrap();
    let record = bridge.api.finished(id).await;
    assert_eq!(record["result"]["provider"], answer["provider"]);
    assert_eq!(
        record["routing"].as_array().unwrap().last().unwrap()["kept"][0],
        answer["provider"]
    );
    (id.to_owned(), answer)
}

#[tokio::test]
async fn each_layer_decides_in_its_turn() {
    let bridge = Bridge::configured(ADAPTERS, &[ALL]).await;
    for (number, (extra, provider, warnings)) in [
        (json!({}), "cheap", 0),
        (json!({"provider": "dear"}), "dear", 0),
        (json!({"requires": ["file_io"]}), "dear", 0),
        // An adapter that can resume the session is preferred to a healthier one.
        (json!({"sessionId": "s"}), "dear", 0),
        (json!({"provider": "cheap", "sessionId": "s"}), "cheap", 1),
        (
            json!({"options": {"temperature": 0.5, "seed": 1}}),
            "cheap",
            0,
        ),
        (
            json!({"options": {"temperature": 0.5, "topP": 1, "stop": ["a"], "mirostat": 2}}),
            "cheap",
            3,
        ),
        (json!({"budget": {"maxTokens": 1000}}), "dear", 0),
        (json!({"recovery": "resume"}), "dear", 0),
        (
            json!({"outputStrategy": "structured", "outputSchema": {}}),
            "dear",
            0,
        ),
        (json!({"preferences": {"costTier": "high"}}), "dear", 0),
        (json!({"preferences": {"costTier": "low"}}), "cheap", 0),
        (
            json!({"preferences": {"latencyProfile": "fast"}}),
            "dear",
            0,
        ),
        (
            json!({"preferences": {"providers": ["away", "dear"]}}),
            "dear",
            0,
        ),
        (
            json!({"requires": ["session_resume"], "preferences": {"costTier": "low"}}),
            "dear",
            0,
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let (id, answer) = routed(&bridge, &format!("t{number}"), &extra).await;
        assert_eq!(answer["provider"], provider, "{extra}");
        assert_eq!(
            answer["warnings"].as_array().unwrap().len(),
            warnings,
            "{extra}: {answer}"
        );
        let record = bridge.api.record(&id).await;
        assert_eq!(record["pinned"], extra.get("provider").is_some());
        if extra["sessionId"].is_string() && warnings > 0 {
            assert_eq!(record.get("sessionId"), None, "it is not used");
            assert_eq!(record["result"].get("sessionId"), None);
        }
    }
    let (id, _) = routed(&bridge, "reasons", &json!({"requires": ["file_io"]})).await;
    let record = bridge.api.record(&id).await;
    let layers = record["routing"].as_array().unwrap();
    let capabilities = layers
        .iter()
        .find(|layer| layer["name"] == "capabilities")
        .unwrap();
    assert_eq!(capabilities["kept"], json!(["dear"]));
    let dropped = capabilities["dropped"].as_array().unwrap();
    assert_eq!(dropped.len(), 2);
    let says_why = |drop: &Value| drop["reason"].as_str().unwrap().contains("file_io");
    assert!(dropped.iter().all(says_why), "{dropped:?}");
    bridge.stop().await;
}

#[tokio::test]
async fn no_candidate_is_a_clear_answer() {
    let bridge = Bridge::configured(ADAPTERS, &[ALL]).await;
    let api = &bridge.api;
    for (extra, status, code, word) in [
        (
            json!({"provider": "absent"}),
            422,
            "UNKNOWN_PROVIDER",
            "absent",
        ),
        (
            json!({"requires": ["telepathy"]}),
            422,
            "NO_CAPABLE_ADAPTER",
            "telepathy",
        ),
        (
            json!({"provider": "cheap", "requires": ["vision"]}),
            422,
            "NO_CAPABLE_ADAPTER",
            "vision",
        ),
        (
            json!({"provider": "cheap", "budget": {"maxTokens": 1}}),
            422,
            "NO_CAPABLE_ADAPTER",
            "cost_tracking",
        ),
        (
            json!({"provider": "cheap", "recovery": "resume"}),
            422,
            "NO_CAPABLE_ADAPTER",
            "session_resume",
        ),
        (
            json!({"provider": "cheap", "outputStrategy": "structured", "outputSchema": {}}),
            422,
            "NO_CAPABLE_ADAPTER",
            "structured",
        ),
    ] {
        let refused = api
            .refused(&with(quiet("t", "ok"), &extra), status, code)
            .await;
        assert!(
            refused["error"].as_str().unwrap().contains(word),
            "{extra}: {refused}"
        );
    }
    bridge.stop().await;

    // The only candidates have been offline for longer than the grace period.
    let impatient = ("BRIDGE_DISPATCH_OFFLINE_GRACE", "1ms");
    let bridge = Bridge::configured(ADAPTERS, &[ALL, impatient]).await;
    for extra in [json!({"provider": "away"}), json!({"requires": ["vision"]})] {
        let body = with(quiet("t", "ok"), &extra);
        let request = bridge
            .api
            .request(Method::POST, "/api/v2/dispatch")
            .json_body(&body);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 503, "{extra}");
        assert!(response.headers().contains_key("retry-after"));
        bridge.api.refused(&body, 503, "ADAPTER_UNAVAILABLE").await;
    }
    // A duplicate is answered whatever the health.
    bridge.api.run(quiet("known", "ok")).await;
    bridge.stop().await;
}

#[tokio::test]
async fn the_operators_default_goes_before_the_layers_where_it_can() {
    let default = ("GATEWAY_PROVIDER", "dear");
    let bridge = Bridge::configured(ADAPTERS, &[ALL, default]).await;
    for (task, extra, provider) in [
        ("plain", json!({}), "dear"),
        ("wish", json!({"preferences": {"costTier": "low"}}), "dear"),
        ("pinned", json!({"provider": "cheap"}), "cheap"),
    ] {
        let (_, answer) = routed(&bridge, task, &extra).await;
        assert_eq!(answer["provider"], provider, "{task}");
    }
    bridge.stop().await;
}

#[tokio::test]
async fn what_waits_for_an_adapter_that_is_gone_goes_elsewhere_unless_it_was_pinned() {
    let narrow = ("BRIDGE_ADAPTERS_DEAR_MAX_CONCURRENT", "1");
    let bridge = Bridge::configured(ADAPTERS, &[ALL, narrow, ("BRIDGE_DRAIN_GRACE", "50ms")]).await;
    let api = &bridge.api;
    let blocker = with(quiet("blocker", "hang"), &json!({"provider": "dear"}));
    let blocker = api.dispatch(blocker).await;
    api.running(&blocker).await;
    let dear = json!({"preferences": {"costTier": "high"}});
    let free = api.dispatch(with(quiet("free", "ok"), &dear)).await;
    let pinned = api
        .dispatch(with(quiet("pinned", "ok"), &json!({"provider": "dear"})))
        .await;
    let needy = with(quiet("needy", "ok"), &dear);
    let needy = api
        .dispatch(with(needy, &json!({"requires": ["file_io"]})))
        .await;
    assert_eq!(api.record(&free).await["provider"], "dear");

    let bridge = bridge
        .restarted(ADAPTERS, &[("BRIDGE_ADAPTERS", "cheap,away")])
        .await;
    let api = &bridge.api;
    let record = api.finished(&free).await;
    assert_eq!(record["provider"], "cheap", "{record}");
    assert_eq!(record["result"]["provider"], "cheap");
    assert_eq!(record["result"]["status"], "ok");
    assert_eq!(api.record(&blocker).await["errorCode"], "interrupted");
    for id in [&pinned, &needy] {
        let record = api.record(id).await;
        assert_eq!(
            (&record["status"], &record["provider"]),
            (&json!("queued"), &json!("dear"))
        );
    }

    let bridge = bridge.restarted(ADAPTERS, &[ALL]).await;
    for id in [&pinned, &needy] {
        let record = bridge.api.finished(id).await;
        assert_eq!(record["result"]["provider"], "dear", "{record}");
    }
    bridge.stop().await;
}
