//! Runs of a bridge that is killed.

use std::os::unix::process::ExitStatusExt as _;

use forge_base::failpoint::{POINTS, VARIABLE};

use super::super::harness::api::JsonBody as _;
use super::super::harness::process::{Home, Process};
use super::*;

/// Starts a run on a bridge that is killed at a point, and continues it on the next one; returns its end.
pub(super) async fn continued(
    origin: &Origin,
    settings: &str,
    point: &str,
    request: &Value,
    message: &str,
) -> (Process, Value) {
    let mut home = Home::new(&[]);
    let settings = origin.settings() + settings;
    std::fs::write(home.dir.path().join("forge-bridge.toml"), settings).unwrap();
    home.set("PATH", &std::env::var("PATH").unwrap());
    home.set(VARIABLE, point);
    let bridge = home.start();
    // The bridge can be gone before it has answered, but not before the run is on disk.
    let posted = bridge.api.request(Method::POST, "/api/v1/runs");
    let created = match posted.json_body(request).send().await {
        Ok(answer) => answer.json::<Value>().await.ok(),
        Err(_) => None,
    };
    let mut is_told = false;
    if let Some(created) = &created {
        let body = json!({"runId": created["runId"], "message": message});
        let posted = bridge.api.request(Method::POST, "/api/v1/captain/message");
        is_told = posted.json_body(&body).send().await.is_ok();
    }
    let status = bridge.ended().await;
    assert_eq!(status.signal(), Some(9), "{point} was not reached");
    home.variables.remove(VARIABLE);

    let bridge = home.start();
    let api = &bridge.api;
    let (_, listed) = api.get("/api/v1/runs").await;
    assert_eq!(listed["runs"].as_array().unwrap().len(), 1, "{point}");
    let run = listed["runs"][0]["runId"].as_str().unwrap().to_owned();
    if !is_told {
        let events = page(api, &run, "0").await;
        if of(&events, "captain.user_message").is_empty() {
            say(api, &run, message).await;
        }
    }
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{point}: {record}");
    verified(api, &run).await;
    // Also if the bridge was killed after the end of the run.
    let folder = home.dir.path().join("data/runs").join(&run);
    until("the folder of the run to be removed", async || {
        (!folder.exists()).then_some(())
    })
    .await;
    (bridge, record)
}

fn times_merged(events: &[Value], id: &str) -> usize {
    let changes = of(events, "task.status").into_iter();
    let merged = changes.filter(|data| data["taskId"] == id && data["newStatus"] == "MERGED");
    merged.count()
}

/// Checks 5, 21 and 22. The bridge is killed at each named point of a run: the next one continues it, and each task is
/// merged once.
#[tokio::test]
async fn a_killed_bridge_continues_its_runs() {
    let of_runs = POINTS.iter().filter(|point| point.starts_with("run."));
    // Work of every kind is settled: turns of the Captain, starts, ends and pushes of attempts.
    let later = (2..=8).map(|passing| format!("run.settle:{passing}"));
    for point in of_runs.map(|point| (*point).to_owned()).chain(later) {
        let origin = Origin::new();
        let tasks = [
            task("a", &[], "write a.txt one"),
            task("b", &["a"], "append a.txt two\nsay b"),
        ];
        let request = json!({"repoUrl": origin.url()});
        let (bridge, record) = continued(&origin, "", &point, &request, &plan(&tasks)).await;
        let run = record["runId"].as_str().unwrap();
        let events = events(&bridge.api, run).await;
        for id in ["a", "b", "refinery-final"] {
            assert_eq!(times_merged(&events, id), 1, "{point}: {id}");
        }
        assert_eq!(of(&events, "captain.user_message").len(), 1, "{point}");
        let target = format!("forge/integration/{run}");
        assert_eq!(origin.file(&target, "a.txt"), "one\ntwo", "{point}");
        bridge.kill();
    }
}

/// The same for agents that start agents, a change of the plan and a refinery with an agent.
#[tokio::test]
async fn a_killed_bridge_continues_agents_and_changes_of_the_plan() {
    let settled = (3..=12).map(|passing| format!("run.settle:{passing}"));
    let submitted = (3..=7).map(|passing| format!("run.submit:{passing}"));
    for point in settled.chain(submitted) {
        let origin = Origin::new();
        let child = json!({"type": 1, "title": "Child", "instructions": "append a.txt child"});
        let extra =
            json!({"id": "x", "title": "Extra", "type": 1, "instructions": "write x.txt x"});
        let change =
            json!({"title": "More", "reason": "It lacks x", "overlay": {"addedNodes": [extra]}});
        let orders = format!("write a.txt own\nspawn {child}\nappend a.txt end");
        let tasks = [
            task("a", &[], &orders),
            typed("merge", json!("refinery"), &["a"], &format!("cr {change}")),
        ];
        let request = json!({"repoUrl": origin.url(), "approval": "auto"});
        let (bridge, record) = continued(&origin, "", &point, &request, &plan(&tasks)).await;
        let run = record["runId"].as_str().unwrap();
        let events = events(&bridge.api, run).await;
        // An attempt that was interrupted asks again in the next one.
        let added: Vec<_> = record["tasks"].as_object().unwrap().keys().collect();
        assert!(added.iter().any(|id| *id == "x"), "{point}: {added:?}");
        for id in added {
            assert_eq!(times_merged(&events, id), 1, "{point}: {id}");
        }
        let target = format!("forge/integration/{run}");
        assert_eq!(origin.file(&target, "a.txt"), "own\nchild\nend", "{point}");
        assert_eq!(origin.file(&target, "x.txt"), "x", "{point}");
        bridge.kill();
    }
}
