//! Agents that call tools of the bridge: they start others, list subtasks and ask for changes of the plan.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::super::harness::{Bridge, until};
use super::{Origin, command, create, ended, events, of, plan, say, typed, verified};

/// Instructions of one line for each order.
fn lines(orders: &[String]) -> String {
    orders.join("\n")
}

fn spawn(kind: u8, title: &str, instructions: &str) -> String {
    format!(
        "spawn {}",
        json!({"type": kind, "title": title, "instructions": instructions})
    )
}

#[tokio::test]
async fn agents_start_agents_whose_work_is_merged_into_theirs() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let nested = lines(&[
        "write worker.txt worker".to_owned(),
        spawn(1, "Deep", "append own.txt deep"),
    ]);
    let orders = lines(&[
        "write own.txt own".to_owned(),
        format!(
            "subtasks {}",
            json!({"subtasks": [{"title": "first", "done": true}, {"title": "second"}]})
        ),
        spawn(2, "Worker", &nested),
        spawn(1, "Small", "write small.txt small"),
        spawn(3, "Too large", "say no"),
        spawn(1, "Broken", "fail echo_failed"),
        "append own.txt end".to_owned(),
    ]);
    say(api, &run, &plan(&[typed("a", json!(3), &[], &orders)])).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let target = format!("forge/integration/{run}");
    assert_eq!(origin.file(&target, "own.txt"), "own\ndeep\nend");
    assert_eq!(origin.file(&target, "worker.txt"), "worker");
    assert_eq!(origin.file(&target, "small.txt"), "small");
    let (_, task) = api.get(&format!("/api/v1/runs/{run}/tasks/a")).await;
    let listed = json!([{"title": "first", "done": true}, {"title": "second", "done": false}]);
    assert_eq!(task["subtasks"], listed);
    let agents = task["agents"].as_array().unwrap();
    let titles: Vec<_> = agents
        .iter()
        .map(|agent| agent["title"].as_str().unwrap())
        .collect();
    assert_eq!(titles, ["Worker", "Deep", "Small", "Broken"], "{task}");
    let walkthrough = task["walkthrough"].as_str().unwrap();
    assert!(
        walkthrough.contains("starts agents of type 1 or 2, not 3"),
        "{walkthrough}"
    );
    assert!(
        walkthrough.contains("spawn_agent failed: echo_failed"),
        "{walkthrough}"
    );
    let events = events(api, &run).await;
    let started = of(&events, "agent.started");
    assert_eq!(started[1]["branch"], *format!("forge/{run}/a/1.2"));
    let ended: Vec<_> = of(&events, "agent.ended")
        .iter()
        .map(|data| data["error"].is_null())
        .collect();
    assert_eq!(ended, [true, true, true, false]);
    verified(api, &run).await;
    bridge.stop().await;
}

#[tokio::test]
async fn work_that_conflicts_stays_on_the_branch_of_its_agent() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    // Both start in a folder without the file of the other.
    let agents = ["first", "second"].map(|text| {
        json!({"type": 1, "title": text, "instructions": format!("write own.txt {text}\nwrite {text}.txt x")})
    });
    let orders = format!("spawn {}", json!(agents));
    say(api, &run, &plan(&[typed("a", json!(2), &[], &orders)])).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let target = format!("forge/integration/{run}");
    let kept = origin.file(&target, "own.txt");
    assert!(["first", "second"].contains(&&*kept), "{kept}");
    let (_, a) = api.get(&format!("/api/v1/runs/{run}/tasks/a")).await;
    let walkthrough = a["walkthrough"].as_str().unwrap();
    let told = format!(
        "its changes conflict with yours in own.txt (add/add); they are on the branch forge/{run}/a/1."
    );
    assert!(walkthrough.contains(&told), "{walkthrough}");
    let files = origin.git(&["--git-dir=origin.git", "ls-tree", "--name-only", &target]);
    assert_eq!(files.matches(".txt").count(), 2, "{files}");
    verified(api, &run).await;
    bridge.stop().await;
}

/// Waits until the run has a change request, and returns it.
async fn requested(api: &super::super::harness::api::Api, run: &str) -> Value {
    until("a change request", || async {
        let (_, all) = api
            .get(&format!("/api/v1/runs/{run}/change-requests"))
            .await;
        all.as_array().unwrap().first().cloned()
    })
    .await
}

/// Plan whose first refinery asks for a change, and a task after it.
fn asking(request: &Value) -> String {
    plan(&[
        typed("a", json!(1), &[], "write a.txt a"),
        typed("merge", json!("refinery"), &["a"], &format!("cr {request}")),
        typed("b", json!(1), &["merge"], "write b.txt b"),
        typed("c", json!(1), &["merge"], "write c.txt c"),
    ])
}

/// Check 17: the pause of a user and that of a request are ended each by its own. Check 33.
#[tokio::test]
async fn an_approved_change_adds_to_the_plan_and_a_rejected_one_does_not() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let node = json!({"id": "x", "title": "Extra", "type": 1, "instructions": "write x.txt x"});
    let overlay = json!({"addedNodes": [node], "addedEdges": [{"from": "x", "to": "b"}]});
    for (impact, direct) in [(json!([]), true), (json!(["b"]), false)] {
        let run = create(api, &json!({"repoUrl": origin.url()})).await;
        let request = json!({"title": "More", "reason": "It lacks x", "affectedTasks": impact, "overlay": overlay});
        say(api, &run, &asking(&request)).await;
        let seen = requested(api, &run).await;
        assert_eq!(
            (
                &seen["crId"],
                &seen["status"],
                &seen["emittedBy"],
                &seen["description"],
                &seen["impact"]
            ),
            (
                &json!("cr-001"),
                &json!("pending"),
                &json!("merge"),
                &json!("It lacks x"),
                &impact
            )
        );
        let record = until("the run to be held with nothing running", || async {
            let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
            let is_merged = record["tasks"]["merge"]["status"] == "MERGED";
            (record["status"] == "paused" && is_merged).then_some(record)
        })
        .await;
        assert_eq!(record["activeCRs"], json!(["cr-001"]));
        assert_eq!(record["tasks"]["b"]["status"], "PENDING");
        let (status, refused) = command(api, &run, "resume").await;
        assert_eq!(status, StatusCode::CONFLICT);
        assert_eq!(
            refused["details"]["pendingChangeRequests"],
            json!(["cr-001"]),
            "{refused}"
        );
        // A pause of the user beside that of the request; its approval ends only its own.
        assert_eq!(command(api, &run, "pause").await.0, StatusCode::OK);
        let (status, unknown) = command(api, &run, "change-requests/cr-9/approve").await;
        assert_eq!(
            (status, &unknown["code"]),
            (StatusCode::NOT_FOUND, &json!("CR_NOT_FOUND"))
        );
        let (status, approved) = command(api, &run, "change-requests/cr-001/approve").await;
        assert_eq!(
            (status, &approved["status"]),
            (StatusCode::OK, &json!("approved")),
            "{approved}"
        );
        let (status, again) = command(api, &run, "change-requests/cr-001/approve").await;
        assert_eq!(
            (status, &again["code"]),
            (StatusCode::CONFLICT, &json!("INVALID_STATE"))
        );
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        assert_eq!(record["status"], "paused");
        assert_eq!(command(api, &run, "resume").await.1["status"], "executing");
        let record = ended(api, &run).await;
        assert_eq!(record["status"], "completed", "{record}");
        assert_eq!(record["activeCRs"], json!([]));
        let (_, all) = api
            .get(&format!("/api/v1/runs/{run}/change-requests"))
            .await;
        assert_eq!(all[0]["status"], "applied");
        let events = events(api, &run).await;
        let turns = of(&events, "captain.tool_call");
        let is_asked = turns.iter().any(|data| data["toolName"] == "add_to_dag");
        assert_eq!(is_asked, !direct);
        let applied = of(&events, "dag.overlay_applied")[0];
        assert_eq!(applied["addedNodes"][0]["id"], "x");
        let order = |task: &str| {
            let at = events.iter().position(|event| {
                event["type"] == "task.started" && event["data"]["taskId"] == task
            });
            at.unwrap()
        };
        assert!(
            order("x") < order("b"),
            "b waits for what was added before it"
        );
        let target = format!("forge/integration/{run}");
        for id in ["a", "b", "c", "x"] {
            assert_eq!(origin.file(&target, &format!("{id}.txt")), id);
        }
        for path in [
            "change-requests/cr-001/change-request.md",
            "change-requests/cr-001/dag-overlay.json",
            "tasks/x.md",
        ] {
            assert!(record["artifacts"][path].is_object(), "{path}");
        }
        verified(api, &run).await;
    }
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let request = json!({"title": "More", "reason": "It lacks x", "overlay": overlay});
    say(api, &run, &asking(&request)).await;
    requested(api, &run).await;
    let reason = json!({"reason": "not needed"});
    let path = format!("/api/v1/runs/{run}/change-requests/cr-001/reject");
    let (status, rejected) = api.post(&path, &reason).await;
    assert_eq!(
        (status, &rejected["status"]),
        (StatusCode::OK, &json!("rejected")),
        "{rejected}"
    );
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    assert!(record["tasks"]["x"].is_null());
    let (_, all) = api
        .get(&format!("/api/v1/runs/{run}/change-requests"))
        .await;
    assert_eq!(
        (&all[0]["status"], &all[0]["rejectedBecause"]),
        (&json!("rejected"), &json!("not needed"))
    );
    verified(api, &run).await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_change_is_refused_with_its_faults_and_approved_by_itself_if_the_run_says_so() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url(), "approval": "auto"})).await;
    let edge =
        json!({"title": "t", "reason": "r", "overlay": {"addedEdges": [{"from": "b", "to": "a"}]}});
    let unknown = json!({"title": "t", "reason": "r", "affectedTasks": ["zz"]});
    let vague = json!({"title": "t", "reason": "r", "affectedTasks": ["b"]});
    let orders = format!("cr {edge}\ncr {unknown}\ncr {vague}");
    let tasks = [
        typed("a", json!(1), &[], "write a.txt a"),
        typed("merge", json!("refinery"), &["a"], &orders),
        typed("b", json!(1), &["merge"], "write b.txt b"),
    ];
    say(api, &run, &plan(&tasks)).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let (_, task) = api.get(&format!("/api/v1/runs/{run}/tasks/merge")).await;
    let walkthrough = task["walkthrough"].as_str().unwrap();
    assert!(walkthrough.contains("\"a\": has begun"), "{walkthrough}");
    assert!(
        walkthrough.contains("no task of the run: zz"),
        "{walkthrough}"
    );
    let (_, all) = api
        .get(&format!("/api/v1/runs/{run}/change-requests"))
        .await;
    assert_eq!(all.as_array().unwrap().len(), 1, "{all}");
    // The Captain of the echo adapter changes nothing without a proposal.
    assert_eq!(
        (&all[0]["status"], &all[0]["rejectedBecause"]),
        (&json!("rejected"), &json!("What should I build?"))
    );
    let events = events(api, &run).await;
    let resolved: Vec<_> = of(&events, "cr.resolved")
        .iter()
        .map(|data| data["status"].clone())
        .collect();
    assert_eq!(resolved, [json!("approved"), json!("rejected")]);
    verified(api, &run).await;
    bridge.stop().await;
}
