//! Metrics of the real program, checked by Prometheus' own tool, and the queries of the dashboard and the alerts,
//! which must use existing metrics.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use reqwest::Method;
use serde_json::Value;

use super::harness::api::owed;
use super::harness::process::{Home, Process};
use super::harness::{CallbackSink, until};

fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config")
}

async fn scrape(bridge: &Process) -> String {
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
async fn busy() -> (Home, Process, String) {
    let sink = CallbackSink::start().await;
    let home = Home::new(&[]);
    let bridge = home.start();
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
fn promtool(arguments: &[&str], input: &str) -> String {
    let mut child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is missing; .ci/setup installs it");
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    said
}

/// Names of the samples on a page.
fn samples(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let names = lines.map(|line| line.split(['{', ' ']).next().unwrap().to_owned());
    names.collect()
}

/// Names of metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| word.starts_with("forge_bridge_") || word.starts_with("process_"))
        .map(str::to_owned)
        .collect()
}

/// Collects every query of the dashboard, with its variables replaced.
fn queries(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                match member.as_str() {
                    Some(query) if name == "expr" => into.push(
                        query
                            .replace("$__rate_interval", "5m")
                            .replace("$__range", "1h")
                            .replace("$provider", ".*"),
                    ),
                    _ => queries(member, into),
                }
            }
        }
        Value::Array(members) => members.iter().for_each(|member| queries(member, into)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
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
    assert_eq!(samples(&open), samples(&page));
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

#[tokio::test]
async fn the_dashboard_and_the_alerts_ask_for_what_is_there() {
    let (_home, _bridge, page) = busy().await;
    let there = samples(&page);
    let dashboard = fs::read_to_string(config().join("grafana/forge-bridge.json")).unwrap();
    let alerts = fs::read_to_string(config().join("prometheus/alerts.yml")).unwrap();
    let dashboard: Value = serde_json::from_str(&dashboard).unwrap();
    let mut asked = Vec::new();
    queries(&dashboard, &mut asked);
    assert!(asked.len() > 15, "{} queries", asked.len());
    let absent: Vec<_> = asked
        .iter()
        .chain([&alerts])
        .flat_map(|text| named(text))
        .filter(|name| !there.contains(name))
        .collect();
    assert!(absent.is_empty(), "not exported: {absent:?}");

    // promtool checks queries only inside rules.
    let rules = asked.iter().enumerate().map(|(number, query)| {
        let query = serde_json::to_string(query).unwrap();
        format!("      - record: query_{number}\n        expr: {query}\n")
    });
    let rules = format!(
        "groups:\n  - name: dashboard\n    rules:\n{}",
        rules.collect::<String>()
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("dashboard.yml");
    fs::write(&file, rules).unwrap();
    promtool(&["check", "rules", file.to_str().unwrap()], "");
}

#[test]
fn the_alerts_fire_when_they_should() {
    let folder = config().join("prometheus");
    let rules = folder.join("alerts.yml");
    promtool(&["check", "rules", rules.to_str().unwrap()], "");
    let tests = folder.join("alerts.test.yml");
    promtool(&["test", "rules", tests.to_str().unwrap()], "");
}

#[test]
fn every_alert_says_what_it_means_and_what_to_do() {
    let alerts = fs::read_to_string(config().join("prometheus/alerts.yml")).unwrap();
    let begins = |word: &str, line: &&str| line.trim().starts_with(word);
    let count = |word: &str| alerts.lines().filter(|line| begins(word, line)).count();
    let all = count("- alert:");
    assert!(all >= 6, "{all} alerts");
    for word in ["severity:", "summary:", "meaning:", "runbook:"] {
        assert_eq!(count(word), all, "{word}");
    }
    let tests = fs::read_to_string(config().join("prometheus/alerts.test.yml")).unwrap();
    for line in alerts.lines() {
        if let Some(name) = line.trim().strip_prefix("- alert: ") {
            assert!(
                tests.contains(&format!("alertname: {name}\n")),
                "{name} is not tested"
            );
        }
    }
}
