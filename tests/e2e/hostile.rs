//! Adapters that misbehave: each execution ends with a clear result, and no other one is affected.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::harness::api::{owed, quiet, with};
use super::harness::{Bridge, CallbackSink};

const ADAPTERS: &str = r#"
[adapters.bad]
library = "echo"
[adapters.good]
library = "echo"
"#;

#[tokio::test]
async fn every_misdeed_has_its_result_and_the_others_work_on() {
    let sink = CallbackSink::start().await;
    let bridge = Bridge::configured(
        ADAPTERS,
        &[
            ("BRIDGE_ADAPTERS", "bad,good"),
            ("BRIDGE_DISPATCH_CANCEL_GRACE", "50ms"),
        ],
    )
    .await;
    let api = &bridge.api;
    let on = |provider: &str, body: Value| with(body, &json!({"provider": provider}));
    let misdeeds = [
        ("fail", "echo_failed"),
        ("fail:rate_limited", "rate_limited"),
        // An adapter cannot report a cancellation by a caller.
        ("fail:cancelled", "adapter_error"),
        ("panic", "adapter_panic"),
        ("slow:soon", "invalid_request"),
        ("large:40000000", "output_too_large"),
        ("hang", "timeout"),
    ];
    let callback = &sink.url("/bad");
    let runs = misdeeds.iter().map(|&(model, code)| async move {
        let body = on("bad", owed(model, model, callback));
        let timeout = if model == "hang" { 0.3 } else { 60.0 };
        let result = api.run(with(body, &json!({ "timeout": timeout }))).await;
        assert_eq!(result["errorCode"], code, "{model}: {}", result["error"]);
        assert_eq!(result["status"], "error");
        assert!(!result["error"].as_str().unwrap().is_empty(), "{model}");
    });
    let bystanders = (0..20).map(|number| async move {
        let body = on("good", quiet(&format!("good-{number}"), "slow:20"));
        assert_eq!(api.run(body).await["status"], "ok");
    });
    tokio::join!(join_all(runs), join_all(bystanders));
    for provider in ["bad", "good"] {
        let result = api
            .run(on(provider, quiet(&format!("{provider}-after"), "ok")))
            .await;
        assert_eq!(result["status"], "ok", "{provider} is as before");
    }
    sink.until(misdeeds.len()).await;
    for (model, _) in misdeeds {
        api.delivery_is(model, "delivered").await;
    }
    bridge.stop().await;
    assert_eq!(sink.received().len(), misdeeds.len(), "one callback each");
}

#[tokio::test]
async fn a_flood_of_events_is_recorded_and_gives_its_place_back() {
    let bridge = Bridge::with(&[("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", "1")]).await;
    let api = &bridge.api;
    let id = api.dispatch(quiet("flood", "stream:5000")).await;
    let next = api.dispatch(quiet("next", "ok")).await;
    let record = api.finished(&id).await;
    assert_eq!(
        record["result"]["status"], "ok",
        "{}",
        record["result"]["error"]
    );
    assert_eq!(record["result"]["events"]["count"], 5_004);
    assert_eq!(api.finished(&next).await["result"]["status"], "ok");
    bridge.stop().await;
}

#[tokio::test]
async fn a_flood_that_is_cancelled_ends() {
    let bridge = Bridge::with(&[
        ("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", "1"),
        ("BRIDGE_DISPATCH_CANCEL_GRACE", "2s"),
    ])
    .await;
    let api = &bridge.api;
    let id = api.dispatch(quiet("flood", "stream:100000000")).await;
    api.running(&id).await;
    assert!(api.cancel(&id).await);
    let record = api.finished(&id).await;
    assert_eq!(record["errorCode"], "cancelled");
    assert_eq!(api.run(quiet("next", "ok")).await["status"], "ok");
    bridge.stop().await;
}
