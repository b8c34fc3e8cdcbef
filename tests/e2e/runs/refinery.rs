//! Refineries whose merge is not mechanical: conflicts, checks and instructions.

use serde_json::json;

use super::super::harness::{Bridge, until};
use super::{Origin, command, create, ended, events, of, page, plan, say, task, typed, verified};

/// Check 28.
#[tokio::test]
async fn conflicts_are_settled_one_after_the_other_by_an_agent() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let tasks = [
        task("a", &[], "write same.txt a"),
        task("b", &[], "write same.txt b"),
        task("c", &[], "write same.txt c\nwrite c.txt c"),
        typed("merge", json!("refinery"), &["a", "b", "c"], "resolve both"),
    ];
    say(api, &run, &plan(&tasks)).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let target = format!("forge/integration/{run}");
    assert_eq!(origin.file(&target, "same.txt"), "a\nb\nc");
    assert_eq!(origin.file(&target, "c.txt"), "c");
    let events = events(api, &run).await;
    assert_eq!(of(&events, "refinery.conflict").len(), 2);
    let merged = of(&events, "refinery.merged")[0];
    assert_eq!(merged["conflicts"], json!(["same.txt"]));
    assert_eq!(
        merged["mergedBranches"],
        json!(["a", "b", "c"].map(|id| format!("forge/{run}/{id}/1")))
    );
    let proof = merged["proof"].as_array().unwrap();
    assert!(proof.iter().all(|one| one["by"] == "ancestor"), "{merged}");
    let steps = of(&events, "task.status").into_iter();
    let steps = steps.filter(|data| data["taskId"] == "merge");
    let steps: Vec<_> = steps
        .map(|data| data["newStatus"].as_str().unwrap())
        .collect();
    assert_eq!(steps, ["RUNNING", "DONE", "MERGE_READY", "MERGED"]);
    verified(api, &run).await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_conflict_that_no_agent_settles_fails_the_refinery() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let tasks = [
        task("a", &[], "write same.txt a"),
        task("b", &[], "write same.txt b"),
    ];
    say(api, &run, &plan(&tasks)).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "failed", "{record}");
    let error = record["tasks"]["refinery-final"]["error"].as_str().unwrap();
    assert_eq!(error, "the agent left conflicts in same.txt (add/add)");
    let events = events(api, &run).await;
    assert!(of(&events, "refinery.merged").is_empty());
    assert_eq!(of(&events, "task.exhausted").len(), 1);
    verified(api, &run).await;
    bridge.stop().await;
}

#[tokio::test]
async fn only_commits_that_pass_the_checks_are_pushed() {
    let origin = Origin::new();
    let checks = json!([
        ["test", "-e", "a.txt"],
        ["sh", "-c", "echo looked for it; test -e mended.txt"]
    ]);
    let settings = format!(
        "{}[runs.checks]\n\"file://\" = {checks}\n",
        origin.settings()
    );
    let bridge = Bridge::configured(&settings, &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let tasks = [
        task("a", &[], "write a.txt a"),
        typed("merge", json!("refinery"), &["a"], "append mended.txt yes"),
    ];
    say(api, &run, &plan(&tasks)).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let all = events(api, &run).await;
    let tests = of(&all, "refinery.tests");
    let counts =
        |n: usize| ["passed", "failed", "skipped"].map(|name| tests[n][name].as_u64().unwrap());
    assert_eq!((tests.len(), counts(0)), (1, [2, 0, 0]));
    assert_eq!(
        origin.file(&format!("forge/integration/{run}"), "mended.txt"),
        "yes"
    );
    verified(api, &run).await;

    // Without an agent that mends it, nothing is pushed.
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    say(api, &run, &plan(&[task("b", &[], "write b.txt b")])).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "failed", "{record}");
    let error = record["tasks"]["refinery-final"]["error"].as_str().unwrap();
    assert!(error.contains("`test -e a.txt` failed"), "{error}");
    let finished = of(&events(api, &run).await, "run.completed")[0].clone();
    let counts = [
        "totalCompleted",
        "totalFailed",
        "refineriesCompleted",
        "refineriesFailed",
    ];
    assert_eq!(
        counts.map(|name| &finished[name]),
        [1, 0, 0, 1],
        "{finished}"
    );
    let branches = origin.git(&[
        "--git-dir=origin.git",
        "branch",
        "--list",
        "forge/integration/*",
    ]);
    assert!(!branches.contains(&run), "{branches}");
    verified(api, &run).await;
    bridge.stop().await;
}

/// A check that does not end by itself is ended, and has failed.
#[tokio::test]
async fn a_check_ends_at_its_time_limit() {
    let origin = Origin::new();
    let checks = "check_timeout = \"300ms\"\nchecks = { \"file://\" = [[\"sleep\", \"600\"]] }\n";
    let settings = format!("{}{checks}", origin.settings());
    let bridge = Bridge::configured(&settings, &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    say(api, &run, &plan(&[task("a", &[], "write a.txt a")])).await;
    let report = until("the check to fail", async || {
        let events = page(api, &run, "0").await;
        let tests = of(&events, "refinery.tests");
        tests.first().map(|data| data["report"].to_string())
    })
    .await;
    assert!(
        report.contains("`sleep 600` failed: it did not end within 300ms"),
        "{report}"
    );
    command(api, &run, "cancel").await;
    ended(api, &run).await;
    bridge.stop().await;
}

/// A key of the checks holds for other spellings of the URL, and not for the neighbour.
#[tokio::test]
async fn checks_hold_for_each_spelling_of_a_repository() {
    let origin = Origin::new();
    let root = origin.url();
    let root = root.trim_end_matches("/origin.git");
    origin.git(&["clone", "--quiet", "--bare", "work", "origin-b.git"]);
    let key = format!("{root}/./origin/");
    let settings = format!(
        "{}[runs.checks]\n{key:?} = [[\"false\"]]\n",
        origin.settings()
    );
    let bridge = Bridge::configured(&settings, &[]).await;
    let api = &bridge.api;
    let path = root.trim_start_matches("file://");
    for (url, is_checked) in [
        (format!("{root}/origin.git"), true),
        (format!("file://localhost{path}//%6frigin.git/"), true),
        (format!("{path}/origin-b.git/../origin.git"), true),
        (format!("{root}/origin-b.git"), false),
    ] {
        let run = create(api, &json!({"repoUrl": url})).await;
        say(api, &run, &plan(&[task("a", &[], "write a.txt a")])).await;
        let record = ended(api, &run).await;
        let status = if is_checked { "failed" } else { "completed" };
        assert_eq!(record["status"], status, "{url}: {record}");
        let tests = of(&events(api, &run).await, "refinery.tests").len();
        assert_eq!(tests > 0, is_checked, "{url}");
    }
    bridge.stop().await;
}
