//! Commands that wait for an approval.

use super::*;
use crate::harness::api::with;
use crate::harness::process::Home;

const SETTINGS: &str = "enforce = [\"approval\"]\n";

fn service(sink: &CallbackSink) -> Value {
    let mut service = probe(sink);
    service["entries"][0]["needsApproval"] = json!(true);
    service
}

fn dispatch(task: &str, callback: Option<&str>) -> Value {
    json!({
        "taskId": task, "agentId": "agent", "provider": "external", "model": "probe.run",
        "message": "{\"n\":1}", "callbackUrl": callback,
    })
}

async fn approvals(setup: &Setup, status: &str) -> Vec<Value> {
    let path = format!("/api/v2/approvals?status={status}");
    let (_, listed) = setup.bridge.api.get(&path).await;
    listed["approvals"].as_array().unwrap().clone()
}

async fn decide(setup: &Setup, id: &str, verb: &str, reason: &str) -> (StatusCode, Value) {
    let path = format!("/api/v2/approvals/{id}/{verb}");
    let body = json!({ "reason": reason });
    setup.bridge.api.post(&path, &body).await
}

async fn kinds(setup: &Setup, id: &str) -> Vec<String> {
    let events = setup.bridge.api.events(id).await;
    let kinds = events.iter().map(|event| event["type"].as_str().unwrap());
    kinds.map(str::to_owned).collect()
}

#[tokio::test]
async fn a_held_command_is_called_only_after_its_approval() {
    let sink = sink_with(json!("paid")).await;
    let setup = Setup::new(&[service(&sink)], SETTINGS).await;
    let (status, answer) = setup.post(COMMAND, &json!({"args": {"n": 1}}), &[]).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
    assert_eq!(answer["diagnostics"][0]["code"], "FORGE_APPROVAL_REQUIRED");
    let id = answer["dispatchId"].as_str().unwrap();
    let waiting = approvals(&setup, "waiting").await;
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0]["entry"], "command:probe.run");
    assert_eq!(waiting[0]["args"], "{\"n\":1}");
    assert_eq!(waiting[0]["dispatch"]["approval"], "waiting");
    let (_, health) = setup.bridge.api.get("/api/health").await;
    assert_eq!(health["status"], "healthy", "{health}");
    assert_eq!(health["adapters"]["external"]["queued"], 1, "{health}");
    assert!(sink.received().is_empty());

    let (status, answer) = decide(&setup, id, "approve", "checked").await;
    assert_eq!(
        (status, &answer["status"]),
        (StatusCode::OK, &json!("approved"))
    );
    let record = setup.bridge.api.finished(id).await;
    assert_eq!(record["result"]["structuredOutput"], "paid", "{record}");
    let approved = approvals(&setup, "approved").await;
    assert_eq!(approved[0]["decision"]["reason"], "checked");
    assert_eq!(approved[0]["decision"]["by"], "anonymous");
    let kinds = kinds(&setup, id).await;
    let start = [
        "execution.accepted",
        "execution.queued",
        "approval.requested",
        "approval.approved",
        "execution.started",
    ];
    assert_eq!(kinds[..5], start, "{kinds:?}");
    for verb in ["approve", "reject"] {
        let (status, answer) = decide(&setup, id, verb, "again").await;
        assert_eq!(
            (status, &answer["code"]),
            (StatusCode::CONFLICT, &json!("INVALID_STATE"))
        );
    }
    let (status, _) = setup
        .bridge
        .api
        .post("/api/v2/approvals/dsp_none/approve", &json!({}))
        .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_rejection_is_the_result_and_is_delivered() {
    let sink = sink_with(json!("paid")).await;
    let setup = Setup::new(&[service(&sink)], SETTINGS).await;
    let callback = CallbackSink::start().await;
    let body = dispatch("t", Some(&callback.url("/done")));
    let id = setup.bridge.api.dispatch(body).await;
    decide(&setup, &id, "reject", "too much").await;
    let received = callback.until(1).await.remove(0);
    let result: Value = serde_json::from_slice(&received.body).unwrap();
    assert_eq!(result["errorCode"], "blocked_by_policy", "{result}");
    assert!(
        result["error"].as_str().unwrap().contains("too much"),
        "{result}"
    );
    assert_eq!(approvals(&setup, "rejected").await.len(), 1);
    let kinds = kinds(&setup, &id).await;
    let at = kinds
        .iter()
        .position(|kind| kind == "approval.rejected")
        .unwrap();
    assert_eq!(kinds[at + 1], "execution.failed", "{kinds:?}");
    assert!(sink.received().is_empty());
    setup.bridge.api.delivery_is(&id, "delivered").await;
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_held_command_is_cancelled_and_runs_out_of_time_as_all_that_is_queued() {
    let sink = sink_with(json!("paid")).await;
    let setup = Setup::new(&[service(&sink)], SETTINGS).await;
    let cancelled = setup.bridge.api.dispatch(dispatch("c", None)).await;
    assert!(setup.bridge.api.cancel(&cancelled).await);
    let record = setup.bridge.api.finished(&cancelled).await;
    assert_eq!(record["errorCode"], "cancelled");
    let short = with(dispatch("s", None), &json!({"queueTimeoutSeconds": 0.2}));
    let short = setup.bridge.api.run(short).await;
    assert_eq!(short["errorCode"], "queue_timeout", "{short}");
    assert!(approvals(&setup, "waiting").await.is_empty());
    let (status, _) = decide(&setup, &cancelled, "approve", "late").await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(sink.received().is_empty());
    setup.bridge.stop().await;
}

#[tokio::test]
async fn no_approval_is_forgotten_or_granted_twice_by_kill_9() {
    let sink = sink_with(json!("paid")).await;
    let home = Home::new(&[]);
    register(home.dir.path(), &[service(&sink)]);
    let file = format!("[external]\nroot = {:?}\n{SETTINGS}", home.dir.path());
    std::fs::write(home.dir.path().join("forge-bridge.toml"), file).unwrap();
    let bridge = home.start();
    let id = bridge.api.dispatch(dispatch("t", None)).await;
    bridge.kill();
    let bridge = home.start();
    let (_, listed) = bridge.api.get("/api/v2/approvals").await;
    assert_eq!(
        listed["approvals"][0]["dispatch"]["dispatchId"], id,
        "{listed}"
    );
    let path = format!("/api/v2/approvals/{id}/approve");
    let (status, _) = bridge.api.post(&path, &json!({})).await;
    assert_eq!(status, StatusCode::OK);
    bridge.kill();
    let bridge = home.start();
    let record = bridge.api.finished(&id).await;
    // It was running when the bridge was killed, or it is called now.
    let code = &record["result"]["errorCode"];
    assert!(code.is_null() || code == "interrupted", "{record}");
    let (status, _) = bridge.api.post(&path, &json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(sink.received().len() <= 1);
    bridge.kill();
}
