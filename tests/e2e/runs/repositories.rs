//! Repositories that a run must not use.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

#[tokio::test]
async fn repositories_that_may_not_be_used_are_refused_or_end_the_run() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    for url in [
        "",
        "ext::sh -c id",
        "--upload-pack=id",
        "https://user:pw@example.org/a",
        "file:///etc",
        "/etc",
    ] {
        let (status, answer) = api.post("/api/v1/runs", &json!({"repoUrl": url})).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{url}: {answer}");
        assert_eq!(answer["details"][0]["field"], "repoUrl", "{url}: {answer}");
    }
    let hook = origin.path().join("hooks/pre-receive");
    std::fs::create_dir_all(hook.parent().unwrap()).unwrap();
    std::fs::write(&hook, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (status, answer) = api
        .post("/api/v1/runs", &json!({"repoUrl": origin.url()}))
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    let told = &answer["details"][0];
    assert_eq!(told["field"], "repoUrl", "{answer}");
    let told = told["message"].as_str().unwrap();
    assert!(
        told.contains("pre-receive") && told.contains("runs.local_hooks"),
        "{told}"
    );
    std::fs::remove_file(&hook).unwrap();
    let run = create(api, &json!({"repoUrl": origin.url(), "ref": "absent"})).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "failed", "{record}");
    let error = record["error"].as_str().unwrap();
    assert!(error.contains("absent"), "{error}");
    // A dispatch of a caller cannot name a checkout.
    let folder = bridge.home.path().join("data/runs");
    assert!(folder.exists(), "{folder:?}");
    let body = json!({
        "taskId": "t", "agentId": "a", "message": "m", "provider": "echo", "workspace": {"dir": folder}
    });
    let (status, answer) = api.post("/api/v2/dispatch", &body).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    bridge.stop().await;
}

/// Runs of one repository with the same ids of tasks, at the same time, touch neither each other's branches nor
/// foreign ones.
#[tokio::test]
async fn runs_at_once_on_one_repository_do_not_meet() {
    const RUNS: usize = 20;
    let origin = Origin::new();
    let foreign = ["forge/a/1", "forge/b/1", "forge/integration-2", "forge/t/1"];
    let main = origin.git(&["--git-dir=origin.git", "rev-parse", "main"]);
    for branch in foreign {
        origin.git(&["--git-dir=origin.git", "branch", branch, "main"]);
    }
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let mut runs = Vec::new();
    for number in 0..RUNS {
        let run = create(api, &json!({"repoUrl": origin.url()})).await;
        let tasks = [
            task("a", &[], &format!("write {number}-a.txt a")),
            task("b", &["a"], &format!("write {number}-b.txt b")),
        ];
        say(api, &run, &plan(&tasks)).await;
        runs.push(run);
    }
    for run in &runs {
        let record = ended(api, run).await;
        assert_eq!(record["status"], "completed", "{record}");
        let events = events(api, run).await;
        assert_eq!(of(&events, "task.scheduled").len(), 3, "one attempt a task");
        for pushed in of(&events, "branch.pushed") {
            let branch = pushed["branch"].as_str().unwrap();
            let found = origin.git(&["--git-dir=origin.git", "rev-parse", branch]);
            assert_eq!(pushed["ref"], *found, "{branch}");
        }
    }
    for branch in foreign {
        let found = origin.git(&["--git-dir=origin.git", "rev-parse", branch]);
        assert_eq!(found, main, "{branch}");
    }
    bridge.stop().await;
}
