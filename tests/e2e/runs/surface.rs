//! The routes of runs as clients see them: errors, order of messages, foreign pages, caching.

use super::super::harness::api::{JsonBody as _, answer};
use super::*;

/// Check 35: each refusal has the envelope, also of unknown routes, and bodies of wrong types are refused as a whole.
#[tokio::test]
async fn each_refusal_has_the_envelope() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let repo = origin.url();
    let of_runs = "/api/v1/runs";
    let of_captain = "/api/v1/captain/message";
    let large = "x".repeat(256 * 1024 + 1);
    let posts = [
        (of_runs, json!(null), "body"),
        (of_runs, json!([]), "body"),
        (of_runs, json!("x"), "body"),
        (of_runs, json!(1), "body"),
        (of_runs, json!({}), "repoUrl"),
        (of_runs, json!({"repoUrl": repo, "ref": {}}), "ref"),
        (of_runs, json!({"repoUrl": repo, "ref": "--x"}), "ref"),
        (of_runs, json!({"repoUrl": repo, "ref": "a..b"}), "ref"),
        (of_runs, json!({"repoUrl": repo, "model": []}), "model"),
        (of_runs, json!({"repoUrl": repo, "provider": 1}), "provider"),
        (
            of_runs,
            json!({"repoUrl": repo, "planReview": "yes"}),
            "planReview",
        ),
        (of_runs, json!({"repoUrl": repo, "budget": 1}), "budget"),
        (of_captain, json!(null), "body"),
        (of_captain, json!([]), "body"),
        (of_captain, json!("x"), "body"),
        (of_captain, json!({"runId": run}), "message"),
        (of_captain, json!({"runId": run, "message": ""}), "message"),
        (of_captain, json!({"runId": run, "message": 1}), "message"),
        (
            of_captain,
            json!({"runId": run, "message": ["a"]}),
            "message",
        ),
        (
            of_captain,
            json!({"runId": run, "message": large}),
            "message",
        ),
        (of_captain, json!({"message": "a"}), "runId"),
        (of_captain, json!({"runId": {}, "message": "a"}), "runId"),
    ];
    for (path, body, field) in posts {
        let (status, answer) = api.post(path, &body).await;
        let body = body.to_string().chars().take(100).collect::<String>();
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path} {body}: {answer}");
        assert_eq!(answer["code"], "INVALID_REQUEST", "{path} {body}: {answer}");
        if field != "body" {
            assert_eq!(
                answer["details"][0]["field"], field,
                "{path} {body}: {answer}"
            );
        }
    }
    // The longest message that is taken.
    let message = json!({"runId": run, "message": &large[1..]});
    assert_eq!(api.post(of_captain, &message).await.0, StatusCode::ACCEPTED);

    let other = "run_00000000000000000000000000000000";
    let post = |path: &str| api.request(Method::POST, path);
    let get = |path: &str| api.request(Method::GET, path);
    let one = format!("{of_runs}/{run}");
    let huge = "x".repeat(11 << 20);
    let unknown = json!({"runId": other, "message": "a"});
    for (request, status, code) in [
        (
            post(of_runs).json_body(&json!({"repoUrl": huge})),
            413,
            "PAYLOAD_TOO_LARGE",
        ),
        (
            post(of_runs)
                .header("content-type", "application/json")
                .body("{"),
            400,
            "INVALID_REQUEST",
        ),
        (post(of_captain).json_body(&unknown), 404, "RUN_NOT_FOUND"),
        (get(&format!("{of_runs}/{other}")), 404, "RUN_NOT_FOUND"),
        (get(&format!("{of_runs}/x/stream")), 404, "RUN_NOT_FOUND"),
        (get(&format!("{of_runs}/x/events")), 404, "RUN_NOT_FOUND"),
        (get(&format!("{of_runs}/x/verify")), 404, "RUN_NOT_FOUND"),
        (get(&format!("{of_runs}/x/tasks")), 404, "RUN_NOT_FOUND"),
        (
            get(&format!("{of_runs}/x/artifacts/dag.json")),
            404,
            "RUN_NOT_FOUND",
        ),
        (post(&format!("{of_runs}/x/pause")), 404, "RUN_NOT_FOUND"),
        (get(&format!("{one}/tasks/a")), 404, "TASK_NOT_FOUND"),
        (post(&format!("{one}/tasks/a/retry")), 404, "TASK_NOT_FOUND"),
        (
            get(&format!("{one}/artifacts/dag.json")),
            404,
            "ARTIFACT_NOT_FOUND",
        ),
        (post(&format!("{one}/resume")), 409, "INVALID_STATE"),
        (post(&format!("{one}/plan/approve")), 409, "INVALID_STATE"),
        (get(&format!("{one}?a=b")), 400, "INVALID_REQUEST"),
        (get(&format!("{of_runs}?limit=0")), 400, "INVALID_REQUEST"),
        (
            get(&format!("{of_runs}?status=busy")),
            400,
            "INVALID_REQUEST",
        ),
        (get("/api/v1/nothing"), 404, "NOT_FOUND"),
        (api.request(Method::PUT, &one), 405, "METHOD_NOT_ALLOWED"),
    ] {
        let (found, body) = answer(request).await;
        assert_eq!(
            (found.as_u16(), &body["code"]),
            (status, &json!(code)),
            "{body}"
        );
        assert!(body["error"].is_string(), "{body}");
    }
    command(api, &run, "cancel").await;
    ended(api, &run).await;
    bridge.stop().await;
}

/// Check 34: two quick messages are answered in their order; outside the interview a message is refused.
#[tokio::test]
async fn quick_messages_are_answered_in_their_order() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let bad = plan(&[task("a", &["absent"], "")]);
    for message in [
        bad.as_str(),
        "hello",
        &plan(&[task("a", &[], "await .git/go")]),
    ] {
        assert_eq!(say(api, &run, message).await, StatusCode::ACCEPTED);
    }
    let said = answers(api, &run, 2).await;
    assert!(said[0].contains("depends on \"absent\""), "{said:?}");
    assert_eq!(said[1], "What should I build?");
    running(api, &run, 1).await;
    assert_eq!(say(api, &run, "more").await, StatusCode::CONFLICT);
    release(&bridge, &run, "a", 1);
    assert_eq!(ended(api, &run).await["status"], "completed");
    assert_eq!(say(api, &run, "more").await, StatusCode::CONFLICT);
    bridge.stop().await;
}

/// Check 36: a page of another origin, and a name that was bound to this address, change nothing.
#[tokio::test]
async fn foreign_pages_and_foreign_names_change_nothing() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("host", "evil.example"),
    ] {
        for path in ["pause", "cancel", "plan/approve"] {
            let request = api.request(Method::POST, &format!("/api/v1/runs/{run}/{path}"));
            let (status, body) = answer(request.header(name, value)).await;
            assert!(status.is_client_error(), "{name} {path}: {status} {body}");
            assert_ne!(status, StatusCode::CONFLICT, "{name} {path}: {body}");
        }
        let body = json!({"repoUrl": origin.url()});
        let request = api.request(Method::POST, "/api/v1/runs").json_body(&body);
        let (status, body) = answer(request.header(name, value)).await;
        assert!(status.is_client_error(), "{name}: {status} {body}");
    }
    let (_, listed) = api.get("/api/v1/runs").await;
    assert_eq!(listed["runs"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed["runs"][0]["status"], "planning", "{listed}");
    command(api, &run, "cancel").await;
    ended(api, &run).await;
    bridge.stop().await;
}

/// Check 37: what a run shows is the fold of its events up to the number in its `ETag`.
#[tokio::test]
async fn a_run_is_the_fold_of_its_events_up_to_its_etag() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let path = format!("/api/v1/runs/{run}");
    let tagged = async || {
        let answer = api.request(Method::GET, &path).send().await.unwrap();
        assert_eq!(answer.headers()["cache-control"], "no-cache");
        let tag = answer.headers()["etag"].to_str().unwrap().to_owned();
        let record: Value = answer.json().await.unwrap();
        assert_eq!(tag, format!("\"{run}:{}\"", record["lastEventSeq"]));
        (tag, record)
    };
    let tasks = [
        task("a", &[], "say a\nfail-once stalled\nwrite a.txt a"),
        task("b", &["a"], "fail-once echo_failed\nwrite b.txt b"),
        task("c", &[], "sleep 50\nwrite c.txt c"),
    ];
    say(api, &run, &plan(&tasks)).await;
    let mut seen = Vec::new();
    let last = loop {
        let (tag, record) = tagged().await;
        let is_over = record["status"] == "completed";
        if seen.last().is_none_or(|(known, _)| *known != tag) {
            seen.push((tag, record));
        }
        if is_over {
            break seen.last().unwrap().0.clone();
        }
    };
    assert!(seen.len() > 5, "{}", seen.len());
    let events = events(api, &run).await;
    for (tag, record) in &seen {
        let seq = record["lastEventSeq"].as_u64().unwrap();
        let events = &events[..usize::try_from(seq).unwrap()];
        assert_eq!(
            record["lastEventId"],
            events.last().unwrap()["eventId"],
            "{tag}"
        );
        let mut states = serde_json::Map::new();
        if !of(events, "plan.finalized").is_empty() {
            for id in ["a", "b", "c", "refinery-final"] {
                states.insert(id.to_owned(), json!("PENDING"));
            }
        }
        for data in of(events, "task.status") {
            states[data["taskId"].as_str().unwrap()] = data["newStatus"].clone();
        }
        let shown = record["tasks"].as_object().unwrap().iter();
        let shown: serde_json::Map<_, _> = shown
            .map(|(id, task)| (id.clone(), task["status"].clone()))
            .collect();
        assert_eq!(shown, states, "{tag}");
        let paths = of(events, "artifact.written").into_iter();
        let paths: std::collections::BTreeSet<_> =
            paths.map(|data| data["path"].as_str().unwrap()).collect();
        let listed = record["artifacts"].as_object().unwrap().keys();
        assert_eq!(
            listed
                .map(String::as_str)
                .collect::<std::collections::BTreeSet<_>>(),
            paths,
            "{tag}"
        );
    }
    let request = |tag: &str| api.request(Method::GET, &path).header("if-none-match", tag);
    assert_eq!(
        request(&last).send().await.unwrap().status(),
        StatusCode::NOT_MODIFIED
    );
    assert_eq!(
        request("\"x:1\"").send().await.unwrap().status(),
        StatusCode::OK
    );
    verified(api, &run).await;
    bridge.stop().await;
}
