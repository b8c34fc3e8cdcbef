//! Runs with real agent programs, with only the model behind them faked.

use forge_test_model::Model;

use super::super::claude;
use super::super::harness::process::{Home, Process};
use super::*;

/// Call of a tool that the fake model makes when a message has it. Inside of a document it is written so that the
/// model that is given the plan does not make it.
fn inner(call: &str) -> String {
    call.replace("CALL", "\u{1}ALL")
}

/// Message to the Captain that makes the model record this plan.
fn plan_by(prefix: &str, tasks: &[Value]) -> String {
    let nodes: Vec<Value> = tasks.iter().map(|task| json!({"id": task["id"]})).collect();
    let tasks = tasks
        .iter()
        .map(|task| format!("CALL {prefix}create_task {task}"));
    let calls: Vec<String> = tasks.collect();
    let text = format!(
        "{} CALL {prefix}set_dag {}",
        calls.join(" "),
        json!({ "nodes": nodes })
    );
    text.replace("\\u0001ALL", "\\u0043ALL")
}

fn start(home: &mut Home, origin: &Origin, settings: &str) -> Process {
    let root = origin.root.path().display();
    let file = home.dir.path().join("forge-bridge.toml");
    let own = std::fs::read_to_string(&file).unwrap_or_default();
    let runs = format!("[runs]\n{settings}local_roots = [\"{root}\"]\n{own}");
    std::fs::write(&file, runs).unwrap();
    home.set("PATH", &std::env::var("PATH").unwrap());
    home.start()
}

#[tokio::test]
async fn the_claude_program_plans_works_settles_a_conflict_and_is_steered_by_a_pause() {
    let model = Model::start().await;
    let origin = Origin::new();
    let mut home = claude::home(&model);
    home.set("BRIDGE_ADAPTERS_CLAUDE_AGENT_SDK_ALLOWED_TOOLS", "Bash");
    let settings = "provider = \"claude-agent-sdk\"\nmodel = \"claude-sonnet-4-5\"\n";
    let bridge = start(&mut home, &origin, settings);
    let api = &bridge.api;
    let bash = |command: &str| {
        inner(&format!(
            "CALL Bash {}",
            json!({"command": command, "description": "d"})
        ))
    };
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let tasks = [
        task("a", &[], &bash("echo a > same.txt")),
        task("b", &[], &bash("echo b > same.txt; sleep 4")),
        typed(
            "merge",
            json!("refinery"),
            &["a", "b"],
            &bash("printf 'a\\nb\\n' > same.txt"),
        ),
    ];
    say(api, &run, &plan_by("mcp__forge__", &tasks)).await;
    until("the second task to call its tool", || async {
        let events = page(api, &run, "0").await;
        let mut calls = of(&events, "tool.call").into_iter();
        calls.any(|data| data["taskId"] == "b").then_some(())
    })
    .await;
    assert_eq!(command(api, &run, "pause").await.0, StatusCode::OK);
    until("both attempts to end", || async {
        let (_, tasks) = api.get(&format!("/api/v1/runs/{run}/tasks")).await;
        let mut tasks = tasks.as_array().unwrap()[..2].iter();
        tasks
            .all(|task| task["status"] == "MERGE_READY")
            .then_some(())
    })
    .await;
    assert_eq!(command(api, &run, "resume").await.0, StatusCode::OK);
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let target = format!("forge/integration/{run}");
    assert_eq!(origin.file(&target, "same.txt"), "a\nb");
    let events = events(api, &run).await;
    let acks = of(&events, "task.pause_ack");
    let steered = json!({"taskId": "b", "effect": "wrapping_up"});
    assert!(acks.contains(&&steered), "{acks:?}");
    let asked = model.requests();
    let mut asked = asked.iter().map(|request| request.body.to_string());
    assert!(asked.any(|body| body.contains("The run is paused.")));
    let merged = of(&events, "refinery.merged")[0];
    assert_eq!(merged["conflicts"], json!(["same.txt"]));
    assert_eq!(merged["proof"].as_array().unwrap().len(), 2, "{merged}");
    verified(api, &run).await;
}

#[tokio::test]
async fn opencode_plans_and_works() {
    let model = Model::start().await;
    let origin = Origin::new();
    let mut home = Home::new(&[("BRIDGE_ADAPTERS", "opencode")]);
    let folder = home.dir.path().join("opencode");
    std::fs::create_dir(&folder).unwrap();
    let limit = json!({"limit": {"context": 128_000, "output": 8_000}});
    let own = json!({
        "model": "fake/fake-1", "permission": {"bash": "allow", "edit": "allow"},
        "provider": {"fake": {
            "npm": "@ai-sdk/openai-compatible", "models": {"fake-1": limit},
            "options": {"baseURL": format!("{}/v1", model.url()), "apiKey": "fake"},
        }},
    });
    std::fs::write(folder.join("opencode.json"), own.to_string()).unwrap();
    let program = forge_test_runtimes::opencode();
    let path = folder.display();
    let adapter = format!(
        "[adapters.opencode]\nlibrary = \"acp\"\nprogram = {program:?}\nargs = [\"acp\"]\nenv = {{ HOME = \"{path}\", \
         OPENCODE_CONFIG = \"{path}/opencode.json\", OPENCODE_DISABLE_MODELS_FETCH = \"1\", \
         OPENCODE_DISABLE_AUTOUPDATE = \"1\" }}\n"
    );
    std::fs::write(home.dir.path().join("forge-bridge.toml"), adapter).unwrap();
    let bridge = start(&mut home, &origin, "provider = \"opencode\"\n");
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let bash = json!({"command": "echo worker > w.txt", "description": "d"});
    let worker = typed("w", json!(1), &[], &inner(&format!("CALL bash {bash}")));
    say(api, &run, &plan_by("forge_", &[worker])).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    assert_eq!(
        origin.file(&format!("forge/integration/{run}"), "w.txt"),
        "worker"
    );
    verified(api, &run).await;
}
