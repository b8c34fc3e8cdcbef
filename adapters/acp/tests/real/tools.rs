//! The agent's own tools under the policy, files, and MCP servers.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::bench::{AGENTS, Agent, Bench, Ran};

#[tokio::test]
async fn an_allowed_tool_runs_and_the_log_tells_it_whole() {
    for agent in AGENTS {
        let bench = Bench::with(agent, json!({"allowed_tools": ["execute"]})).await;
        let ran = bench.say(&agent.shell("echo forge-$((40+2))")).await;
        ran.succeeded();
        assert!(ran.output().starts_with("tool said: "), "{}", ran.output());
        let (invoked, completed) = one_call(&ran);
        assert!(
            invoked["input"].to_string().contains("echo forge-"),
            "{invoked}"
        );
        assert_eq!(invoked["kind"], "execute");
        assert!(
            completed["output"].as_str().unwrap().contains("forge-42"),
            "{completed}"
        );
        assert_eq!(completed["isError"], false);
        match agent {
            Agent::Hermes => ran.used(2),
            // It counts its last call alone, so nothing is known but the cost.
            Agent::OpenCode => {
                assert_eq!(ran.result.usage.total_tokens, None);
                assert!(ran.result.cost_usd.unwrap() > 0.0);
            }
        }
    }
}

#[tokio::test]
async fn a_tool_is_denied_unless_allowed() {
    for agent in AGENTS {
        let bench = Bench::new(agent).await;
        let victim = bench.path("victim");
        std::fs::create_dir(&victim).unwrap();
        // Hermes asks about dangerous commands alone.
        let ran = bench
            .say(&agent.shell(&format!("rm -rf {}", victim.display())))
            .await;
        assert!(victim.exists(), "{agent:?}: {:?}", ran.events);
        let (_, completed) = one_call(&ran);
        assert_eq!(completed["isError"], true);
        let decided: Vec<&Value> = permissions(&ran);
        assert_eq!(decided[0]["allowed"], false, "{agent:?}");
    }
}

#[tokio::test]
async fn files_are_written_below_the_workspace_and_nowhere_else() {
    for agent in AGENTS {
        let bench = Bench::new(agent).await;
        let inside = bench.path("a.txt");
        let ran = bench.say(&agent.write(&inside)).await;
        ran.succeeded();
        assert_eq!(
            std::fs::read_to_string(&inside).unwrap(),
            "written",
            "{agent:?}"
        );

        let elsewhere = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let outside = elsewhere.path().canonicalize().unwrap().join("b.txt");
        let ran = bench.say(&agent.write(&outside)).await;
        assert!(!outside.exists(), "{agent:?}: {:?}", ran.events);
        assert_eq!(permissions(&ran)[0]["allowed"], false, "{agent:?}");
    }
}

#[tokio::test]
async fn a_server_that_the_dispatch_names_is_used_without_asking() {
    for (agent, tool) in [
        (Agent::Hermes, "mcp_count_add"),
        (Agent::OpenCode, "count_add"),
    ] {
        let bench = Bench::new(agent).await;
        let mut request = bench.request(&format!("CALL {tool} {{\"a\":1}}"));
        let server = format!("{}/tests/real/mcp_server.py", env!("CARGO_MANIFEST_DIR"));
        let server = json!({"command": "python3", "args": [server], "env": {"ANSWER": "counted"}});
        request.mcp_servers = BTreeMap::from([("count".to_owned(), server)]);
        let ran = bench.run(request).await;
        ran.succeeded();
        let (_, completed) = one_call(&ran);
        assert!(
            completed["output"].to_string().contains("counted"),
            "{agent:?}: {completed}"
        );
    }
}

#[tokio::test]
async fn a_server_that_the_agent_cannot_reach_is_refused() {
    let bench = Bench::new(Agent::Hermes).await;
    let mut request = bench.request("hello there");
    let server = json!({"url": "http://127.0.0.1:9/mcp"});
    request.mcp_servers = BTreeMap::from([("far".to_owned(), server)]);
    let ran = bench.run(request).await;
    ran.failed("invalid_request");
    assert!(ran.result.error.unwrap().contains("far"));
}

fn permissions(ran: &Ran) -> Vec<&Value> {
    let mut progress = ran.all("exec.progress");
    progress.retain(|data| data["kind"] == "permission");
    progress
}

#[track_caller]
fn one_call(ran: &Ran) -> (&Value, &Value) {
    let (invoked, completed) = (ran.all("tool.invoked"), ran.all("tool.completed"));
    assert_eq!((invoked.len(), completed.len()), (1, 1), "{:?}", ran.events);
    assert_eq!(invoked[0]["toolCallId"], completed[0]["toolCallId"]);
    (invoked[0], completed[0])
}
