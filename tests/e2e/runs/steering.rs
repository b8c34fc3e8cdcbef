//! Pauses: agents that run are asked to come to an end, or are cancelled.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::super::harness::api::Api;
use super::super::harness::{Bridge, until};
use super::{Origin, command, create, ended, events, of, plan, say, task, verified};

async fn status_of(api: &Api, run: &str, id: &str) -> Value {
    let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
    record["tasks"][id]["status"].clone()
}

#[tokio::test]
async fn an_agent_that_takes_messages_comes_to_an_end_at_a_pause() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let tasks = [
        task("a", &[], "write a.txt a\nhang"),
        task("b", &["a"], "write b.txt b"),
    ];
    say(api, &run, &plan(&tasks)).await;
    until("the attempt to run", || async {
        (status_of(api, &run, "a").await == "RUNNING").then_some(())
    })
    .await;
    let path = format!("/api/v1/runs/{run}/pause");
    let (status, refused) = api.post(&path, &json!({"mode": "now"})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(refused["details"][0]["field"], "mode", "{refused}");
    let (status, paused) = command(api, &run, "pause").await;
    assert_eq!(
        (status, &paused["status"]),
        (StatusCode::OK, &json!("paused"))
    );
    until("the attempt to end", || async {
        (status_of(api, &run, "a").await == "MERGE_READY").then_some(())
    })
    .await;
    assert_eq!(status_of(api, &run, "b").await, "PENDING");
    assert_eq!(command(api, &run, "resume").await.0, StatusCode::OK);
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let events = events(api, &run).await;
    assert_eq!(
        of(&events, "task.pause_ack"),
        [&json!({"taskId": "a", "effect": "wrapping_up"})]
    );
    let (_, a) = api.get(&format!("/api/v1/runs/{run}/tasks/a")).await;
    let walkthrough = a["walkthrough"].as_str().unwrap();
    assert!(
        walkthrough.contains("steered: The run is paused."),
        "{walkthrough}"
    );
    verified(api, &run).await;
    bridge.stop().await;
}

#[tokio::test]
async fn what_an_abort_has_cancelled_is_repeated_after_the_pause() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let orders = "sleep 60000\nwrite a.txt a";
    say(api, &run, &plan(&[task("a", &[], orders)])).await;
    until("the attempt to run", || async {
        (status_of(api, &run, "a").await == "RUNNING").then_some(())
    })
    .await;
    let path = format!("/api/v1/runs/{run}/pause");
    let (status, _) = api.post(&path, &json!({"mode": "abort"})).await;
    assert_eq!(status, StatusCode::OK);
    until("the attempt to be cancelled", || async {
        (status_of(api, &run, "a").await == "FAILED").then_some(())
    })
    .await;
    assert_eq!(command(api, &run, "resume").await.0, StatusCode::OK);
    until("the next attempt to run", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        let a = &record["tasks"]["a"];
        (a["attemptId"] == "2" && a["status"] == "RUNNING").then_some(())
    })
    .await;
    assert_eq!(command(api, &run, "cancel").await.0, StatusCode::OK);
    ended(api, &run).await;
    let events = events(api, &run).await;
    assert_eq!(
        of(&events, "task.pause_ack"),
        [&json!({"taskId": "a", "effect": "cancelled"})]
    );
    verified(api, &run).await;
    bridge.stop().await;
}
