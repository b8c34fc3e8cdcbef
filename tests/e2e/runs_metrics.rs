//! Metrics and traces of runs.

use std::fs;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{Api, answer};
use super::harness::until;
use super::metrics::{promtool, scrape};
use super::runs::{Origin, plan, task};
use super::traces::{self, Collector};

/// Waits until the run at this path has a status.
async fn has(api: &Api, path: &str, status: &str) -> Value {
    until(status, || async {
        let (_, record) = api.get(path).await;
        (record["status"] == status).then_some(record)
    })
    .await
}

#[tokio::test]
async fn a_run_is_counted_and_is_one_trace() {
    let (collector, origin) = (Collector::start().await, Origin::new());
    let mut home = traces::home(&collector.0.url(""), &[]);
    let settings = home.dir.path().join("forge.toml");
    fs::write(settings, origin.settings()).unwrap();
    home.set("BRIDGE_ADAPTERS", "echo");
    let bridge = home.start();
    let api = &bridge.api;
    let body = json!({"repoUrl": origin.url(), "planReview": true});
    let (status, created) = api.post("/api/v1/runs", &body).await;
    assert_eq!(status, StatusCode::CREATED, "{created}");
    let run = created["runId"].as_str().unwrap();
    let tasks = [
        task("a", &[], "write a.txt a"),
        task("b", &[], "fail-once echo_failed\nwrite b.txt b"),
    ];
    let body = json!({"runId": run, "message": plan(&tasks)});
    api.post("/api/v1/captain/message", &body).await;
    let path = format!("/api/v1/runs/{run}");
    has(api, &path, "plan_review").await;
    let page = scrape(&bridge).await;
    for line in [
        "forge_bridge_runs{status=\"plan_review\"} 1\n",
        "forge_bridge_runs{status=\"executing\"} 0\n",
        "forge_bridge_run_tasks{status=\"pending\"} 3\n",
        "forge_bridge_runs_ended_total{status=\"completed\"} 0\n",
    ] {
        assert!(page.contains(line), "{line}{page}");
    }
    answer(api.request(Method::POST, &format!("{path}/plan/approve"))).await;
    let record = has(api, &path, "completed").await;
    let page = until("the end to be counted", || async {
        let page = scrape(&bridge).await;
        let ended = "forge_bridge_runs_ended_total{status=\"completed\"} 1\n";
        page.contains(ended).then_some(page)
    })
    .await;
    assert_eq!(promtool(&["check", "metrics"], &page), "");
    for line in [
        "forge_bridge_runs{status=\"plan_review\"} 0\n",
        "forge_bridge_run_tasks{status=\"merged\"} 0\n",
        "forge_bridge_run_attempts_total{outcome=\"completed\"} 2\n",
        "forge_bridge_run_attempts_total{outcome=\"failed\"} 1\n",
        "forge_bridge_run_attempts_total{outcome=\"stale\"} 0\n",
        "forge_bridge_run_merges_total 1\n",
    ] {
        assert!(page.contains(line), "{line}{page}");
    }

    let trace = record["traceId"].as_str().unwrap();
    let own = collector.until(trace, &["run"]).await["run"].clone();
    assert_eq!(own.parent, "");
    assert_eq!(own.attributes["forge.run.id"], run);
    assert_eq!(own.attributes["forge.tasks"], 3);
    // Two turns of the Captain, and three attempts.
    let dispatches = until("the spans of the dispatches", || async {
        let spans = collector.spans().into_iter();
        let spans: Vec<_> = spans.filter(|span| span.name == "dispatch").collect();
        (spans.len() == 5).then_some(spans)
    })
    .await;
    for span in dispatches {
        assert_eq!((&*span.trace, &span.parent), (trace, &own.id), "{span:?}");
        assert_eq!(span.attributes["forge.run.id"], run);
    }
    bridge.kill();

    // A run that has not ended counts after a restart; one that has, does not.
    let bridge = home.start();
    let page = scrape(&bridge).await;
    assert!(page.contains("forge_bridge_runs{status=\"planning\"} 0\n"));
    let body = json!({"repoUrl": origin.url()});
    bridge.api.post("/api/v1/runs", &body).await;
    bridge.kill();
    let bridge = home.start();
    until("the run to be counted again", || async {
        let page = scrape(&bridge).await;
        let counted = "forge_bridge_runs{status=\"planning\"} 1\n";
        page.contains(counted).then_some(())
    })
    .await;
}
