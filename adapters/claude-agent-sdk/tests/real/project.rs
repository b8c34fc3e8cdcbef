//! Settings files of the project, the program's own prompt, options of a dispatch, and the program's network.

use std::fs;

use forge_adapter_api::{ExecutionAdapter as _, ExecutionRequest};
use serde_json::{Value, json};

use crate::bench::Bench;

/// Writes a project with instructions, a command and a hook into the workspace.
fn write_project(bench: &Bench) {
    let root = bench.workspace.path();
    fs::create_dir_all(root.join(".claude/commands")).unwrap();
    fs::write(root.join("CLAUDE.md"), "Marmots whistle.").unwrap();
    fs::write(root.join(".claude/commands/greet.md"), "Greet the marmot.").unwrap();
    let hook =
        json!({"type": "command", "command": format!("touch {}", root.join("hooked").display())});
    let settings = json!({"hooks": {"UserPromptSubmit": [{"hooks": [hook]}]}});
    fs::write(root.join(".claude/settings.json"), settings.to_string()).unwrap();
}

#[tokio::test]
async fn a_projects_files_are_read_only_if_the_operator_says_so() {
    for (table, is_read) in [
        (json!({}), false),
        (
            json!({"setting_sources": ["project"], "system_prompt": "append"}),
            true,
        ),
    ] {
        let bench = Bench::with(table).await;
        write_project(&bench);
        let mut request = bench.request("/greet");
        request.system_prompt = Some("You are a badger.".to_owned());
        bench.run(request).await;
        assert_eq!(bench.workspace.path().join("hooked").exists(), is_read);
        let asked: Vec<Value> = bench
            .model
            .requests()
            .iter()
            .map(|r| r.body.clone())
            .collect();
        let asked = json!(asked).to_string();
        assert_eq!(asked.contains("Marmots whistle."), is_read, "{asked}");
        assert_eq!(asked.contains("Greet the marmot."), is_read, "{asked}");
        // The program's own prompt.
        assert_eq!(asked.contains("official CLI for Claude"), is_read);
        // An unknown command is answered by the program without the model.
        assert!(asked.contains("You are a badger.") || !is_read);
    }
}

#[tokio::test]
async fn a_dispatch_narrows_the_mode_and_the_tools_and_sets_the_effort() {
    let table = json!({"permission": "allow", "permission_mode": "acceptEdits"});
    let bench = Bench::with(table).await;
    let with = |options: Value| ExecutionRequest {
        metadata: Some(json!({ "claude-agent-sdk": options })),
        ..bench.request("CALL Bash {\"command\":\"touch made\",\"description\":\"d\"}")
    };

    let mut request = with(json!({
        "permissionMode": "dontAsk", "allowedTools": ["Bash", "Read"], "effort": "low",
    }));
    request.model = Some("opus".to_owned());
    let ran = bench.run(request).await;
    ran.succeeded();
    assert_eq!(ran.all("tool.completed")[0]["isError"], true);
    assert!(!bench.workspace.path().join("made").exists());
    let asked = bench.model.requests();
    let body = &asked[0].body;
    let tools = body["tools"].as_array().unwrap().iter();
    let tools = tools.map(|tool| tool["name"].as_str().unwrap());
    // A newer model also gets a placeholder for tools that it has to search for.
    let tools: Vec<&str> = tools.filter(|name| !name.starts_with("Deferred")).collect();
    assert_eq!(tools, ["Bash", "Read"]);
    assert_eq!(
        body["output_config"]["effort"], "low",
        "{}",
        body["output_config"]
    );

    let (events, _received) = forge_adapter_api::Events::channel(1);
    let request = with(json!({"permissionMode": "bypassPermissions"}));
    let error = bench.adapter.execute(request, events).await.unwrap_err();
    assert_eq!(error.code, "invalid_request");
    assert!(error.message.contains("bypassPermissions"), "{error:?}");
}

#[tokio::test]
async fn the_programs_requests_go_through_the_configured_proxy() {
    let model = forge_test_model::Model::start().await;
    let bench = Bench::with(json!({
        "ANTHROPIC_BASE_URL": "http://model.invalid", "HTTP_PROXY": model.url(),
    }))
    .await;
    bench.say("hello").await.succeeded();
    assert_eq!(model.requests().len(), 1);
    assert!(bench.model.requests().is_empty());
}
