//! The agent's own tools under the policy, files, and MCP servers. Starting an agent takes seconds, so one turn makes
//! several calls.

use std::collections::BTreeMap;

use forge_adapter_api::request::Tool;
use forge_test_support::execution::Execution;
use forge_test_support::mcp_server;
use serde_json::{Value, json};

use crate::bench::{AGENTS, Agent, Bench, CALL};

#[tokio::test]
async fn allowed_tools_files_of_the_workspace_and_named_servers_are_used() {
    for (agent, tool) in [
        (Agent::Hermes, "mcp_count_add"),
        (Agent::OpenCode, "count_add"),
    ] {
        let bench = Bench::with(agent, json!({"allowed_tools": ["execute"]})).await;
        let file = bench.path("a.txt");
        let mut request = bench.request(&format!(
            "{} {} CALL {tool} {{\"a\":1}}",
            agent.shell("echo forge-$((40+2))"),
            agent.write(&file)
        ));
        let server = mcp_server::answering("counted");
        request.mcp_servers = BTreeMap::from([("count".to_owned(), server)]);

        let ran = bench.run(request).await;

        ran.succeeded();
        assert!(ran.output().starts_with("tool said: "), "{}", ran.output());
        assert_eq!(
            ran.all("tool.invoked").len(),
            3,
            "{agent:?}: {:?}",
            ran.events
        );
        let calls = calls(&ran);
        // Of several calls in one model answer, Hermes reports only the end of the first.
        let told = if agent == Agent::Hermes { 1 } else { 3 };
        assert_eq!(calls.len(), told, "{agent:?}: {:?}", ran.events);
        let (invoked, completed) = calls[0];
        assert!(
            invoked["input"].to_string().contains("echo forge-"),
            "{invoked}"
        );
        assert_eq!(
            (&invoked["kind"], &completed["isError"]),
            (&json!("execute"), &json!(false))
        );
        assert!(
            completed["output"].to_string().contains("forge-42"),
            "{completed}"
        );
        let asked = bench.asked_last("counted");
        assert!(asked.contains("forge-42"), "{agent:?}: {asked}");
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            "written",
            "{agent:?}"
        );
        match agent {
            Agent::Hermes => ran.used(2, CALL),
            // OpenCode counts only its last call, so only the cost is known.
            Agent::OpenCode => {
                assert_eq!(ran.result.usage.total_tokens, None);
                assert!(ran.result.cost_usd.unwrap() > 0.0);
            }
            Agent::Claude | Agent::Gemini => unreachable!("they are in others.rs"),
        }
    }
}

#[tokio::test]
async fn calls_of_the_callers_tools_are_handed_over_and_answered_in_the_session() {
    for (agent, prefix) in [(Agent::Hermes, "mcp_forge_"), (Agent::OpenCode, "forge_")] {
        let bench = Bench::new(agent).await;
        let tools: Vec<Tool> = serde_json::from_value(json!([
            {"name": "crm.find", "description": "finds", "inputSchema": {"type": "object"}},
            {"name": "other", "inputSchema": {"type": "object"}},
        ]))
        .unwrap();
        let mut request = bench.request(&format!(
            "CALL {prefix}crm_find {{\"who\":\"bob\"}} CALL {prefix}crm_find {{\"who\":\"eve\"}}"
        ));
        request.tools.clone_from(&tools);

        let asked = bench.run(request).await;

        let calls = &asked.result.tool_calls;
        let who: Vec<&Value> = calls.iter().map(|call| &call.input["who"]).collect();
        assert_eq!(who, ["bob", "eve"], "{agent:?}: {:?}", asked.result);
        assert!(calls.iter().all(|call| call.name == "crm.find"));
        assert_ne!(calls[0].tool_call_id, calls[1].tool_call_id);
        assert!(
            asked.all("tool.invoked").is_empty() && asked.all("tool.completed").is_empty(),
            "the bridge emits these: {:?}",
            asked.events
        );

        let mut request = bench.request("and now?");
        request.tools = tools;
        request.session_id.clone_from(&asked.result.session_id);
        request.tool_results = serde_json::from_value(json!([
            {"toolCallId": calls[0].tool_call_id, "name": "crm.find", "output": "id 7"},
            {"toolCallId": calls[1].tool_call_id, "name": "crm.find", "output": "no such person", "isError": true},
        ]))
        .unwrap();
        let answered = bench.run(request).await;

        answered.succeeded();
        assert!(answered.result.tool_calls.is_empty());
        let said = bench.asked_last("and now?");
        assert!(
            said.contains("id 7") && said.contains("no such person"),
            "{agent:?}: {said}"
        );
    }
}

#[tokio::test]
async fn other_calls_and_files_elsewhere_are_denied() {
    for agent in AGENTS {
        let bench = Bench::new(agent).await;
        let victim = bench.path("victim");
        std::fs::create_dir(&victim).unwrap();
        let elsewhere = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let outside = elsewhere.path().canonicalize().unwrap().join("b.txt");
        // Hermes asks only about dangerous commands.
        let remove = agent.shell(&format!("rm -rf {}", victim.display()));

        let ran = bench
            .say(&format!("{remove} {}", agent.write(&outside)))
            .await;

        assert!(
            victim.exists() && !outside.exists(),
            "{agent:?}: {:?}",
            ran.events
        );
        for (_, completed) in calls(&ran) {
            assert_eq!(completed["isError"], true, "{agent:?}: {completed}");
        }
        let mut decided = ran.all("exec.progress");
        decided.retain(|data| data["kind"] == "permission");
        assert!(!decided.is_empty(), "{agent:?}");
        assert!(
            decided.iter().all(|data| data["allowed"] == false),
            "{agent:?}: {decided:?}"
        );
    }
}

/// Completed calls, as pairs of `tool.invoked` and `tool.completed`.
fn calls(ran: &Execution) -> Vec<(&Value, &Value)> {
    let completed = ran.all("tool.completed");
    let invoked = ran.all("tool.invoked").into_iter();
    invoked
        .filter_map(|invoked| {
            let end = completed
                .iter()
                .find(|end| end["toolCallId"] == invoked["toolCallId"])?;
            Some((invoked, *end))
        })
        .collect()
}
