//! `STDIO.md` against the types: its example has every member of an execution, and its table every rule.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "tests")]

use forge_adapter_api::conformance::{self, Options};
use forge_adapter_api::{
    AdapterError, AdapterEvent, Config, CostTier, Events, ExecutionAdapter, ExecutionRequest,
    ExecutionResult, Health, Host, LatencyProfile, OutputStrategy, Profile, Result, async_trait,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

const PAGE: &str = include_str!("../STDIO.md");

fn messages() -> Vec<Value> {
    let blocks = PAGE.split("```json\n").skip(1);
    let texts = blocks.map(|block| block.split("```").next().unwrap());
    texts
        .map(|text| serde_json::from_str(text).unwrap())
        .collect()
}

/// Parses a value that has no member which the type does not have.
fn known<T: DeserializeOwned + Serialize>(value: &Value) -> T {
    let parsed: T = serde_json::from_value(value.clone()).unwrap();
    let again = serde_json::to_value(&parsed).unwrap();
    for (name, member) in value.as_object().unwrap() {
        if name != "usage" {
            assert_eq!(again.get(name), Some(member), "{name}");
        }
    }
    parsed
}

/// Fails if a member is absent; `Debug` shows each.
#[track_caller]
fn is_whole(value: &impl std::fmt::Debug) {
    let shown = format!("{value:?}");
    for absent in ["None", "[]", "{}"] {
        assert!(!shown.contains(absent), "{absent} in {shown}");
    }
}

#[test]
fn the_example_has_every_member() {
    let messages = messages();
    is_whole(&known::<ExecutionRequest>(&messages[0]["payload"]));
    known::<AdapterEvent>(&messages[1]["event"]);
    let mut answers = Map::new();
    for message in messages.iter().filter(|message| message["ok"].is_object()) {
        known::<ExecutionResult>(&message["ok"]);
        for (name, member) in message["ok"].as_object().unwrap() {
            answers.entry(name).or_insert_with(|| member.clone());
        }
    }
    is_whole(&known::<ExecutionResult>(&answers.into()));
    let error = messages.last().unwrap();
    known::<AdapterError>(&error["error"]);
}

struct Adapter;

#[async_trait]
impl ExecutionAdapter for Adapter {
    const NAME: &'static str = "none";
    const VERSION: &'static str = "1";

    async fn initialize(_host: Host, _config: Config) -> Result<Self> {
        Err(AdapterError::new("unavailable", "only its rules matter"))
    }
    async fn shutdown(&self) -> Result<()> {
        Ok(())
    }
    async fn check_health(&self) -> Health {
        Health::healthy()
    }
    fn capabilities(&self) -> Profile {
        Profile {
            capabilities: Vec::new(),
            native_tools: Vec::new(),
            max_concurrent: 1,
            output_strategies: vec![OutputStrategy::Stream],
            options: Vec::new(),
            cost_tier: CostTier::Low,
            latency_profile: LatencyProfile::Fast,
        }
    }
    async fn execute(&self, _: ExecutionRequest, _: Events) -> Result<ExecutionResult> {
        Err(AdapterError::cancelled())
    }
    async fn cancel(&self, _: &str) -> Result<bool> {
        Ok(false)
    }
}

#[test]
fn the_table_has_every_rule() {
    let report = conformance::check::<Adapter>(Options::default());
    let rows = PAGE.lines().filter(|line| line.matches('|').count() == 4);
    let rows: Vec<&str> = rows.collect();
    for row in report.rows {
        let start = format!("| {} | {} |", row.area, row.rule);
        assert!(
            rows.iter().any(|shown| shown.starts_with(&start)),
            "{start}"
        );
    }
}
