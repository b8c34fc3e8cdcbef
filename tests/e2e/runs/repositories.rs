//! Repositories that a run must not use.

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
