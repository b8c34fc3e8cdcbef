//! Failures of the provider behind the graph, the graph and the server; timeouts and cancellation.

use std::time::Duration;

use forge_adapter_api::{
    AdapterEvent, Events, ExecutionAdapter as _, ExecutionRequest, HealthStatus, Usage,
};
use forge_test_model::Model;
use forge_test_support::execution::{run, run_until};
use serde_json::json;

use crate::bench::{self, Bench, in_session, paths, request, until, used};

#[tokio::test]
async fn what_the_provider_behind_the_graph_refuses_has_a_code() {
    let bench = Bench::new().await;
    let cases = [
        (400, "invalid_request", false),
        (401, "unauthenticated", false),
        (429, "rate_limited", true),
        (529, "upstream_error", true),
    ];
    for (status, code, retryable) in cases {
        let ran = bench.say(&format!("FAIL{status} now")).await;
        ran.failed(code);
        assert_eq!(ran.result.retryable, Some(retryable), "{status}");
        assert_eq!(ran.result.usage, Usage::default(), "no usage reported");
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_or_blocked_is_no_success_and_keeps_its_text() {
    let bench = Bench::new().await;
    for (message, code) in [
        ("LENGTHEND please", "max_tokens"),
        ("FILTEREND please", "blocked_by_policy"),
    ] {
        let ran = bench.say(message).await;
        ran.failed(code);
        assert_eq!(ran.output(), format!("pong: {message}"));
        used(&ran, 1);
    }
    let away = Bench::with(json!({"configurable": {"model_url": "http://127.0.0.1:9"}})).await;
    let ran = away.say("hello").await;
    ran.failed("upstream_unreachable");
    assert_eq!(ran.result.retryable, Some(true));
}

#[tokio::test]
async fn an_update_can_be_as_large_as_an_output() {
    let ran = Bench::new().await.say("HUGE please").await;
    assert_eq!(ran.succeeded().len(), 6 << 20);
}

#[tokio::test]
async fn what_fails_in_the_graph_is_told() {
    let bench = Bench::with(json!({"recursion_limit": 4})).await;
    let crashed = bench.say("CRASH").await;
    crashed.failed("adapter_error");
    assert_eq!(
        crashed.result.error.as_deref(),
        Some("ValueError: the graph failed")
    );
    let looping = bench.say("LOOP").await;
    looping.failed("max_turns");
    let usage = looping.result.usage;
    assert!(
        usage.output_tokens > Some(9),
        "it was not for nothing: {usage:?}"
    );
}

#[tokio::test]
async fn what_the_server_refuses_is_told() {
    let bench = Bench::with(json!({"assistant": "absent"})).await;
    let ran = bench.say("hello").await;
    ran.failed("invalid_request");
    assert!(ran.result.error.unwrap().contains("agent, shop"));
    let odd = ExecutionRequest {
        metadata: Some(json!({"langgraph": {"asistantId": "x"}})),
        ..request("hello")
    };
    let ran = bench.run(odd).await;
    ran.failed("invalid_request");
    assert!(ran.result.error.unwrap().contains("asistantId"));
}

#[tokio::test]
async fn a_cancel_keeps_what_was_said_and_the_thread() {
    let bench = Bench::new().await;
    let slow = in_session("interrupted", "SLOW please");
    let ran = run_until(&bench.adapter, slow, "assistant.text", async || {
        assert!(bench.adapter.cancel("task-1").await.unwrap());
    })
    .await;
    ran.failed("cancelled");
    assert!(ran.output().starts_with("tick000"), "{:?}", ran.result);
    let (thread, run) = paths(&ran);
    assert_eq!(bench.get(&run).await.unwrap()["status"], "interrupted");
    let state = bench.get(&format!("{thread}/state")).await.unwrap();
    assert_eq!(state["values"]["messages"][0]["content"], "SLOW please");
    assert!(
        !bench.adapter.cancel("task-1").await.unwrap(),
        "nothing runs any more"
    );

    let next = bench.say_in("interrupted", "and now?").await;
    next.succeeded();
    assert_eq!(next.output(), "pong: and now?");
    used(&next, 1);
}

#[tokio::test]
async fn a_cancel_with_rollback_leaves_nothing_in_the_thread() {
    let bench = Bench::with(json!({"on_cancel": "rollback"})).await;
    bench
        .say_in("rolled back", "my word is plum")
        .await
        .succeeded();
    let slow = in_session("rolled back", "SLOW please");
    let ran = run_until(&bench.adapter, slow, "assistant.text", async || {
        assert!(bench.adapter.cancel("task-1").await.unwrap());
    })
    .await;
    ran.failed("cancelled");
    assert!(ran.output().starts_with("tick000"), "{:?}", ran.result);
    let (thread, run) = paths(&ran);
    assert!(bench.get(&run).await.is_none(), "the run is gone");
    let state = bench.get(&format!("{thread}/state")).await.unwrap();
    let messages = state["values"]["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 2, "{state}");
}

#[tokio::test]
async fn a_run_whose_time_is_up_is_ended_at_the_server_too() {
    let bench = Bench::new().await;
    let (events, mut received) = Events::channel(1_000);
    let execution = bench.adapter.execute(request("HANG please"), events);
    let mut known: Option<AdapterEvent> = None;
    {
        // Drop at the end of this scope, as by the bridge.
        let mut execution = Box::pin(execution);
        while known.is_none() {
            tokio::select! {
                result = &mut execution => panic!("{result:?}"),
                event = received.recv() => known = event,
            }
        }
    }
    let known = known.unwrap().data.unwrap();
    let path = format!(
        "/threads/{}/runs/{}",
        known["threadId"].as_str().unwrap(),
        known["runId"].as_str().unwrap()
    );
    until("the end of the run", async || {
        let run = bench.get(&path).await.unwrap();
        (run["status"] == "interrupted").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_busy_thread_is_told_and_nothing_is_lost() {
    let bench = Bench::new().await;
    let slow = in_session("busy", "SLOW please");
    let ran = run_until(&bench.adapter, slow, "assistant.text", async || {
        let other = ExecutionRequest {
            task_id: "task-2".to_owned(),
            ..in_session("busy", "hello")
        };
        let other = bench.run(other).await;
        other.failed("session_busy");
        assert_eq!(other.result.retryable, Some(true));
        assert!(bench.adapter.cancel("task-1").await.unwrap());
    })
    .await;
    ran.failed("cancelled");
}

#[tokio::test]
async fn a_server_that_is_killed_is_told_and_is_offline() {
    let mut server = forge_test_runtimes::langgraph("http://127.0.0.1:9");
    let model = Model::start().await;
    let mut config = bench::config(server.url(), model.url());
    config["reconnects"] = 2.into();
    let adapter = bench::adapter(config).await;
    assert_eq!(adapter.check_health().await.status, HealthStatus::Healthy);
    let ran = run_until(
        &adapter,
        request("SLOW please"),
        "assistant.text",
        async || {
            server.kill();
        },
    )
    .await;
    ran.failed("upstream_error");
    assert_eq!(ran.result.retryable, Some(true));
    assert!(ran.output().starts_with("tick000"), "{:?}", ran.result);
    let health = adapter.check_health().await;
    assert_eq!(health.status, HealthStatus::Offline);
    assert!(health.message.unwrap().contains("langgraph dev"));
    let next = tokio::time::timeout(Duration::from_secs(5), run(&adapter, request("hello")));
    next.await.unwrap().failed("upstream_error");
}
