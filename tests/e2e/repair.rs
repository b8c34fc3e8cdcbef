//! `outputSchema` with an adapter that has no structured output: the instruction, the repair turn, and crashes in it.

use serde_json::{Value, json};

use super::harness::api::{quiet, with};
use super::harness::process::Home;
use super::harness::{Answer, Bridge, CallbackSink, until};

/// A server of the adapter `http` that gives these answers one after another, then the last one again.
async fn server(answers: Vec<Value>) -> CallbackSink {
    let server = CallbackSink::start().await;
    server.answer_with(move |request| {
        if request.method != "POST" {
            return Answer::status(204);
        }
        let asked: Value = serde_json::from_slice(&request.body).unwrap();
        let is_repair = asked["message"].as_str().unwrap().contains("is not valid");
        answers[usize::from(is_repair)].clone().into_answer()
    });
    server
}

trait IntoAnswer {
    fn into_answer(self) -> Answer;
}

impl IntoAnswer for Value {
    fn into_answer(self) -> Answer {
        if self.is_null() {
            return Answer::hang();
        }
        Answer::status(200)
            .header("content-type", "application/json")
            .body(self.to_string())
    }
}

fn table(server: &CallbackSink) -> String {
    let url = server.url("/run");
    format!("[adapters.custom]\nlibrary = \"http\"\nurl = \"{url}\"\n")
}

/// Requests for executions that the server has received.
fn asked(server: &CallbackSink) -> Vec<Value> {
    let received = server.received();
    let posts = received.iter().filter(|request| request.method == "POST");
    posts
        .map(|request| serde_json::from_slice(&request.body).unwrap())
        .collect()
}

fn dispatch(task: &str) -> Value {
    let schema =
        json!({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}});
    with(
        quiet(task, "m"),
        &json!({"systemPrompt": "Be brief.", "outputSchema": schema}),
    )
}

#[tokio::test]
async fn an_answer_that_does_not_follow_the_schema_is_repaired_once() {
    let wrong =
        json!({"status": "ok", "output": "n is 1", "sessionId": "s", "usage": {"outputTokens": 3}});
    let right = json!({"status": "ok", "output": "{\"n\": 1}", "sessionId": "s", "usage": {"outputTokens": 4}});
    let alone = json!({"status": "ok", "output": "n is 1"});
    let broken =
        json!({"status": "error", "errorCode": "rate_limited", "usage": {"outputTokens": 5}});
    for (answers, requests, code, output, tokens) in [
        (
            vec![right.clone(), right.clone()],
            1,
            None,
            "{\"n\": 1}",
            json!(4),
        ),
        (
            vec![wrong.clone(), right.clone()],
            2,
            None,
            "{\"n\": 1}",
            json!(7),
        ),
        (
            vec![wrong.clone(), wrong.clone()],
            2,
            Some("output_invalid"),
            "n is 1",
            json!(6),
        ),
        (
            vec![wrong.clone(), broken],
            2,
            Some("output_invalid"),
            "n is 1",
            json!(8),
        ),
        // Without a session there is nothing to continue.
        (
            vec![alone, right.clone()],
            1,
            Some("output_invalid"),
            "n is 1",
            json!(null),
        ),
    ] {
        let server = server(answers.clone()).await;
        let bridge = Bridge::configured(&table(&server), &[("BRIDGE_ADAPTERS", "custom")]).await;
        let result = bridge.api.run(dispatch("t")).await;
        assert_eq!(result["errorCode"].as_str(), code, "{answers:?}: {result}");
        assert_eq!(result["output"], output, "{answers:?}: {result}");
        assert_eq!(
            result["usage"]["outputTokens"], tokens,
            "{answers:?}: {result}"
        );
        assert_eq!(
            result["structuredOutput"].is_object(),
            code.is_none(),
            "{result}"
        );
        let asked = asked(&server);
        assert_eq!(asked.len(), requests, "{answers:?}");
        let prompt = asked[0]["systemPrompt"].as_str().unwrap();
        assert!(
            prompt.starts_with("Be brief.\n\nAnswer with one JSON value"),
            "{prompt}"
        );
        assert!(prompt.contains("\"required\":[\"n\"]"), "{prompt}");
        if let Some(repair) = asked.get(1) {
            assert_eq!(repair["sessionId"], "s");
            let message = repair["message"].as_str().unwrap();
            assert!(message.contains("the output is not JSON"), "{message}");
        }
        bridge.stop().await;
    }
}

#[tokio::test]
async fn killed_in_the_repair_turn_the_attempt_is_interrupted_or_repeated_as_a_whole() {
    let wrong = json!({"status": "ok", "output": "n is 1", "sessionId": "s"});
    let right = json!({"status": "ok", "output": "{\"n\": 1}", "sessionId": "s"});
    let there = server(vec![wrong.clone(), Value::Null]).await;
    let mut home = Home::new(&[("BRIDGE_ADAPTERS", "custom")]);
    let file = home.dir.path().join("forge-bridge.toml");
    std::fs::write(&file, table(&there)).unwrap();
    home.set("BRIDGE_CONFIG", file.to_str().unwrap());
    let process = home.start();
    let mut ids = Vec::new();
    for policy in ["fail", "retry"] {
        let body = with(dispatch(policy), &json!({"recovery": policy}));
        ids.push(process.api.dispatch(body).await);
    }
    until("both repair turns to begin", || async {
        (asked(&there).len() == 4).then_some(())
    })
    .await;
    process.kill();

    there.answer_with(move |request| {
        let repair = String::from_utf8_lossy(&request.body).contains("is not valid");
        if repair { right.clone() } else { wrong.clone() }.into_answer()
    });
    let process = home.start();
    let failed = process.api.finished(&ids[0]).await;
    assert_eq!(failed["result"]["errorCode"], "interrupted", "{failed}");
    let repeated = process.api.finished(&ids[1]).await;
    assert_eq!(
        repeated["result"]["structuredOutput"],
        json!({"n": 1}),
        "{repeated}"
    );
    assert_eq!(repeated["attempt"], 2);
    let asked = asked(&there);
    assert_eq!(
        asked.len(),
        6,
        "one turn and one repair in each attempt: {asked:?}"
    );
}
