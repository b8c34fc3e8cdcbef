//! Queries of the dashboard and the alerts: each uses existing metrics and has a value over a recorded run, by the
//! query engine of Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::external;
use super::harness::api::owed;
use super::harness::process::Home;
use super::harness::until;
use super::metrics::{busy, promtool, samples, scrape};

fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../config")
}

/// Names of metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words
        .filter(|word| word.starts_with("forge_bridge_") || word.starts_with("process_"))
        .map(str::to_owned)
        .collect()
}

/// Every query of the dashboard, with its variables replaced.
fn queries() -> Vec<String> {
    fn collect(value: &Value, into: &mut Vec<String>) {
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
                        _ => collect(member, into),
                    }
                }
            }
            Value::Array(members) => members.iter().for_each(|member| collect(member, into)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let dashboard = fs::read_to_string(config().join("grafana/forge-bridge.json")).unwrap();
    let mut queries = Vec::new();
    collect(&serde_json::from_str(&dashboard).unwrap(), &mut queries);
    assert!(queries.len() > 15, "{} queries", queries.len());
    queries
}

fn alerts() -> String {
    fs::read_to_string(config().join("prometheus/alerts.yml")).unwrap()
}

/// Operands of the alerts' conditions. A condition itself has no value while the alert is not firing.
fn operands() -> Vec<String> {
    let alerts = alerts();
    let mut conditions = Vec::new();
    let mut lines = alerts.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(condition) = line.trim().strip_prefix("expr: ") else {
            continue;
        };
        let mut condition = condition.trim_start_matches('|').to_owned();
        while let Some(more) = lines.next_if(|line| line.starts_with("          ")) {
            condition = format!("{condition} {}", more.trim());
        }
        conditions.push(condition);
    }
    assert_eq!(conditions.len(), alerts.matches("- alert:").count());
    let split = |condition: &String| {
        let operators = condition.replace(" unless ", " > ").replace(" == ", " > ");
        let operands = operators
            .split(" > ")
            .map(|operand| operand.trim().to_owned());
        operands
            .filter(|operand| operand.parse::<f64>().is_err())
            .collect::<Vec<_>>()
    };
    conditions.iter().flat_map(split).collect()
}

/// Runs the same work several times and returns the metrics page before and after each round.
async fn record() -> Vec<String> {
    let sink = external::sink_with(json!(1)).await;
    let home = Home::new(&[("BRIDGE_ADAPTERS", "echo,absent")]);
    external::register(home.dir.path(), &[external::probe(&sink)]);
    let bridge = home.start();
    let mut pages = vec![scrape(&bridge).await];
    for round in 0..6 {
        for model in ["usage", "fail:odd", "stream:3"] {
            let task = format!("{model}-{round}");
            bridge
                .api
                .dispatch(owed(&task, model, &sink.url("/cb")))
                .await;
        }
        bridge.api.post(external::COMMAND, &json!({})).await;
        let delivered = format!(
            "deliveries_ended_total{{outcome=\"delivered\"}} {}\n",
            3 * (round + 1)
        );
        let page = until("the deliveries to be counted", || async {
            let page = scrape(&bridge).await;
            page.contains(&delivered).then_some(page)
        });
        pages.push(page.await);
    }
    pages
}

/// The pages as input of `promtool test rules`, one minute apart.
fn series(pages: &[String]) -> String {
    let mut series = BTreeMap::<&str, Vec<&str>>::new();
    for (number, page) in pages.iter().enumerate() {
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let values = series.entry(name).or_default();
            values.resize(number, "_");
            values.push(value);
        }
    }
    let mut text =
        String::from("      - series: 'up{job=\"forge-bridge\"}'\n        values: '1x10'\n");
    for (name, values) in series {
        let name = match name.split_once('{') {
            Some((name, labels)) => format!("{name}{{job=\"forge-bridge\",{labels}"),
            None => format!("{name}{{job=\"forge-bridge\"}}"),
        };
        let values = values.join(" ");
        writeln!(text, "      - series: '{name}'\n        values: '{values}'").unwrap();
    }
    text
}

#[tokio::test]
async fn every_query_asks_for_a_metric_that_exists() {
    let (_home, _bridge, page) = busy().await;
    let there = samples(&page);
    let asked = queries();
    let absent: Vec<_> = asked
        .iter()
        .chain([&alerts()])
        .flat_map(|text| named(text))
        .filter(|name| !there.contains(name))
        .collect();
    assert!(absent.is_empty(), "not exported: {absent:?}");
}

#[tokio::test]
async fn every_query_has_a_value() {
    let pages = record().await;
    let asked = [queries(), operands()].concat();
    let mut tests = format!(
        "evaluation_interval: 1m\ntests:\n  - interval: 1m\n    input_series:\n{}    promql_expr_test:\n",
        series(&pages)
    );
    for query in asked {
        // NaN differs from itself, and an empty answer has no count.
        let expression = format!("count({query}) == bool count(({query}) == ({query}))");
        let expression = serde_json::to_string(&expression).unwrap();
        write!(
            tests,
            "      - expr: {expression}\n        eval_time: 6m\n        exp_samples: [{{labels: '{{}}', value: 1}}]\n"
        )
        .unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("queries.yml");
    fs::write(&file, tests).unwrap();
    promtool(&["test", "rules", file.to_str().unwrap()], "");
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
    let alerts = alerts();
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
