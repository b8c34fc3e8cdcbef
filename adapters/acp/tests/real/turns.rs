//! Single turns: text, thoughts, streaming, the model, instructions, files.

use std::path::Path;

use forge_adapter_api::OutputStrategy;
use serde_json::json;

use crate::bench::{AGENTS, Agent, Bench};

#[tokio::test]
async fn a_text_is_streamed_and_counted() {
    for agent in AGENTS {
        let bench = Bench::new(agent).await;
        let ran = bench.say("hello there").await;
        ran.succeeded();
        ran.used(1);
        assert_eq!(ran.output(), "pong: hello there", "{agent:?}");
        assert_eq!(ran.text("assistant.text"), "pong: hello there");
        assert!(ran.all("assistant.text").len() > 1, "{agent:?}");
        let updated = ran.all("session.updated");
        assert_eq!(updated.len(), 1, "{agent:?}");
        assert_eq!(updated[0]["sessionId"], json!(ran.result.session_id));
        assert!(updated[0]["runtimeVersion"].is_string());
        let (model, cost) = match agent {
            Agent::Hermes => ("custom:fake-1", None),
            // A call for the session's title is in it.
            Agent::OpenCode => ("fake/fake-1", Some(())),
        };
        assert_eq!(ran.result.model.as_deref(), Some(model));
        assert_eq!(ran.result.cost_usd.map(|cost| assert!(cost > 0.0)), cost);
    }
}

#[tokio::test]
async fn a_model_is_chosen_by_the_agents_own_way_and_an_unknown_one_is_refused() {
    let bench = Bench::new(Agent::OpenCode).await;
    let mut request = bench.request("hello there");
    request.model = Some("fake-2".to_owned());
    let ran = bench.run(request).await;
    ran.succeeded();
    assert_eq!(ran.result.model.as_deref(), Some("fake/fake-2"));
    let asked = bench.model.requests();
    assert!(asked.iter().any(|asked| asked.body["model"] == "fake-2"));

    for agent in AGENTS {
        let bench = Bench::with(agent, json!({"model": "fake-1"})).await;
        bench.say("hello there").await.succeeded();
        let mut request = bench.request("hello there");
        request.model = Some("fake-9".to_owned());
        let ran = bench.run(request).await;
        ran.failed("invalid_request");
        let error = ran.result.error.unwrap();
        assert!(
            error.contains("fake-9") && error.contains("fake-1"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn instructions_and_a_file_to_write_reach_the_agent() {
    for agent in AGENTS {
        let bench = Bench::new(agent).await;
        let mut request = bench.request("hello there");
        request.system_prompt = Some("you are a marmot".to_owned());
        request.output_strategy = OutputStrategy::File;
        request.output_file = Some("out/answer.md".to_owned());
        bench.run(request).await.succeeded();
        let asked = bench.asked_last("hello there");
        assert!(
            asked.contains("you are a marmot") && asked.contains("out/answer.md"),
            "{asked}"
        );
    }
}

#[tokio::test]
async fn without_a_workspace_it_runs_in_a_folder_that_goes_with_the_run() {
    for agent in AGENTS {
        let bench = Bench::with(agent, json!({"allowed_tools": ["execute"]})).await;
        let mut request = bench.request(&agent.shell("pwd"));
        request.workspace = None;
        let ran = bench.run(request).await;
        ran.succeeded();
        let completed = ran.all("tool.completed");
        let output = completed[0]["output"].as_str().unwrap();
        let folder = output
            .split_whitespace()
            .find(|word| word.contains("/forge-"));
        let folder = folder.unwrap_or_else(|| panic!("{output}"));
        assert!(!Path::new(folder).exists(), "{folder} is gone with the run");
    }
}
