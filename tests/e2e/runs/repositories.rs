//! Repositories that a run must not use.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// Posts a run of a repository that is refused for a reason.
async fn refused(api: &Api, url: &str, reason: &str) {
    let (status, answer) = api.post("/api/v1/runs", &json!({"repoUrl": url})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{url}: {answer}");
    assert_eq!(answer["details"][0]["field"], "repoUrl", "{url}: {answer}");
    let said = answer["details"][0]["message"].as_str().unwrap();
    assert!(said.contains(reason), "{url}: {said}");
    assert!(!said.contains("pw"), "{said}");
}

/// A list is the only one: it narrows what is allowed without it.
#[tokio::test]
async fn a_list_of_repositories_is_the_only_one() {
    let own = "[runs]\nrepositories = [\"https://git.example.com/team\"]\n";
    let bridge = Bridge::configured(own, &[]).await;
    for url in [
        "https://github.com/rust-lang/log",
        "https://git.example.com/other/a",
        "https://git.example.com/team-evil/a",
        "http://git.example.com/team/a",
    ] {
        refused(&bridge.api, url, "is not in runs.repositories").await;
    }
    bridge.stop().await;
}

#[tokio::test]
async fn repositories_that_may_not_be_used_are_refused_or_end_the_run() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    // The reason, and what a caller or an operator can do.
    for (url, reason) in [
        ("", "must not be empty"),
        ("ext::sh -c id", "contains a space"),
        ("ext::sh", "selects a transport helper (::)"),
        ("--upload-pack=id", "could be an option"),
        ("ssh://-oProxyCommand=id/a", "could be an option"),
        ("shop", "one such as https://host/path was expected"),
        ("https://example.org/a?b", "neither a query nor a fragment"),
        ("https://example.org/a%2f..%2fb", "encoded separators"),
        (
            "https://user:pw@example.org/a",
            "sets credentials in runs.authorization",
        ),
        (
            "ftp://example.org/a",
            "has the scheme ftp; https was expected",
        ),
        (
            "http://example.org/a",
            "begins with http://, which is allowed only where runs.repositories names it",
        ),
        (
            "ssh://git@example.org/a",
            "begins with ssh://, which is allowed only where runs.repositories names it",
        ),
        (
            "https://10.0.0.1/a",
            "10.0.0.1 is a private address and not in callback.allow",
        ),
        ("https://169.254.169.254/a", "and not in callback.allow"),
        ("file:///etc", "not one of a folder below runs.local_roots"),
        ("/etc", "not one of a folder below runs.local_roots"),
    ] {
        refused(api, url, reason).await;
    }
    let empty = origin.root.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let url = format!("file://{}", empty.display());
    refused(api, &url, "names a folder without a repository").await;
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
