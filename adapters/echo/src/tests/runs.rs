//! Model `run`: the Captain's plan, an agent's orders, steering, and what outlives the process.

use forge_adapter_api::request::Tool;
use forge_adapter_api::result::ToolCall;
use forge_adapter_api::{SteerRequest, host};

use super::*;

fn tools(names: &[&str]) -> Vec<Tool> {
    let tool = |name: &&str| json!({"name": name, "inputSchema": {}});
    let tools = names.iter().map(tool).map(serde_json::from_value);
    tools.collect::<Result<_, _>>().unwrap()
}

fn captain(message: &str) -> ExecutionRequest {
    ExecutionRequest {
        tools: tools(&["create_spec", "create_task", "set_dag"]),
        ..request("run", message)
    }
}

/// A request of an agent with these instructions, in a workspace.
fn agent(dir: &Path, instructions: &str) -> ExecutionRequest {
    ExecutionRequest {
        workspace: Some(Workspace {
            dir: Some(dir.display().to_string()),
            id: None,
        }),
        tools: tools(&["spawn_agent", "emit_cr"]),
        ..request(
            "run",
            &format!("---\nid: a\n---\n## Instructions\n{instructions}"),
        )
    }
}

/// The next request of the session, with an answer to each call.
fn answered(
    request: &ExecutionRequest,
    ended: &ExecutionResult,
    output: &Value,
    is_error: bool,
) -> ExecutionRequest {
    let answer = |call: &ToolCall| ToolResult {
        tool_call_id: call.tool_call_id.clone(),
        name: call.name.clone(),
        output: output.clone(),
        is_error,
    };
    ExecutionRequest {
        execution_id: "dsp_next/1".to_owned(),
        message: "Continue.".to_owned(),
        session_id: ended.session_id.clone(),
        tool_results: ended.tool_calls.iter().map(answer).collect(),
        ..request.clone()
    }
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let held = tempfile::tempdir().unwrap();
    let path = held.path().canonicalize().unwrap();
    (held, path)
}

async fn output(request: ExecutionRequest) -> String {
    let (result, _) = run(request).await;
    let result = result.unwrap();
    assert_eq!(result.error_code, None, "{result:?}");
    result.output.unwrap()
}

#[tokio::test]
async fn a_plan_in_json_becomes_calls_and_anything_else_a_question() {
    for message in [
        "hello",
        "[]",
        "{\"specs\": {}}",
        "{\"say\": 1, \"tasks\": []}",
    ] {
        let (result, events) = run(captain(message)).await;
        let result = result.unwrap();
        assert_eq!(result.output.as_deref(), Some("What should I build?"));
        assert_eq!(result.session_id.as_deref(), Some("echo-dsp_sample-1"));
        assert_eq!(kinds(&events), ["assistant.text"]);
    }
    let task =
        json!({"id": "a", "title": "A", "type": 2, "dependencies": [], "instructions": "say a"});
    let merge = json!({"id": "m", "type": "refinery", "dependencies": ["a"]});
    let plan = json!({"specs": {"goal": "text"}, "tasks": [task, merge, {"id": "bare"}]});
    let first = captain(&plan.to_string());
    let (result, _) = run(first.clone()).await;
    let result = result.unwrap();
    let calls: Vec<_> = result
        .tool_calls
        .iter()
        .map(|call| (call.name.as_str(), &call.input))
        .collect();
    let dag = json!({"nodes": [
        {"id": "a", "type": "task", "agentType": 2, "dependencies": []},
        {"id": "m", "type": "refinery", "agentType": "refinery", "dependencies": ["a"]},
        {"id": "bare", "type": "task", "agentType": 1, "dependencies": []},
    ]});
    let wanted = [
        ("create_spec", &json!({"name": "goal", "content": "text"})),
        ("create_task", &task),
        ("create_task", &merge),
        ("create_task", &json!({"id": "bare"})),
        ("set_dag", &dag),
    ];
    assert_eq!(calls, wanted);
    let fine = answered(&first, &result, &json!("ok"), false);
    assert_eq!(output(fine).await, "The plan has 3 tasks.");
    let mut mixed = answered(&first, &result, &json!("ok"), false);
    for (at, fault) in [(1, "a: too long"), (4, "cycle: a, m")] {
        mixed.tool_results[at].output = json!(fault);
        mixed.tool_results[at].is_error = true;
    }
    assert_eq!(output(mixed).await, "a: too long\ncycle: a, m");
}

#[tokio::test]
async fn an_agent_obeys_the_lines_of_its_instructions() {
    let (_held, dir) = folder();
    std::fs::write(dir.join("old"), "x").unwrap();
    let orders = "Please do this:\nwrite a/b one two\nappend a/b three\nappend new first\ndelete old\nsleep 1\nsay done";
    assert_eq!(output(agent(&dir, orders)).await, "done\n");
    let read = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap();
    assert_eq!(
        (read("a/b"), read("new")),
        ("one two\nthree\n".to_owned(), "first\n".to_owned())
    );
    assert!(!dir.join("old").exists());
    for (order, code) in [
        ("write ../out x", "invalid_request"),
        ("cr {", "invalid_request"),
    ] {
        let (result, _) = run(agent(&dir, order)).await;
        assert_eq!(result.unwrap_err().code, code, "{order}");
    }
    let (result, _) = run(request("run", "write a b")).await;
    assert_eq!(result.unwrap_err().code, "invalid_request", "no workspace");
}

#[tokio::test]
async fn an_agent_fails_when_it_is_told_to_always_or_once() {
    let (_held, dir) = folder();
    let ended = async |order: &str, attempt: Value| {
        let request = ExecutionRequest {
            metadata: Some(json!({"run": {"attemptId": attempt}})),
            ..agent(&dir, &format!("say begun\n{order}\nsay more"))
        };
        let result = run(request).await.0.unwrap();
        (result.error_code, result.output.unwrap())
    };
    let failed = (Some("broken".to_owned()), "begun\n".to_owned());
    let ended_well = (None, "begun\nmore\n".to_owned());
    for (order, attempt, wanted) in [
        ("fail broken", json!(2), &failed),
        ("fail-once broken", json!(1), &failed),
        ("fail-once broken", json!("1"), &failed),
        ("fail-once broken", json!("1.2"), &failed),
        ("fail-once broken", json!("a1"), &failed),
        ("fail-once broken", Value::Null, &failed),
        ("fail-once broken", json!(2), &ended_well),
        ("fail-once broken", json!("12"), &ended_well),
    ] {
        assert_eq!(
            &ended(order, attempt.clone()).await,
            wanted,
            "{order} {attempt}"
        );
    }
}

#[tokio::test]
async fn conflicts_of_the_workspace_are_resolved_and_nothing_else_is_touched() {
    let conflict = "a\n<<<<<<< x\nours\n=======\ntheirs\n>>>>>>> y\n";
    for (side, wanted) in [
        ("ours", "a\nours\n"),
        ("theirs", "a\ntheirs\n"),
        ("both", "a\nours\ntheirs\n"),
    ] {
        let (_held, base) = beside_a_secret();
        let dir = base.join("w");
        std::fs::write(base.join("secret"), conflict).unwrap();
        std::fs::create_dir_all(dir.join("sub")).unwrap();
        std::fs::create_dir_all(dir.join(".git")).unwrap();
        for file in ["top", "sub/deep", ".git/own"] {
            std::fs::write(dir.join(file), conflict).unwrap();
        }
        std::fs::write(dir.join("bytes"), [0xff, b'\n']).unwrap();
        symlink(base.join("secret"), dir.join("link")).unwrap();
        symlink(&base, dir.join("up")).unwrap();
        let said = output(agent(&dir, &format!("resolve {side}"))).await;
        assert_eq!(said, "resolved sub/deep\nresolved top\n");
        let read = |file: &Path| std::fs::read_to_string(file).unwrap();
        assert_eq!(
            (read(&dir.join("top")), read(&dir.join("sub/deep"))),
            (wanted.to_owned(), wanted.to_owned())
        );
        assert_eq!(
            (read(&base.join("secret")), read(&dir.join(".git/own"))),
            (conflict.to_owned(), conflict.to_owned())
        );
    }
}

#[tokio::test]
async fn an_agent_continues_behind_its_calls_even_in_another_process() {
    let (_held, dir) = folder();
    let (_state, state_dir) = folder();
    let orders =
        "say one\nspawn {\"type\": 1}\nsay two\ncr {\"title\": \"t\"}\nsubtasks {}\nsay three";
    let first = agent(&dir, orders);
    for kept in [None, Some(state_dir)] {
        let host = || {
            Host::detached_with(host::Create {
                state_dir: kept.clone(),
                ..host::Create::default()
            })
        };
        let config = || Config::try_from(json!({})).unwrap();
        let mut echo = Echo::initialize(host(), config()).await.unwrap();
        let begun = echo
            .execute(first.clone(), Events::nowhere())
            .await
            .unwrap();
        assert_eq!(begun.tool_calls[0].name, "spawn_agent");
        assert_eq!(begun.tool_calls[0].input, json!({"type": 1}));
        assert_eq!(begun.output.as_deref(), Some("one\n"));
        if kept.is_some() {
            echo = Echo::initialize(host(), config()).await.unwrap();
        }
        let second = answered(&first, &begun, &json!("merged"), false);
        let continued = echo.execute(second, Events::nowhere()).await.unwrap();
        assert_eq!(continued.session_id, begun.session_id);
        assert_eq!(continued.tool_calls[0].name, "emit_cr");
        assert_ne!(
            continued.tool_calls[0].tool_call_id,
            begun.tool_calls[0].tool_call_id
        );
        let third = answered(&first, &continued, &json!({"no": 1}), true);
        let ended = echo.execute(third.clone(), Events::nowhere()).await;
        let wanted = "one\nspawn_agent: merged\ntwo\nemit_cr failed: {\"no\":1}\nset_subtasks is not offered\nthree\n";
        assert_eq!(ended.unwrap().output.as_deref(), Some(wanted));
        // The same request, after a crash before its result was recorded.
        let again = echo.execute(third.clone(), Events::nowhere()).await;
        assert_eq!(again.unwrap().output.as_deref(), Some(wanted));
        let unknown = ExecutionRequest {
            session_id: Some("unknown".to_owned()),
            ..third
        };
        let error = echo.execute(unknown, Events::nowhere()).await.unwrap_err();
        assert_eq!(error.code, "session_not_found");
    }
}

/// An execution that is interrupted in any line continues there, and appends nothing twice.
#[tokio::test]
async fn an_interrupted_agent_continues_its_session() {
    let (_held, dir) = folder();
    let orders = "append a.txt one\nawait first\nappend a.txt two\nawait second\nsay end";
    let first = agent(&dir, orders);
    let echo = echo(json!({})).await;
    for (file, wanted) in [("first", "one\n"), ("second", "one\ntwo\n")] {
        let request = match file {
            "first" => first.clone(),
            _ => ExecutionRequest {
                resume: true,
                ..first.clone()
            },
        };
        let request = ExecutionRequest {
            session_id: Some("s".to_owned()),
            ..request
        };
        let interrupted = tokio::time::timeout(
            Duration::from_millis(300),
            echo.execute(request, Events::nowhere()),
        );
        assert!(interrupted.await.is_err(), "{file}");
        assert_eq!(std::fs::read_to_string(dir.join("a.txt")).unwrap(), wanted);
        std::fs::write(dir.join(file), "").unwrap();
    }
    let last = ExecutionRequest {
        resume: true,
        session_id: Some("s".to_owned()),
        ..first
    };
    let ended = echo.execute(last, Events::nowhere()).await.unwrap();
    assert_eq!(ended.output.as_deref(), Some("end\n"));
    assert_eq!(
        std::fs::read_to_string(dir.join("a.txt")).unwrap(),
        "one\ntwo\n"
    );
}

#[tokio::test]
async fn a_message_ends_what_an_agent_waits_for() {
    let (_held, dir) = folder();
    let echo = echo(json!({})).await;
    let steer = |id: &str| SteerRequest {
        execution_id: id.to_owned(),
        task_id: "task-sample".to_owned(),
        message: "wrap up".to_owned(),
    };
    for order in ["hang", "sleep 600000"] {
        let request = agent(&dir, &format!("say begun\n{order}\nsay never"));
        let (events, mut received) = Events::channel(10);
        let id = request.execution_id.clone();
        let acting = async {
            received.recv().await.unwrap();
            assert!(!echo.steer(steer("dsp_other/1")).await.unwrap());
            assert!(echo.steer(steer(&id)).await.unwrap());
            drain(&mut received)
        };
        let (result, events) = tokio::join!(echo.execute(request, events), acting);
        assert_eq!(
            result.unwrap().output.as_deref(),
            Some("begun\nsteered: wrap up\n")
        );
        assert!(kinds(&events).iter().all(|kind| *kind == "assistant.text"));
        assert!(!echo.steer(steer(&id)).await.unwrap(), "it has ended");
    }
}

#[tokio::test]
async fn a_cancel_ends_an_agent_that_hangs() {
    let (_held, dir) = folder();
    let echo = echo(json!({})).await;
    let request = agent(&dir, "say begun\nhang");
    let (events, mut received) = Events::channel(10);
    let cancelling = async {
        received.recv().await.unwrap();
        assert!(echo.cancel("task-sample").await.unwrap());
    };
    let (result, ()) = tokio::join!(echo.execute(request, events), cancelling);
    assert_eq!(result.unwrap_err().code, "cancelled");
}
