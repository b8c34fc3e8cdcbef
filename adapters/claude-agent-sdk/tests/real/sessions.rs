//! Sessions over several runs.

use serde_json::json;

use crate::bench::{Bench, used};

#[tokio::test]
async fn a_resumed_session_keeps_its_id_its_history_and_bills_only_its_own_turn() {
    let bench = Bench::new().await;
    let first = bench.say("my word is plum").await;
    let mut request = bench.request("what is it?");
    request.session_id.clone_from(&first.result.session_id);

    let second = bench.run(request).await;

    second.succeeded();
    used(&second, 1);
    assert_eq!(second.result.session_id, first.result.session_id);
    let asked = bench.model.requests().pop().unwrap();
    assert!(
        asked.body["messages"]
            .to_string()
            .contains("my word is plum")
    );
}

#[tokio::test]
async fn a_fork_has_the_history_and_an_id_of_its_own() {
    let bench = Bench::new().await;
    let first = bench.say("my word is plum").await;
    let mut request = bench.request("what is it?");
    request.session_id.clone_from(&first.result.session_id);
    request.metadata = Some(json!({"claude-agent-sdk": {"forkSession": true}}));

    let fork = bench.run(request).await;

    fork.succeeded();
    used(&fork, 1);
    assert_ne!(fork.result.session_id, first.result.session_id);
    let asked = bench.model.requests().pop().unwrap();
    assert!(
        asked.body["messages"]
            .to_string()
            .contains("my word is plum")
    );
}

#[tokio::test]
async fn an_unknown_session_is_told_unless_a_crashed_attempt_left_none() {
    let bench = Bench::new().await;
    let mut request = bench.request("hello");
    request.session_id = Some("00000000-0000-4000-8000-000000000000".to_owned());
    let unknown = bench.run(request.clone()).await;
    unknown.failed("session_not_found");

    request.resume = true;
    let ran = bench.run(request).await;
    ran.succeeded();
    assert_eq!(ran.output(), "pong: hello");
}

#[tokio::test]
async fn an_interrupted_attempt_is_gone_on_with() {
    let bench = Bench::new().await;
    let first = bench.say("count the plums").await;
    let mut request = bench.request("count the plums");
    request.session_id.clone_from(&first.result.session_id);
    request.resume = true;
    bench.run(request).await.succeeded();
    let asked = bench.model.requests().pop().unwrap().body["messages"].to_string();
    assert!(asked.contains("Go on where you stopped"));
    assert!(asked.matches("count the plums").count() >= 2);
}

#[tokio::test]
async fn a_session_id_cannot_be_an_option_of_the_program() {
    let bench = Bench::new().await;
    let mut request = bench.request("hello");
    request.session_id = Some("--dangerously-skip-permissions".to_owned());
    let ran = bench.run(request).await;
    assert!(ran.result.error_code.is_some());
    assert!(bench.model.requests().is_empty());
}
