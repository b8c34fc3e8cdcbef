//! Trouble that no agent causes: rate limits, remotes that are away, pushes that are refused, budgets, restarts. Nothing
//! of it uses up an attempt, and a run that ended because of it is continued.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::remote::{Before, hook, serve, settings};
use super::*;
use crate::harness::process::Home;

/// Attempts of a task that have begun.
fn attempts(events: &[Value], id: &str) -> usize {
    let scheduled = of(events, "task.scheduled").into_iter();
    scheduled.filter(|data| data["taskId"] == id).count()
}

/// Runs retry of a run, with a body.
async fn retry(api: &Api, run: &str, body: &Value) -> (StatusCode, Value) {
    api.post(&format!("/api/v1/runs/{run}/retry"), body).await
}

/// Five attempts of which four end for no fault of the agent, in several ways.
#[tokio::test]
async fn attempts_that_no_agent_failed_are_not_counted() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let codes = ["rate_limited", "interrupted", "adapter_unavailable"];
    let tasks = codes.map(|code| {
        let orders = format!("fail-first 4 {code}\nwrite {code}.txt x");
        task(&code.replace('_', "-"), &[], &orders)
    });
    say(api, &run, &plan(&tasks)).await;
    until("a task to wait", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        let wait = &record["tasks"]["rate-limited"]["wait"];
        let is_told = wait["cause"] == "attempt"
            && wait["reason"].as_str()?.starts_with("rate_limited: ")
            && wait["until"].is_string();
        is_told.then_some(())
    })
    .await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let events = events(api, &run).await;
    for code in codes {
        let id = code.replace('_', "-");
        assert_eq!(attempts(&events, &id), 5, "{id}");
        assert!(record["tasks"][&id]["failures"].is_null(), "{record}");
    }
    let ends = of(&events, "task.failed").into_iter();
    let mut ends = ends.chain(of(&events, "task.stale"));
    assert!(ends.all(|end| end["counted"] == false));
    verified(api, &run).await;
    bridge.stop().await;
}

#[tokio::test]
async fn waiting_ends_with_patience_and_a_retry_begins_again() {
    let origin = Origin::new();
    let settings = format!("{}patience = \"1s\"\n", origin.settings());
    let bridge = Bridge::configured(&settings, &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let orders = "fail-first 2 rate_limited\nwrite a.txt a";
    say(api, &run, &plan(&[task("a", &[], orders)])).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "failed", "{record}");
    let error = record["error"].as_str().unwrap();
    assert!(error.starts_with("a failed: rate_limited: "), "{error}");
    let (status, answer) = retry(api, &run, &json!({})).await;
    assert_eq!(
        (status, &answer["status"]),
        (StatusCode::OK, &json!("executing"))
    );
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let (status, answer) = retry(api, &run, &json!({})).await;
    assert_eq!(
        (status, &answer["code"]),
        (StatusCode::CONFLICT, &json!("INVALID_STATE"))
    );
    // A replay goes beyond the first end.
    let events = events(api, &run).await;
    assert_eq!(of(&events, "run.completed").len(), 2);
    assert_eq!(of(&events, "run.reopened").len(), 1);
    verified(api, &run).await;

    // The message of the user is not lost while the Captain is not reached.
    let body = json!({"repoUrl": origin.url(), "model": "busy:1"});
    let run = create(api, &body).await;
    say(api, &run, "hello").await;
    let said = answers(api, &run, 1).await;
    assert!(
        said[0].starts_with("The Captain cannot answer: rate_limited: "),
        "{said:?}"
    );
    let events = page(api, &run, "0").await;
    assert_eq!(of(&events, "run.waiting").len(), 1, "{events:?}");
    assert_eq!(command(api, &run, "cancel").await.0, StatusCode::OK);
    bridge.stop().await;
}

/// A remote that closes every connection for a while: nothing is made again, only asked again.
#[tokio::test]
async fn a_remote_that_is_away_is_waited_for() {
    let origin = Origin::new();
    let (is_away, asked) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicUsize::new(0)),
    );
    let before: Arc<Before> = {
        let (is_away, asked) = (Arc::clone(&is_away), Arc::clone(&asked));
        Arc::new(move |_, _| {
            let is_away = is_away.load(Ordering::SeqCst);
            asked.fetch_add(usize::from(is_away), Ordering::SeqCst);
            !is_away
        })
    };
    let address = serve(origin.root.path(), before);
    let bridge = Bridge::configured(&settings(std::slice::from_ref(&address)), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": format!("{address}/origin.git")})).await;
    let refused = async || {
        let before = asked.load(Ordering::SeqCst);
        until("the remote to be asked", || async {
            (asked.load(Ordering::SeqCst) > before).then_some(())
        })
        .await;
    };
    refused().await;
    until("the run to say so", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        (record["wait"]["cause"] == "remote").then_some(())
    })
    .await;
    is_away.store(false, Ordering::SeqCst);
    let orders = "write a.txt a\nawait .git/go";
    say(api, &run, &plan(&[task("a", &[], orders)])).await;
    running(api, &run, 1).await;
    is_away.store(true, Ordering::SeqCst);
    release(&bridge, &run, "a", 1);
    refused().await;
    until("the task to say so", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        let a = &record["tasks"]["a"];
        (a["status"] == "DONE" && a["wait"]["cause"] == "remote").then_some(())
    })
    .await;
    is_away.store(false, Ordering::SeqCst);
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let events = events(api, &run).await;
    assert_eq!(attempts(&events, "a"), 1);
    assert_eq!(attempts(&events, "refinery-final"), 1);
    verified(api, &run).await;
    bridge.stop().await;
}

/// A folder that is moved while an agent works is waited for, and a retry does not wait.
#[tokio::test]
async fn a_local_repository_that_is_gone_for_a_while_is_waited_for() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let orders = "write a.txt a\nawait .git/go";
    say(api, &run, &plan(&[task("a", &[], orders)])).await;
    running(api, &run, 1).await;
    let elsewhere = origin.root.path().join("elsewhere");
    std::fs::rename(origin.path(), &elsewhere).unwrap();
    release(&bridge, &run, "a", 1);
    until("the task to wait", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        (record["tasks"]["a"]["wait"]["cause"] == "absent").then_some(())
    })
    .await;
    std::fs::rename(&elsewhere, origin.path()).unwrap();
    let path = format!("/api/v1/runs/{run}/tasks/a/retry");
    assert_eq!(api.post(&path, &json!({})).await.0, StatusCode::OK);
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    assert_eq!(attempts(&events(api, &run).await, "a"), 1);
    verified(api, &run).await;

    // One that stays away ends the run after three tries, and the run can be continued.
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    say(api, &run, &plan(&[task("a", &[], orders)])).await;
    running(api, &run, 1).await;
    std::fs::rename(origin.path(), &elsewhere).unwrap();
    release(&bridge, &run, "a", 1);
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "failed", "{record}");
    std::fs::rename(&elsewhere, origin.path()).unwrap();
    assert_eq!(retry(api, &run, &json!({})).await.0, StatusCode::OK);
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let events = events(api, &run).await;
    assert_eq!(attempts(&events, "a"), 1);
    assert_eq!(of(&events, "task.waiting").len(), 2, "three tries");
    verified(api, &run).await;
    bridge.stop().await;
}

/// A push that a policy of the remote refuses is told once. After the policy has changed, the same commit is pushed.
#[tokio::test]
async fn a_result_that_could_not_be_pushed_is_kept_for_a_retry() {
    let origin = Origin::new();
    let quiet: Arc<Before> = Arc::new(|_, _| true);
    let address = serve(origin.root.path(), quiet);
    let bridge = Bridge::configured(&settings(std::slice::from_ref(&address)), &[]).await;
    let api = &bridge.api;
    for target in [
        "refs/heads/forge/run_*/a/*",
        "refs/heads/forge/integration/*",
    ] {
        hook(
            &origin,
            "update",
            &format!("case $1 in {target}) echo not on a Friday >&2; exit 1;; esac"),
        );
        let run = create(api, &json!({"repoUrl": format!("{address}/origin.git")})).await;
        say(
            api,
            &run,
            &plan(&[task("a", &[], "write a.txt a\nsay made")]),
        )
        .await;
        let record = ended(api, &run).await;
        assert_eq!(record["status"], "failed", "{record}");
        let error = record["error"].as_str().unwrap();
        assert!(error.contains("not on a Friday"), "{error}");
        let folder = bridge.home.path().join("data/runs").join(&run);
        assert!(folder.join("repository.git").exists());
        std::fs::remove_file(origin.path().join("hooks/update")).unwrap();
        assert_eq!(retry(api, &run, &json!({})).await.0, StatusCode::OK);
        let record = ended(api, &run).await;
        assert_eq!(record["status"], "completed", "{record}");
        let events = events(api, &run).await;
        assert_eq!(attempts(&events, "a"), 1, "{target}");
        assert_eq!(of(&events, "task.completed").len(), 1, "{target}");
        assert_eq!(
            origin.file(&format!("forge/integration/{run}"), "a.txt"),
            "a"
        );
        verified(api, &run).await;
    }
    bridge.stop().await;
}

#[tokio::test]
async fn a_run_without_money_ends_and_continues_with_a_larger_budget() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    // The turns of the Captain alone take more.
    let body = json!({"repoUrl": origin.url(), "budget": {"maxTokens": 1}});
    let run = create(api, &body).await;
    say(api, &run, &plan(&[task("a", &[], "write a.txt a")])).await;
    // Whatever the Captain makes of it, the run ends or waits for a message.
    let (status, _) = retry(api, &run, &json!({"budget": {"maxTokens": 1_000_000}})).await;
    assert_eq!(status, StatusCode::OK);
    say(api, &run, &plan(&[task("a", &[], "write a.txt a")])).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");

    let body = json!({"repoUrl": origin.url(), "budget": {"maxTokens": 40}});
    let run = create(api, &body).await;
    let long = format!("say {}\nwrite a.txt a", "word ".repeat(100));
    let tasks = [task("a", &[], &long), task("b", &["a"], "write b.txt b")];
    say(api, &run, &plan(&tasks)).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "failed", "{record}");
    let error = record["error"].as_str().unwrap();
    assert!(
        error.starts_with("the budget of the run is used up"),
        "{error}"
    );
    let (_, found) = api
        .get(&format!("/api/v1/runs/{run}/events?limit=1000"))
        .await;
    let found = found["events"].as_array().unwrap();
    assert!(attempts(found, "a") <= 1, "{found:?}");
    let budget = json!({"budget": {"maxTokens": 1_000_000}});
    assert_eq!(retry(api, &run, &budget).await.0, StatusCode::OK);
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    verified(api, &run).await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_cancelled_run_is_continued() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let tasks = [
        task("a", &[], "write a.txt a"),
        task("b", &["a"], "fail-first 1 x\nwrite b.txt b\nawait .git/go"),
    ];
    say(api, &run, &plan(&tasks)).await;
    running(api, &run, 1).await;
    until("the second attempt", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        let b = &record["tasks"]["b"];
        (b["attemptId"] == "2" && b["status"] == "RUNNING").then_some(())
    })
    .await;
    assert_eq!(command(api, &run, "cancel").await.0, StatusCode::OK);
    assert_eq!(ended(api, &run).await["status"], "cancelled");
    assert_eq!(retry(api, &run, &json!({})).await.0, StatusCode::OK);
    until("the third attempt", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        let b = &record["tasks"]["b"];
        (b["attemptId"] == "3" && b["status"] == "RUNNING").then_some(())
    })
    .await;
    release(&bridge, &run, "b", 3);
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    verified(api, &run).await;
    bridge.stop().await;
}

/// Restarts, half of them kills, while agents work for longer than the bridge lives: each continues its session, or begins
/// again without a counted attempt.
#[tokio::test]
async fn restarts_use_up_no_attempt() {
    let (restarts, tasks) = (
        number("FORGE_RUN_RESTARTS", 4),
        number("FORGE_RUN_TASKS", 8),
    );
    let origin = Origin::new();
    let mut home = Home::new(&[]);
    std::fs::write(home.dir.path().join("forge-bridge.toml"), origin.settings()).unwrap();
    home.set("PATH", &std::env::var("PATH").unwrap());
    let mut bridge = home.start();
    let run = create(&bridge.api, &json!({"repoUrl": origin.url()})).await;
    let all: Vec<_> = (0..tasks)
        .map(|n| {
            let steps = (0..30).map(|step| format!("append {n}.txt {step}\nsleep 100"));
            task(&format!("t{n}"), &[], &steps.collect::<Vec<_>>().join("\n"))
        })
        .collect();
    say(&bridge.api, &run, &plan(&all)).await;
    for number in 0..restarts {
        until("something to run", || async {
            let (_, record) = bridge.api.get(&format!("/api/v1/runs/{run}")).await;
            let is_ended = record["completedAt"].is_string();
            (is_ended || record["runningTasks"].as_u64()? > 0).then_some(())
        })
        .await;
        match number % 2 {
            0 => bridge.kill(),
            _ => {
                bridge.terminate();
                bridge.ended().await;
            }
        };
        bridge = home.start();
    }
    let record = ended(&bridge.api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let target = format!("forge/integration/{run}");
    let wanted: Vec<_> = (0..30).map(|step| step.to_string()).collect();
    for n in 0..tasks {
        let found = origin.file(&target, &format!("{n}.txt"));
        assert_eq!(found, wanted.join("\n"), "{n}");
        let task = &record["tasks"][format!("t{n}")];
        assert!(task["failures"].is_null(), "{task}");
    }
    let (_, found) = bridge.api.get(&format!("/api/v1/runs/{run}/verify")).await;
    assert_eq!(found["ok"], true, "{found}");
    bridge.kill();
}
