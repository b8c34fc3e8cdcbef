//! Answers, sessions, workspaces and tools.

use forge_adapter_api::request::Workspace;
use forge_adapter_api::{ExecutionRequest, OutputStrategy};
use serde_json::json;

use crate::bench::{Bench, asked, request, used};

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_streams_with_usage_and_cost() {
    let bench = Bench::new().await;
    let ran = bench
        .run(ExecutionRequest {
            system_prompt: Some("Speak like a plum.".to_owned()),
            ..request("dsp_streams", "hello streams")
        })
        .await;
    assert!(ran.succeeded().starts_with("pong: "), "{:?}", ran.result);
    assert_eq!(ran.text(), ran.output());
    used(&ran, 1);
    assert_eq!(ran.result.model.as_deref(), Some("fake-1"));
    assert_eq!(ran.result.model_provider.as_deref(), Some("fake"));
    let known = ran.all("session.updated")[0];
    assert_eq!(known["sessionKey"], "agent:main:dsp_streams");
    let asked = asked("hello streams");
    assert_eq!(asked.len(), 1);
    assert!(asked[0].body.to_string().contains("Speak like a plum."));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_continues_and_counts_only_the_new_run() {
    let bench = Bench::new().await;
    let first = bench.say("dsp_first", "my word is plum").await;
    first.succeeded();
    let second = bench
        .run(ExecutionRequest {
            session_id: first.result.session_id.clone(),
            ..request("dsp_second", "what was it in the second turn")
        })
        .await;
    second.succeeded();
    used(&second, 1);
    assert_eq!(second.result.session_id, first.result.session_id);
    let sent = asked("in the second turn").pop().unwrap();
    assert!(
        sent.body["messages"]
            .to_string()
            .contains("my word is plum")
    );
    let odd = ExecutionRequest {
        session_id: Some("Any name: will do!".to_owned()),
        ..request("dsp_odd", "hello")
    };
    let odd = bench.run(odd).await;
    odd.succeeded();
    assert_eq!(odd.result.session_id.as_deref(), Some("Any name: will do!"));
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_work_in_the_workspace_of_the_dispatch() {
    let bench = Bench::new().await;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().canonicalize().unwrap();
    let ran = bench
        .run(ExecutionRequest {
            workspace: Some(Workspace {
                dir: Some(dir.to_str().unwrap().to_owned()),
                id: None,
            }),
            output_strategy: OutputStrategy::File,
            output_file: Some("answer.md".to_owned()),
            ..request(
                "dsp_tools",
                r#"CALL write {"path": "answer.md", "content": "42"}"#,
            )
        })
        .await;
    ran.succeeded();
    used(&ran, 2);
    assert_eq!(
        std::fs::read_to_string(dir.join("answer.md")).unwrap(),
        "42"
    );
    let (invoked, completed) = (ran.all("tool.invoked"), ran.all("tool.completed"));
    assert_eq!((invoked.len(), completed.len()), (1, 1), "{:?}", ran.events);
    assert_eq!(invoked[0]["name"], "write");
    assert_eq!(
        invoked[0]["input"],
        json!({"path": "answer.md", "content": "42"})
    );
    assert_eq!(completed[0]["toolCallId"], invoked[0]["toolCallId"]);
    assert_eq!(completed[0]["isError"], false);
    assert!(!asked("Write the final result of your work to the file `answer.md`").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_attempt_joins_the_run_that_went_on() {
    let bench = Bench::new().await;
    let other = Bench::new().await;
    let slow = || {
        request(
            "dsp_joined",
            r#"CALL exec {"command": "echo joined; sleep 3"}"#,
        )
    };
    let second = async {
        crate::bench::until("the run", async || {
            (!asked("echo joined").is_empty()).then_some(())
        })
        .await;
        let again = ExecutionRequest {
            execution_id: "dsp_joined/2".to_owned(),
            attempt: 2,
            ..slow()
        };
        other.run(again).await
    };
    let (first, second) = tokio::join!(bench.run(slow()), second);
    for ran in [&first, &second] {
        assert!(ran.succeeded().contains("joined"), "{:?}", ran.result);
        used(ran, 2);
    }
    assert_eq!(asked("echo joined").len(), 2, "one run of two calls");
    let third = ExecutionRequest {
        execution_id: "dsp_joined/3".to_owned(),
        attempt: 3,
        ..slow()
    };
    let third = other.run(third).await;
    assert_eq!(third.succeeded(), first.output());
    assert_eq!(asked("echo joined").len(), 2);
}
