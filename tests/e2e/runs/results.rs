//! Agents whose results are large, late or missing.

use super::*;

/// Check 10. A result of 10 MB is above the size of events, and left out; where it is allowed, it is one event and one
/// line in both framings.
#[tokio::test]
async fn a_tool_result_of_ten_megabytes_is_left_out_or_one_line() {
    let larger = "[plugin]\nevent_bytes = 16777216\nqueue_bytes = 33554432\n";
    for (limits, count) in [("", 0), (larger, 1)] {
        let origin = Origin::new();
        let settings = format!("{}{limits}", origin.settings());
        let bridge = Bridge::configured(&settings, &[]).await;
        let api = &bridge.api;
        let run = create(api, &json!({"repoUrl": origin.url()})).await;
        let a = task("a", &[], "tool read 10000000\nwrite a.txt a");
        say(api, &run, &plan(&[a])).await;
        let record = ended(api, &run).await;
        assert_eq!(record["status"], "completed", "{}", record["error"]);
        let lines = events(api, &run).await;
        assert_eq!(of(&lines, "tool.call").len(), 1);
        let results = of(&lines, "tool.result").into_iter();
        let sizes: Vec<_> = results
            .map(|data| data["result"].as_str().unwrap().len())
            .collect();
        assert_eq!(sizes, vec![10_000_000; count]);
        let stream = api.request(Method::GET, &format!("/api/v1/runs/{run}/stream"));
        let stream = stream.header("accept", "text/event-stream").send();
        let text = stream.await.unwrap().text().await.unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let same: Vec<Value> = data
            .map(|data| serde_json::from_str(data).unwrap())
            .collect();
        assert!(same == lines, "{} and {} events", same.len(), lines.len());
        verified(api, &run).await;
        bridge.stop().await;
    }
}

/// Check 18, without what an attempt does after it became stale: one that stalls is repeated as attempt 2, on a branch
/// of its own.
#[tokio::test]
async fn a_stale_attempt_is_repeated_on_another_branch() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let a = task("a", &[], "append a.txt one\nfail-once stalled\nsay second");
    say(api, &run, &plan(&[a])).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let branch = format!("forge/{run}/a/2");
    assert_eq!(record["tasks"]["a"]["branch"], *branch, "{record}");
    assert_eq!(
        origin.file(&format!("forge/integration/{run}"), "a.txt"),
        "one"
    );
    let events = events(api, &run).await;
    let of_a = of(&events, "task.status").into_iter();
    let of_a = of_a.filter(|data| data["taskId"] == "a");
    let states: Vec<_> = of_a
        .map(|data| (&data["attempt"], &data["newStatus"]))
        .collect();
    let wanted = [
        (1, "RUNNING"),
        (1, "STALE"),
        (1, "PENDING"),
        (2, "RUNNING"),
        (2, "DONE"),
        (2, "MERGE_READY"),
        (2, "MERGED"),
    ];
    let wanted = wanted.map(|(attempt, status)| (json!(attempt), json!(status)));
    let states: Vec<_> = states
        .into_iter()
        .map(|(n, status)| (n.clone(), status.clone()))
        .collect();
    assert_eq!(states, wanted);
    verified(api, &run).await;
    bridge.stop().await;
}
