//! A paused run: what it starts, what it writes, and what it answers.

use super::*;

/// Check 14. A fresh run can be paused, once, and resumed, once.
#[tokio::test]
async fn a_fresh_run_is_paused_and_resumed_once() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    for (name, status, wanted) in [
        ("pause", StatusCode::OK, "paused"),
        ("pause", StatusCode::CONFLICT, "INVALID_STATE"),
        ("resume", StatusCode::OK, "planning"),
        ("resume", StatusCode::CONFLICT, "INVALID_STATE"),
    ] {
        let (found, answer) = command(api, &run, name).await;
        assert_eq!(found, status, "{name}: {answer}");
        let member = if found.is_success() { "status" } else { "code" };
        assert_eq!(answer[member], wanted, "{name}: {answer}");
    }
    command(api, &run, "cancel").await;
    ended(api, &run).await;
    assert_eq!(command(api, &run, "pause").await.0, StatusCode::CONFLICT);
    bridge.stop().await;
}

/// Check 15. Nothing is scheduled or started between `run.paused` and `run.resumed`; what runs is finished and pushed.
/// Check 16. After that a paused run writes nothing.
#[tokio::test]
async fn a_paused_run_starts_nothing_and_becomes_silent() {
    let origin = Origin::new();
    let settings = format!("{}max_parallel = 1\n", origin.settings());
    let bridge = Bridge::configured(&settings, &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let tasks = [
        task("a", &[], "await .git/go\nwrite a.txt a"),
        task("b", &[], "write b.txt b"),
        task("c", &["a"], "write c.txt c"),
    ];
    say(api, &run, &plan(&tasks)).await;
    running(api, &run, 1).await;
    assert_eq!(command(api, &run, "pause").await.0, StatusCode::OK);
    release(&bridge, &run, "a", 1);
    until("the attempt to be pushed", || async {
        let (_, task) = api.get(&format!("/api/v1/runs/{run}/tasks/a")).await;
        (task["status"] == "MERGE_READY").then_some(())
    })
    .await;
    let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
    let last = record["lastEventId"].as_str().unwrap();
    let path = format!("/api/v1/runs/{run}/events?after={last}&wait=3");
    let (_, silence) = api.get(&path).await;
    assert_eq!(silence["events"], json!([]), "{silence}");
    assert_eq!(command(api, &run, "resume").await.1["status"], "executing");
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");

    let events = events(api, &run).await;
    let at = |kind: &str| {
        let mut kinds = events.iter().map(|event| &event["type"]);
        kinds.position(|found| found == kind).unwrap()
    };
    let while_paused = &events[at("run.paused")..at("run.resumed")];
    for kind in ["task.scheduled", "task.started", "refinery.started"] {
        assert_eq!(of(while_paused, kind).len(), 0, "{while_paused:?}");
    }
    assert_eq!(
        of(while_paused, "branch.pushed").len(),
        1,
        "{while_paused:?}"
    );
    assert_eq!(of(&events, "task.started").len(), 3);
    verified(api, &run).await;
    bridge.stop().await;
}
