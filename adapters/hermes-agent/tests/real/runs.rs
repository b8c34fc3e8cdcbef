//! Executions by profile.

use forge_adapter_api::ExecutionAdapter as _;
use forge_adapter_api::manage::AgentManager;
use forge_test_support::execution::run;
use serde_json::json;

use crate::bench::Bench;

#[tokio::test]
async fn an_agent_without_a_profile_runs_on_the_default_one_with_the_tools_of_the_capabilities() {
    let bench = Bench::with(json!({})).await;
    let file = bench.workspace.path().canonicalize().unwrap().join("a.txt");
    let input = json!({"path": file, "content": "written"});

    let ran = bench
        .say("stranger", &format!("CALL write_file {input}"))
        .await;

    ran.succeeded();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "written");
    assert_eq!(ran.all("tool.invoked").len(), 1, "{:?}", ran.events);
    assert!(ran.result.usage.total_tokens > Some(0));
    let asked = bench.asked_last();
    let tools = asked["tools"].as_array().unwrap().iter();
    let tools: Vec<&str> = tools
        .map(|tool| tool["function"]["name"].as_str().unwrap())
        .collect();
    let profile = bench.adapter.capabilities();
    let named = |tool: &&str| profile.native_tools.iter().any(|name| name == tool);
    assert!(tools.iter().all(named), "{tools:?}");
    let not_offered = profile
        .native_tools
        .iter()
        .filter(|tool| !tools.contains(&tool.as_str()));
    assert!(
        not_offered.clone().all(|tool| tool.starts_with("browser_")),
        "{tools:?}"
    );
    let mut later = bench.request("stranger", "and now");
    later.session_id = ran.result.session_id;
    run(&bench.adapter, later).await.succeeded();
    let asked = bench.asked_last();
    assert!(
        asked["messages"].to_string().contains("bytes_written"),
        "its history"
    );
}

#[tokio::test]
async fn without_a_fallback_an_agent_that_is_not_there_runs_nowhere() {
    let bench = Bench::with(json!({"agent": ""})).await;
    let ran = bench.say("stranger", "hello").await;
    assert!(ran.failed("invalid_request").contains("stranger"));
    assert!(bench.model.requests().is_empty());
}

#[tokio::test]
async fn a_warm_process_runs_with_its_profile_as_it_is_now() {
    let bench = Bench::with(json!({"warm": 1})).await;
    bench.say("default", "hello").await.succeeded();
    let change = json!({"agentId": "default", "model": "fake-2", "systemPrompt": "you are a vole"});
    let change = serde_json::from_value(change).unwrap();
    AgentManager::update(&bench.adapter, change).await.unwrap();
    bench.say("default", "again").await.succeeded();
    let asked = bench.asked_last();
    assert_eq!(asked["model"], "fake-2");
    assert!(asked["messages"].to_string().contains("you are a vole"));
}
