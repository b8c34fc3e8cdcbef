//! Runs from the interview to their end: merged, failed, paused, cancelled.

use super::*;

/// Check 12: a task that no refinery covers is merged by `refinery-final`. Check 40: without a model and a network.
#[tokio::test]
async fn a_run_goes_from_the_interview_to_a_proved_merge() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    assert_eq!(say(api, &run, "hello").await, StatusCode::ACCEPTED);
    let tasks = [
        task("a", &[], "write a.txt one\nsay done with a"),
        task(
            "b",
            &["a"],
            "append a.txt two\nfail-once echo_failed\nwrite b.txt b",
        ),
        task("c", &[], "write docs/c.txt c\nsleep 20"),
    ];
    assert_eq!(say(api, &run, &plan(&tasks)).await, StatusCode::ACCEPTED);
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    for (name, expected) in [
        ("totalTasks", 3),
        ("completedTasks", 3),
        ("mergedTasks", 3),
        ("failedTasks", 0),
        ("runningTasks", 0),
        ("totalRefineries", 1),
        ("mergedRefineries", 1),
    ] {
        assert_eq!(record[name], expected, "{name}: {record}");
    }
    let target = format!("forge/integration/{run}");
    assert_eq!(record["target"], *target);
    assert_eq!(origin.file(&target, "a.txt"), "one\ntwo");
    assert_eq!(origin.file(&target, "b.txt"), "b");
    assert_eq!(origin.file(&target, "docs/c.txt"), "c");
    assert_eq!(
        origin.git(&["--git-dir=origin.git", "show", "main:README.md"]),
        "a\nb\nc"
    );

    let events = events(api, &run).await;
    assert_eq!(events[0]["type"], "run.started");
    assert_eq!(events[0]["data"], json!({"repoUrl": origin.url()}));
    assert_eq!(events.last().unwrap()["type"], "run.completed");
    assert_eq!(
        of(&events, "plan.finalized"),
        [&json!({"totalTasks": 3, "totalRefineries": 1, "specCount": 1})]
    );
    let finished = of(&events, "run.completed")[0];
    let counts = [
        "totalCompleted",
        "totalFailed",
        "refineriesCompleted",
        "refineriesFailed",
    ];
    assert_eq!(
        counts.map(|name| &finished[name]),
        [3, 0, 1, 0],
        "{finished}"
    );
    let done = of(&events, "task.completed").into_iter();
    let done = done.filter(|data| data["taskId"] != "refinery-final");
    assert_eq!(finished["totalCompleted"], done.count(), "{finished}");
    let said = of(&events, "captain.message");
    assert_eq!(
        said[0],
        &json!({"content": "What should I build?", "role": "assistant"})
    );
    let merged = of(&events, "refinery.merged")[0];
    assert_eq!(merged["taskId"], "refinery-final");
    assert_eq!(merged["proof"].as_array().unwrap().len(), 3, "{merged}");
    let tip = origin.git(&["--git-dir=origin.git", "rev-parse", &target]);
    assert_eq!(merged["resultRef"], *tip);
    // The second attempt of b works in a checkout of its own.
    let branches: Vec<_> = of(&events, "branch.pushed")
        .iter()
        .map(|data| data["branch"].clone())
        .collect();
    let second = json!(format!("forge/{run}/b/2"));
    assert!(branches.contains(&second), "{branches:?}");
    assert_eq!(kinds(&events, "task.retried").len(), 1);
    verified(api, &run).await;

    let (_, task) = api.get(&format!("/api/v1/runs/{run}/tasks/a")).await;
    assert_eq!(
        (&task["status"], &task["type"]),
        (&json!("MERGED"), &json!(2)),
        "{task}"
    );
    assert!(
        task["walkthrough"]
            .as_str()
            .unwrap()
            .contains("done with a"),
        "{task}"
    );
    for path in task["artifacts"].as_array().unwrap() {
        let path = format!(
            "/api/v1/runs/{run}/artifacts/.forge/{}",
            path.as_str().unwrap()
        );
        let artifact = api.request(Method::GET, &path).send().await.unwrap();
        assert_eq!(artifact.status(), StatusCode::OK, "{path}");
        assert_eq!(
            artifact.headers()["content-type"],
            "text/markdown; charset=utf-8"
        );
    }
    bridge.stop().await;
}

/// Check 19.
#[tokio::test]
async fn a_task_whose_attempts_all_fail_ends_the_run_and_names_what_it_blocks() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let tasks = [
        task("a", &[], "fail echo_failed"),
        task("b", &["a"], "write b.txt b"),
        task("c", &[], "write c.txt c"),
    ];
    say(api, &run, &plan(&tasks)).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "failed", "{record}");
    let error = record["error"].as_str().unwrap();
    assert_eq!(
        error,
        "a failed: echo_failed: echo was asked to fail; not started because of that: b, refinery-final"
    );
    let events = events(api, &run).await;
    let retries: Vec<_> = of(&events, "task.failed")
        .iter()
        .map(|data| data["canRetry"].clone())
        .collect();
    assert_eq!(
        retries,
        [json!(true), json!(true), json!(true), json!(false)]
    );
    let completed = of(&events, "run.completed")[0];
    assert_eq!(
        (&completed["status"], &completed["totalFailed"]),
        (&json!("failed"), &json!(1))
    );
    assert!(kinds(&events, "refinery.").is_empty());
    verified(api, &run).await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_refused_plan_is_told_and_nothing_starts_while_a_run_is_paused() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url(), "planReview": true})).await;
    let bad = [
        task("a", &["b"], ""),
        task("b", &["a"], ""),
        task("c", &["x"], ""),
    ];
    say(api, &run, &plan(&bad)).await;
    let told = until("the Captain to tell the faults", || async {
        let (_, page) = api
            .get(&format!("/api/v1/runs/{run}/events?limit=1000"))
            .await;
        let events = page["events"].as_array().unwrap().clone();
        of(&events, "captain.message")
            .first()
            .map(|data| data["content"].as_str().unwrap().to_owned())
    })
    .await;
    assert!(told.contains("\"c\": depends on \"x\""), "{told}");
    assert!(told.contains("a cycle"), "{told}");
    let (status, paused) = command(api, &run, "pause").await;
    assert_eq!(
        (status, &paused["status"]),
        (StatusCode::OK, &json!("paused"))
    );
    let (status, again) = command(api, &run, "pause").await;
    assert_eq!(
        (status, &again["code"]),
        (StatusCode::CONFLICT, &json!("INVALID_STATE"))
    );
    let (status, resumed) = command(api, &run, "resume").await;
    assert_eq!(
        (status, &resumed["status"]),
        (StatusCode::OK, &json!("planning"))
    );
    assert_eq!(command(api, &run, "resume").await.0, StatusCode::CONFLICT);
    say(api, &run, &plan(&[task("a", &[], "write a.txt a")])).await;
    until("the plan to wait", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        (record["status"] == "plan_review").then_some(())
    })
    .await;
    assert_eq!(say(api, &run, "more").await, StatusCode::CONFLICT);
    assert_eq!(command(api, &run, "pause").await.0, StatusCode::OK);
    assert_eq!(
        command(api, &run, "plan/approve").await.0,
        StatusCode::CONFLICT
    );
    assert_eq!(
        command(api, &run, "resume").await.1["status"],
        "plan_review"
    );
    assert_eq!(
        command(api, &run, "plan/approve").await.1["status"],
        "executing"
    );
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    verified(api, &run).await;
    for (method, path, code) in [
        (Method::GET, format!("/api/v1/runs/{run}x"), "RUN_NOT_FOUND"),
        (
            Method::GET,
            format!("/api/v1/runs/{run}/tasks/zz"),
            "TASK_NOT_FOUND",
        ),
        (
            Method::GET,
            format!("/api/v1/runs/{run}/artifacts/tasks%2F..%2Fdag.json"),
            "ARTIFACT_NOT_FOUND",
        ),
        (
            Method::GET,
            format!("/api/v1/runs/{run}/stream?after=0-1"),
            "INVALID_REQUEST",
        ),
        (
            Method::POST,
            format!("/api/v1/runs/{run}/cancel"),
            "INVALID_STATE",
        ),
    ] {
        let answer = api.request(method, &path).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["code"], code, "{path}: {answer}");
    }
    bridge.stop().await;
}

#[tokio::test]
async fn a_cancelled_run_ends_what_runs() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    say(
        api,
        &run,
        &plan(&[task("a", &[], "hang"), task("b", &["a"], "write b.txt b")]),
    )
    .await;
    until("the attempt to run", || async {
        let (_, tasks) = api.get(&format!("/api/v1/runs/{run}/tasks")).await;
        (tasks[0]["status"] == "RUNNING").then_some(())
    })
    .await;
    assert_eq!(command(api, &run, "cancel").await.1["status"], "cancelled");
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "cancelled", "{record}");
    assert_eq!(record["tasks"]["a"]["status"], "FAILED", "{record}");
    verified(api, &run).await;
    bridge.stop().await;
}
