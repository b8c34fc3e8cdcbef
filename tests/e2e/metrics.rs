//! Metrics of the real program, checked by Prometheus' own tool and by a strict parser of OpenMetrics.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Stdio};

use reqwest::Method;
use serde_json::{Value, json};

use super::external;
use super::harness::api::owed;
use super::harness::process::{Home, Process};
use super::harness::until;

pub(crate) async fn scrape(bridge: &Process) -> String {
    let answer = bridge
        .api
        .request(Method::GET, "/metrics")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 200);
    answer.text().await.unwrap()
}

/// Starts a bridge, runs work of several kinds, and returns its metrics page.
pub(crate) async fn busy() -> (Home, Process, String) {
    let sink = external::sink_with(json!(1)).await;
    let home = Home::new(&[]);
    external::register(home.dir.path(), &[external::probe(&sink)]);
    let bridge = home.start();
    let (status, _) = bridge.api.post(external::COMMAND, &json!({})).await;
    assert_eq!(status, 200);
    for (task, model) in [("one", "usage"), ("two", "fail:odd"), ("three", "stream:3")] {
        bridge
            .api
            .dispatch(owed(task, model, &sink.url("/cb")))
            .await;
    }
    let page = until("the deliveries to be counted", || async {
        let page = scrape(&bridge).await;
        let done = "forge_bridge_deliveries_ended_total{outcome=\"delivered\"} 3\n";
        page.contains(done).then_some(page)
    })
    .await;
    (home, bridge, page)
}

/// Runs `promtool`, which `.ci/setup` installs and which must succeed; returns its output.
pub(crate) fn promtool(arguments: &[&str], input: &str) -> String {
    run("promtool", arguments, input)
}

fn run(program: impl AsRef<OsStr>, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a program is missing; .ci/setup installs it");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{arguments:?}: {said}");
    said
}

/// Parses a page strictly, with the official client of Python.
fn open_metrics(page: &str) {
    let parser = "import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
print(sum(len(family.samples) for family in parse(sys.stdin.read())))";
    let samples = run(forge_test_runtimes::open_metrics(), &["-c", parser], page);
    assert!(samples.trim().parse::<usize>().unwrap() > 100, "{samples}");
}

/// Names of the samples on a page.
pub(crate) fn samples(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let names = lines.map(|line| line.split(['{', ' ']).next().unwrap().to_owned());
    names.collect()
}

#[tokio::test]
async fn the_page_is_what_prometheus_wants() {
    let (_home, bridge, page) = busy().await;
    let said = promtool(&["check", "metrics"], &page);
    assert_eq!(said, "", "promtool has something to say");
    for line in [
        "forge_bridge_dispatches_accepted_total{provider=\"echo\"} 3",
        "forge_bridge_dispatches_finished_total{provider=\"echo\",status=\"ok\",error_code=\"none\"} 2",
        "forge_bridge_dispatches_finished_total{provider=\"echo\",status=\"error\",error_code=\"other\"} 1",
        "forge_bridge_dispatch_execution_seconds_count{provider=\"echo\"} 3",
        "forge_bridge_delivery_attempts_total{destination=\"loopback\",answer=\"2xx\"} 3",
        "forge_bridge_plugin_calls_total{provider=\"echo\",op=\"execute\",outcome=\"ok\"} 3",
        "forge_bridge_adapter_health{provider=\"echo\",state=\"healthy\"} 1",
        "forge_bridge_http_requests_total{method=\"POST\",route=\"/api/v2/dispatch\",status=\"2xx\"} 3",
        "forge_bridge_external_calls_total{service=\"probe\",kind=\"command\",outcome=\"ok\"} 1",
        "forge_bridge_store_up 1",
        "forge_bridge_children_living 0",
    ] {
        assert!(page.lines().any(|other| other == line), "{line}\n{page}");
    }
    let tokens = "forge_bridge_tokens_total{provider=\"echo\",model=";
    assert!(page.contains(tokens), "{page}");
    // OpenMetrics is selected by the `Accept` header.
    let request = bridge.api.request(Method::GET, "/metrics");
    let answer = request.header("accept", "application/openmetrics-text; version=1.0.0");
    let open = answer.send().await.unwrap().text().await.unwrap();
    assert!(open.ends_with("# EOF\n"), "{open}");
    open_metrics(&open);
    assert_eq!(samples(&open), samples(&page));
}

#[tokio::test]
async fn the_last_hour_is_shown_in_steps() {
    let (_home, bridge, _) = busy().await;
    let sum = |column: &Value| {
        let steps = column.as_array().unwrap().iter();
        steps.map(|count| count.as_u64().unwrap()).sum::<u64>()
    };
    // A step takes 10 s.
    let hour = until("the first step", || async {
        let (_, hour) = bridge.api.get("/api/v2/throughput").await;
        (sum(&hour["delivered"]) == 3).then_some(hour)
    })
    .await;
    let sums =
        ["accepted", "ok", "error", "failedAttempts", "running"].map(|name| sum(&hour[name]));
    assert_eq!(sums, [3, 2, 1, 0, 0], "{hour}");
    assert_eq!(hour["stepSeconds"], 10);
}

#[tokio::test]
async fn labels_from_outside_are_bounded() {
    let home = Home::new(&[]);
    let bridge = home.start();
    for number in 0..40 {
        let mut body = owed(&format!("t-{number}"), "usage:1", "http://127.0.0.1:9/cb");
        body["model"] = format!("usage:1{}", " ".repeat(number)).into();
        body["callbackUrl"] = Value::Null;
        let (_, answer) = bridge.api.post("/api/v2/dispatch", &body).await;
        if let Some(id) = answer["dispatchId"].as_str() {
            bridge.api.finished(id).await;
        }
        bridge.api.get(&format!("/no/such/route/{number}")).await;
    }
    let page = scrape(&bridge).await;
    let lines = page.lines().count();
    assert!(lines < 1500, "{lines} lines");
    let routes = page
        .matches("http_requests_total{method=\"GET\",route=\"none\"")
        .count();
    assert_eq!(routes, 1);
}
