//! A Captain that writes too much: each limit is a tool result that names it, and the run continues.

use super::*;

/// The Captain's answer to a plan, after those before it.
async fn answer_to(api: &Api, run: &str, message: &Value, count: usize) -> String {
    let status = say(api, run, &message.to_string()).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    answers(api, run, count).await.pop().unwrap()
}

#[tokio::test]
async fn a_plan_of_ten_thousand_tasks_is_refused_and_the_next_one_is_executed() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let tasks = (1..=10_000).map(|id| json!({"id": id.to_string(), "title": ""}));
    let told = answer_to(api, &run, &json!({"tasks": tasks.collect::<Value>()}), 1).await;
    assert!(
        told.contains("there are 1000 tasks already"),
        "{}",
        &told[..200]
    );
    assert!(
        told.ends_with("the graph has 10000 nodes; at most 1000 are allowed"),
        "{}",
        &told[told.len() - 200..]
    );
    let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
    assert_eq!(
        (&record["status"], &record["totalTasks"]),
        (&json!("planning"), &json!(0))
    );
    say(api, &run, &plan(&[task("1", &[], "write a.txt a")])).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    verified(api, &run).await;
    bridge.stop().await;
}

#[tokio::test]
async fn documents_have_limits_and_one_of_almost_a_mebibyte_is_carried_out() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let times = |times: usize| json!({"repeat": "x", "times": times});
    let one = |member: &str, value: Value| {
        let mut task = task("a", &[], "write a.txt a");
        task[member] = value;
        json!({ "tasks": [task] })
    };
    let refused = [
        (
            one("title", times(1 << 20)),
            "the title has 1048576 bytes; at most 1000",
        ),
        (
            one("dependencies", json!([times(1 << 20)])),
            "the dependencies: ",
        ),
        (
            one("dependencies", vec![json!("b"); 1_001].into()),
            "there are 1001 dependencies",
        ),
        (
            one("acceptance_criteria", json!([times(1 << 20)])),
            "bytes are too many; at most",
        ),
        (
            one("instructions", times(2 << 20)),
            "bytes are too many; at most",
        ),
        (
            json!({"specs": {"a": times(1 << 20)}, "tasks": []}),
            "bytes are too many; at most",
        ),
        (json!({"specs": {"../a": "x"}, "tasks": []}), "the name: "),
        // More than a dispatch may hand back.
        (
            one("context", json!([times(9 << 20), times(9 << 20)])),
            "The Captain cannot answer",
        ),
    ];
    for (number, (message, wanted)) in refused.iter().enumerate() {
        let told = answer_to(api, &run, message, number + 1).await;
        let begin = told.chars().take(400).collect::<String>();
        assert!(told.contains(wanted), "{wanted}: {begin}");
    }
    let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
    assert_eq!(record["status"], "planning", "{record}");
    let criteria = json!([times(500_000), times(500_000)]);
    say(api, &run, &one("acceptance_criteria", criteria).to_string()).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let size = record["artifacts"]["tasks/a.md"]["size"].as_u64().unwrap();
    assert!(size > 1_000_000, "{size}");
    verified(api, &run).await;
    bridge.stop().await;
}
