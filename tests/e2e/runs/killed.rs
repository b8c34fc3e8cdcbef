//! Runs of a bridge that is killed.

use std::os::unix::process::ExitStatusExt as _;

use forge_base::failpoint::{POINTS, VARIABLE};

use super::super::harness::api::JsonBody as _;
use super::super::harness::process::Home;
use super::*;

/// Checks 5, 21 and 22. The bridge is killed at each named point of a run: the next one continues it, and each task is
/// merged once.
#[tokio::test]
async fn a_killed_bridge_continues_its_runs() {
    let of_runs = POINTS.iter().filter(|point| point.starts_with("run."));
    // Work of every kind is settled: turns of the Captain, starts, ends and pushes of attempts.
    let later = (2..=8).map(|passing| format!("run.settle:{passing}"));
    for point in of_runs.map(|point| (*point).to_owned()).chain(later) {
        let origin = Origin::new();
        let mut home = Home::new(&[]);
        std::fs::write(home.dir.path().join("forge-bridge.toml"), origin.settings()).unwrap();
        home.set("PATH", &std::env::var("PATH").unwrap());
        home.set(VARIABLE, &point);
        let bridge = home.start();
        let run = create(&bridge.api, &json!({"repoUrl": origin.url()})).await;
        let tasks = [
            task("a", &[], "write a.txt one"),
            task("b", &["a"], "append a.txt two\nsay b"),
        ];
        // The bridge can be gone before it has answered.
        let message = json!({"runId": run, "message": plan(&tasks)});
        let posted = bridge.api.request(Method::POST, "/api/v1/captain/message");
        let is_told = posted.json_body(&message).send().await.is_ok();
        let status = bridge.ended().await;
        assert_eq!(status.signal(), Some(9), "{point} was not reached");
        home.variables.remove(VARIABLE);

        let bridge = home.start();
        let api = &bridge.api;
        if !is_told {
            let (_, page) = api.get(&format!("/api/v1/runs/{run}/events")).await;
            if of(page["events"].as_array().unwrap(), "captain.user_message").is_empty() {
                say(api, &run, &plan(&tasks)).await;
            }
        }
        let record = ended(api, &run).await;
        assert_eq!(record["status"], "completed", "{point}: {record}");
        let events = events(api, &run).await;
        for id in ["a", "b", "refinery-final"] {
            let merged = of(&events, "task.status").into_iter();
            let merged =
                merged.filter(|data| data["taskId"] == id && data["newStatus"] == "MERGED");
            assert_eq!(merged.count(), 1, "{point}: {id}");
        }
        assert_eq!(of(&events, "captain.user_message").len(), 1, "{point}");
        verified(api, &run).await;
        let target = format!("forge/integration/{run}");
        assert_eq!(origin.file(&target, "a.txt"), "one\ntwo", "{point}");
        bridge.kill();
    }
}
