//! Steering: further messages of the user in a running turn, and behind it.

use std::time::Duration;

use forge_adapter_api::{ExecutionAdapter as _, SteerRequest};
use serde_json::{Value, json};

use crate::bench::{Bench, used};

fn wrap_up(execution_id: &str) -> SteerRequest {
    SteerRequest {
        execution_id: execution_id.to_owned(),
        task_id: "task-1".to_owned(),
        message: "please wrap up".to_owned(),
    }
}

/// Last message of the user in a request to the model.
fn last_message(body: &Value) -> String {
    body["messages"]
        .as_array()
        .unwrap()
        .last()
        .unwrap()
        .to_string()
}

#[tokio::test]
async fn a_message_reaches_the_model_beside_the_next_tool_result() {
    let bench = Bench::with(json!({"allowed_tools": ["Bash(sleep:*)"]})).await;
    let request = bench.request("CALL Bash {\"command\":\"sleep 2\",\"description\":\"d\"}");
    let ran = bench
        .run_until(request, "tool.invoked", async || {
            assert!(bench.adapter.steer(wrap_up("dsp_1/1")).await.unwrap());
            assert!(!bench.adapter.steer(wrap_up("dsp_2/1")).await.unwrap());
        })
        .await;
    ran.succeeded();
    used(&ran, 2);
    let asked = bench.model.requests();
    assert!(!last_message(&asked[0].body).contains("please wrap up"));
    let second = last_message(&asked[1].body);
    assert!(second.contains("tool_result"), "{second}");
    assert!(second.contains("please wrap up"), "{second}");
    let texts = ran.all("user.text");
    assert_eq!(texts[0]["text"], "please wrap up");
    assert!(
        !bench.adapter.steer(wrap_up("dsp_1/1")).await.unwrap(),
        "it has ended"
    );
}

#[tokio::test]
async fn a_message_after_the_last_call_is_answered_by_a_turn_of_its_own() {
    let bench = Bench::new().await;
    let ran = bench
        .run_until(bench.request("SLOW please"), "assistant.text", async || {
            assert!(bench.adapter.steer(wrap_up("dsp_1/1")).await.unwrap());
        })
        .await;
    ran.succeeded();
    used(&ran, 2);
    assert_eq!(ran.output(), "pong: please wrap up");
}

#[tokio::test]
async fn a_message_in_the_moment_of_the_end_is_answered_or_refused() {
    let bench = Bench::new().await;
    for pause_ms in [0, 2, 5, 10, 20, 40] {
        let asked = bench.model.requests().len();
        let mut steered = false;
        let ran = bench
            .run_until(bench.request("hello"), "usage", async || {
                tokio::time::sleep(Duration::from_millis(pause_ms)).await;
                steered = bench.adapter.steer(wrap_up("dsp_1/1")).await.unwrap();
            })
            .await;
        ran.succeeded();
        let wanted = if steered {
            "pong: please wrap up"
        } else {
            "pong: hello"
        };
        assert_eq!(ran.output(), wanted, "{pause_ms} ms");
        let asked = &bench.model.requests()[asked..];
        let seen = asked
            .iter()
            .any(|request| last_message(&request.body).contains("please wrap up"));
        assert_eq!(seen, steered, "{pause_ms} ms");
    }
}
