//! Runs on the echo adapter: from the interview to a proved merge, with failures, pauses and a killed bridge.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;

use forge_base::failpoint::{POINTS, VARIABLE};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{Api, JsonBody as _};
use super::harness::process::Home;
use super::harness::{Bridge, until};

/// A repository with one commit.
struct Origin {
    root: tempfile::TempDir,
}

impl Origin {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let origin = Self { root };
        let work = origin.root.path().join("work");
        origin.git(&["init", "--quiet", "--initial-branch=main", "work"]);
        std::fs::write(work.join("README.md"), "a\nb\nc\n").unwrap();
        origin.git(&["-C", "work", "add", "."]);
        origin.git(&["-C", "work", "commit", "--quiet", "-m", "first"]);
        origin.git(&["clone", "--quiet", "--bare", "work", "origin.git"]);
        origin
    }

    fn git(&self, args: &[&str]) -> String {
        let mut git = Command::new("git");
        let git = git.args(args).current_dir(self.root.path());
        let git = git.env("GIT_CONFIG_GLOBAL", "/dev/null");
        let name = [("NAME", "tester"), ("EMAIL", "tester@example.org")];
        for (part, value) in name {
            git.env(format!("GIT_AUTHOR_{part}"), value);
            git.env(format!("GIT_COMMITTER_{part}"), value);
        }
        let output = git.output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout)
            .unwrap()
            .trim_end()
            .to_owned()
    }

    fn path(&self) -> PathBuf {
        self.root.path().join("origin.git")
    }

    fn url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    /// File of a branch, as the origin has it.
    fn file(&self, branch: &str, path: &str) -> String {
        self.git(&["--git-dir=origin.git", "show", &format!("{branch}:{path}")])
    }

    fn settings(&self) -> String {
        let root = self.root.path().display();
        format!("[runs]\nprovider = \"echo\"\nmodel = \"run\"\nlocal_roots = [\"{root}\"]\n")
    }
}

async fn create(api: &Api, body: &Value) -> String {
    let (status, answer) = api.post("/api/v1/runs", body).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    assert_eq!(answer["status"], "planning");
    answer["runId"].as_str().unwrap().to_owned()
}

async fn say(api: &Api, run: &str, message: &str) -> StatusCode {
    let body = json!({"runId": run, "message": message});
    api.post("/api/v1/captain/message", &body).await.0
}

/// Posts a request without a body.
async fn command(api: &Api, run: &str, name: &str) -> (StatusCode, Value) {
    let request = api.request(Method::POST, &format!("/api/v1/runs/{run}/{name}"));
    super::harness::api::answer(request).await
}

/// Task for the Captain of the echo adapter.
fn task(id: &str, dependencies: &[&str], instructions: &str) -> Value {
    json!({
        "id": id, "title": format!("Task {id}"), "type": 2, "dependencies": dependencies, "instructions": instructions
    })
}

fn plan(tasks: &[Value]) -> String {
    json!({"specs": {"style": "Short lines."}, "tasks": tasks}).to_string()
}

/// All events of a run that has ended, read as a stream to its end.
async fn events(api: &Api, run: &str) -> Vec<Value> {
    let stream = api.request(Method::GET, &format!("/api/v1/runs/{run}/stream"));
    let text = stream.send().await.unwrap().text().await.unwrap();
    let lines = text.lines().filter(|line| !line.starts_with(':'));
    let events: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let numbers: Vec<_> = events
        .iter()
        .map(|event| event["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    events
}

fn kinds<'a>(events: &'a [Value], prefix: &str) -> Vec<&'a str> {
    let kinds = events.iter().map(|event| event["type"].as_str().unwrap());
    kinds.filter(|kind| kind.starts_with(prefix)).collect()
}

fn of<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events
        .iter()
        .filter(|event| event["type"] == kind)
        .map(|event| &event["data"])
        .collect()
}

async fn verified(api: &Api, run: &str) {
    let (_, verified) = api.get(&format!("/api/v1/runs/{run}/verify")).await;
    assert_eq!(verified["ok"], true, "{verified}");
}

async fn ended(api: &Api, run: &str) -> Value {
    until("the run to end", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        let is_ended = ["completed", "failed", "cancelled"]
            .iter()
            .any(|status| record["status"] == *status);
        is_ended.then_some(record)
    })
    .await
}

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
    assert_eq!(record["mergedTasks"], 4, "{record}");
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
    assert!(branches.contains(&json!("forge/b/2")), "{branches:?}");
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
        "all attempts failed: a; not started because of that: b, refinery-final"
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

/// The bridge is killed at each named point of a run: the next one continues it, and each task is merged once.
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
