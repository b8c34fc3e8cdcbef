//! Tools: the program's own under the policy, the caller's, and MCP servers.

use std::collections::BTreeMap;

use forge_adapter_api::request::{Tool, ToolResult};
use forge_test_support::mcp_server;
use serde_json::json;

use crate::bench::{Bench, used};

const ECHO: &str = "CALL Bash {\"command\":\"echo forge-$((40+2))\",\"description\":\"d\"}";

#[tokio::test]
async fn an_allowed_tool_runs_and_the_log_tells_it_whole() {
    let bench = Bench::with(json!({"allowed_tools": ["Bash(echo:*)"]})).await;
    let ran = bench.say(ECHO).await;
    ran.succeeded();
    used(&ran, 2);
    let (invoked, completed) = (ran.all("tool.invoked"), ran.all("tool.completed"));
    assert_eq!((invoked.len(), completed.len()), (1, 1));
    assert_eq!(
        (&invoked[0]["name"], &invoked[0]["input"]["description"]),
        (&json!("Bash"), &json!("d"))
    );
    assert_eq!(
        (
            &completed[0]["name"],
            &completed[0]["output"],
            &completed[0]["isError"]
        ),
        (&json!("Bash"), &json!("forge-42"), &json!(false))
    );
    assert_eq!(invoked[0]["toolCallId"], completed[0]["toolCallId"]);
    assert!(
        ran.output().starts_with("tool said: forge-42"),
        "{}",
        ran.output()
    );
}

#[tokio::test]
async fn a_tool_is_denied_unless_allowed_and_the_model_is_told_why() {
    let bench = Bench::new().await;
    let ran = bench
        .say("CALL Bash {\"command\":\"touch made\",\"description\":\"d\"}")
        .await;
    ran.succeeded();
    let completed = ran.all("tool.completed");
    assert_eq!(completed[0]["isError"], true);
    assert!(
        completed[0]["output"]
            .as_str()
            .unwrap()
            .contains("The bridge's policy denies Bash")
    );
    assert!(!bench.workspace.path().join("made").exists());
}

#[tokio::test]
async fn calls_of_the_callers_tools_are_handed_over_and_answered_by_the_next_run() {
    let bench = Bench::new().await;
    let mut request = bench.request(
        "CALL mcp__forge__crm_find {\"who\":\"bob\"} CALL mcp__forge__crm_find {\"who\":\"eve\"}",
    );
    request.tools = vec![Tool {
        name: "crm.find".to_owned(),
        description: Some("finds".to_owned()),
        input_schema: json!({"type": "object", "properties": {"who": {"type": "string"}}}),
    }];
    let tools = request.tools.clone();

    let ran = bench.run(request).await;

    ran.succeeded();
    used(&ran, 1);
    let calls: Vec<_> = ran
        .result
        .tool_calls
        .iter()
        .map(|call| (call.name.as_str(), &call.input))
        .collect();
    assert_eq!(
        calls,
        [
            ("crm.find", &json!({"who": "bob"})),
            ("crm.find", &json!({"who": "eve"}))
        ]
    );
    assert!(
        ran.all("tool.invoked").is_empty(),
        "the bridge tells of these"
    );
    assert!(ran.all("tool.completed").is_empty());
    assert!(
        bench.model.requests()[0].body["tools"]
            .to_string()
            .contains("mcp__forge__crm_find")
    );

    let mut next = bench.request("go on");
    next.session_id = ran.result.session_id;
    next.tools = tools;
    next.tool_results = ran
        .result
        .tool_calls
        .iter()
        .map(|call| ToolResult {
            tool_call_id: call.tool_call_id.clone(),
            name: call.name.clone(),
            output: json!({"id": 7}),
            is_error: false,
        })
        .collect();
    let next = bench.run(next).await;
    next.succeeded();
    assert!(
        next.output().ends_with("{\"id\":7}\n\ngo on"),
        "{}",
        next.output()
    );
    let history = bench.model.requests().last().unwrap().body["messages"].to_string();
    assert!(
        history.contains("\"who\":\"bob\"") && history.contains("handed to the caller"),
        "{history}"
    );
}

#[tokio::test]
async fn a_question_to_a_human_is_an_input_request() {
    let bench = Bench::new().await;
    let question = json!({"questions": [{
        "question": "Which one?", "header": "Choice", "multiSelect": false,
        "options": [{"label": "a", "description": "first"}, {"label": "b", "description": "second"}],
    }]});
    let ran = bench.say(&format!("CALL AskUserQuestion {question}")).await;
    ran.failed("input_required");
    assert_eq!(
        ran.result.input_request.unwrap()["questions"][0]["question"],
        "Which one?"
    );
}

#[tokio::test]
async fn a_server_that_the_dispatch_names_is_used_without_asking() {
    let bench = Bench::new().await;
    let mut request = bench.request("CALL mcp__count__add {\"a\":1}");
    let server = mcp_server::answering("counted");
    request.mcp_servers = BTreeMap::from([("count".to_owned(), server)]);
    let ran = bench.run(request).await;
    ran.succeeded();
    let completed = ran.all("tool.completed");
    assert_eq!(
        (&completed[0]["name"], &completed[0]["output"]),
        (&json!("mcp__count__add"), &json!("counted"))
    );
}

#[tokio::test]
async fn a_server_that_does_not_start_ends_the_run_unless_it_is_not_required() {
    let bench = Bench::new().await;
    let request = |required: bool| {
        let mut request = bench.request("CALL mcp__count__add {\"a\":1}");
        let broken = json!({"command": "/bin/false"});
        let count = mcp_server::answering("counted");
        request.mcp_servers =
            BTreeMap::from([("broken".to_owned(), broken), ("count".to_owned(), count)]);
        request.mcp_required = required;
        request
    };

    let ran = bench.run(request(true)).await;
    ran.failed("mcp_server_unavailable");
    assert!(ran.result.error.as_ref().unwrap().contains("broken"));
    assert!(bench.model.requests().is_empty());

    let optional = bench.run(request(false)).await;
    optional.succeeded();
    assert_eq!(optional.all("tool.completed")[0]["output"], "counted");
    for ran in [ran, optional] {
        let told = ran.all("exec.progress");
        assert_eq!(
            (&told[0]["kind"], &told[0]["server"]),
            (&json!("mcp_server_unavailable"), &json!("broken"))
        );
    }
}
