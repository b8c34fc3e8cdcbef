//! Recovery: the real program is killed at each step and restarted, and no accepted dispatch is lost.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{JsonBody, owed, quiet, with};
use super::harness::process::{Home, Process};
use super::harness::{Answer, Bridge, CallbackSink, until};

/// Results in the received callbacks.
fn results(sink: &CallbackSink) -> Vec<Value> {
    let received = sink.received();
    received
        .iter()
        .map(|request| serde_json::from_slice(&request.body).unwrap())
        .collect()
}

async fn running(process: &Process, id: &str) {
    until("the execution to begin", || async {
        let (_, record) = process.api.get(&format!("/api/v2/dispatch/{id}")).await;
        (record["status"] == "running").then_some(())
    })
    .await;
}

#[tokio::test]
async fn killed_before_the_execution_it_runs_after_the_restart() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&[("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", "1")]);
    let bridge = home.start();
    let busy = bridge.api.dispatch(quiet("busy", "slow:60000")).await;
    running(&bridge, &busy).await;
    bridge
        .api
        .dispatch(owed("waiting", "ok", &sink.url("/cb")))
        .await;
    bridge.kill();

    let bridge = home.start();
    sink.until(1).await;
    let result = &results(&sink)[0];
    assert_eq!(result["status"], "ok", "{result}");
    assert_eq!(result["taskId"], "waiting");
    assert_eq!(result["attempt"], 1);
    let busy = bridge.api.finished(&busy).await;
    assert_eq!(busy["result"]["errorCode"], "interrupted", "{busy}");
}

#[tokio::test]
async fn killed_during_the_execution_each_policy_does_what_it_says() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&[]);
    let bridge = home.start();
    let mut ids = Vec::new();
    for policy in ["fail", "retry", "resume"] {
        let body = owed(policy, "slow:1500", &sink.url(&format!("/{policy}")));
        let id = bridge
            .api
            .dispatch(with(body, &json!({"recovery": policy})))
            .await;
        running(&bridge, &id).await;
        ids.push(id);
    }
    bridge.kill();

    let bridge = home.start();
    for (id, (policy, code, attempt)) in ids.iter().zip([
        ("fail", json!("interrupted"), 1),
        ("retry", Value::Null, 2),
        ("resume", Value::Null, 2),
    ]) {
        let record = bridge.api.finished(id).await;
        let result = &record["result"];
        assert_eq!(result["errorCode"], code, "{policy}: {record}");
        assert_eq!(result["attempt"], attempt, "{policy}: {record}");
        let attempts = record["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), attempt, "{policy}: {record}");
        let (first, last) = (&attempts[0], &attempts[attempt - 1]);
        assert_eq!(first["startedAt"], record["startedAt"], "{record}");
        assert_eq!(last["endedAt"], record["finishedAt"], "{record}");
        let reason = first["retriedBecause"].as_str();
        assert_eq!(reason.is_some(), attempt == 2, "{policy}: {record}");
    }
    sink.until(3).await;
    assert_eq!(results(&sink).len(), 3);
}

#[tokio::test]
async fn killed_between_result_and_callback_it_delivers_after_the_restart() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(503));
    let home = Home::new(&[]);
    let bridge = home.start();
    let id = bridge.api.dispatch(owed("t", "ok", &sink.url("/cb"))).await;
    bridge.api.finished(&id).await;
    sink.until(1).await;
    bridge.kill();

    sink.answer(Answer::status(200));
    let bridge = home.start();
    delivered(&bridge, &id).await;
    let received = sink.received();
    let ids: Vec<_> = received
        .iter()
        .map(|request| &request.headers["webhook-id"])
        .collect();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{ids:?}");
    let bodies: Vec<_> = received.iter().map(|request| &request.body).collect();
    assert!(
        bodies.windows(2).all(|pair| pair[0] == pair[1]),
        "one result, the same each time"
    );
}

#[tokio::test]
async fn killed_during_a_callback_attempt_it_tries_again() {
    let sink = CallbackSink::start().await;
    sink.script(vec![Answer::hang(), Answer::status(200)]);
    let home = Home::new(&[]);
    let bridge = home.start();
    let id = bridge.api.dispatch(owed("t", "ok", &sink.url("/cb"))).await;
    sink.until(1).await;
    bridge.kill();

    let bridge = home.start();
    delivered(&bridge, &id).await;
    let received = sink.received();
    assert_eq!(received.len(), 2);
    assert_eq!(
        received[0].headers["webhook-id"],
        received[1].headers["webhook-id"]
    );
    assert_eq!(received[0].body, received[1].body);
}

#[tokio::test]
async fn what_kills_the_process_is_tried_three_times_and_the_rest_is_served() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&[]);
    let bridge = home.start();
    let crash = owed("crash", "crash", &sink.url("/crash"));
    let innocent = owed("innocent", "slow:1000", &sink.url("/innocent"));
    bridge
        .api
        .dispatch(with(innocent, &json!({"recovery": "retry"})))
        .await;
    let crash = with(crash, &json!({"recovery": "retry"}));
    let crash = bridge
        .api
        .request(Method::POST, "/api/v2/dispatch")
        .json_body(&crash);
    // The bridge can die before it answers.
    let _ = crash.send().await;
    bridge.wait();
    for _ in 0..2 {
        // The bridge crashes by itself, during this start or afterwards.
        home.run_to_its_end();
    }

    let bridge = home.start();
    let record = bridge.api.finished("crash").await;
    assert_eq!(record["result"]["errorCode"], "interrupted", "{record}");
    assert_eq!(record["result"]["attempt"], 3, "{record}");
    sink.until(2).await;
    let (status, record) = bridge.api.get("/api/v2/dispatch/innocent?wait=30").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(record["result"]["status"], "ok", "{record}");
    let crashes: Vec<_> = results(&sink)
        .into_iter()
        .filter(|result| result["taskId"] == "crash")
        .collect();
    assert_eq!(crashes.len(), 1, "{crashes:?}");
}

#[tokio::test]
async fn a_cancel_that_was_answered_holds_after_a_kill() {
    let home = Home::new(&[]);
    let bridge = home.start();
    let body = with(quiet("t", "hang"), &json!({"recovery": "retry"}));
    let id = bridge.api.dispatch(body).await;
    running(&bridge, &id).await;
    let (_, answer) = bridge
        .api
        .post(&format!("/api/v2/dispatch/{id}/cancel"), &json!({}))
        .await;
    assert_eq!(answer["cancelled"], true);
    bridge.kill();

    let bridge = home.start();
    let record = bridge.api.finished(&id).await;
    assert_eq!(record["result"]["errorCode"], "cancelled", "{record}");
}

#[tokio::test]
async fn sigterm_stops_what_runs_as_its_policy_says() {
    let home = Home::new(&[("BRIDGE_DRAIN_GRACE", "1s")]);
    let bridge = home.start();
    let fail = bridge.api.dispatch(quiet("fail", "slow:60000")).await;
    let body = with(quiet("retry", "slow:2000"), &json!({"recovery": "retry"}));
    let retry = bridge.api.dispatch(body).await;
    running(&bridge, &fail).await;
    running(&bridge, &retry).await;
    bridge.terminate();
    assert!(bridge.wait().success());

    let bridge = home.start();
    let record = bridge.api.finished(&fail).await;
    assert_eq!(record["result"]["errorCode"], "interrupted", "{record}");
    let record = bridge.api.finished(&retry).await;
    assert_eq!(record["result"]["status"], "ok", "{record}");
    assert_eq!(record["result"]["attempt"], 2, "{record}");
}

#[tokio::test]
async fn a_stop_counts_as_an_attempt() {
    let variables = [
        ("BRIDGE_DRAIN_GRACE", "50ms"),
        ("BRIDGE_DISPATCH_MAX_ATTEMPTS", "2"),
    ];
    let mut bridge = Bridge::with(&variables).await;
    let body = with(quiet("t", "slow:60000"), &json!({"recovery": "retry"}));
    let id = bridge.api.dispatch(body).await;
    for attempt in 1..=2 {
        bridge.api.running(&id).await;
        assert_eq!(bridge.api.record(&id).await["attempt"], attempt);
        bridge = bridge.restarted("", &variables).await;
    }
    let record = bridge.api.finished(&id).await;
    assert_eq!(record["result"]["errorCode"], "interrupted", "{record}");
    assert_eq!(record["result"]["attempt"], 2);
    let events = bridge.api.events(&id).await;
    let again = events
        .iter()
        .filter(|event| event["type"] == "execution.retrying")
        .count();
    assert_eq!(again, 1);
    bridge.stop().await;
}

async fn delivered(process: &Process, id: &str) {
    until("the delivery", || async {
        let (_, record) = process.api.get(&format!("/api/v2/dispatch/{id}")).await;
        (record["deliveries"][0]["status"] == "delivered").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_record_that_cannot_be_read_ends_with_a_clear_result_and_delays_no_other() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&[("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", "1")]);
    let bridge = home.start();
    let ran = bridge
        .api
        .dispatch(owed("ran", "slow:60000", &sink.url("/cb")))
        .await;
    running(&bridge, &ran).await;
    let later = bridge
        .api
        .dispatch(owed("later", "ok", &sink.url("/cb")))
        .await;
    let broken = bridge.api.dispatch(quiet("broken", "ok")).await;
    let sound = bridge.api.dispatch(quiet("sound", "ok")).await;
    bridge.kill();

    damage(
        &home,
        "request = '{\"fromLater\": true}'",
        &["ran", "later"],
    );
    damage(
        &home,
        "request = '{\"message\": ', routing = '?'",
        &["broken"],
    );
    let bridge = home.start();
    for id in [&ran, &later, &broken] {
        let record = bridge.api.finished(id).await;
        assert_eq!(record["errorCode"], "record_unreadable", "{record}");
        assert_eq!(record["result"]["taskId"], record["taskId"], "{record}");
        let text = record["result"]["error"].as_str().unwrap();
        assert!(text.contains("cannot be read"), "{text}");
        assert!(
            home.log()
                .contains(&format!("request of {id} cannot be read"))
        );
    }
    assert_eq!(bridge.api.finished(&sound).await["result"]["status"], "ok");
    sink.until(2).await;

    // A damaged result is not a failure of the store, and not worth a retry.
    bridge.kill();
    damage_result(&home, "sound");
    let bridge = home.start();
    let (status, body) = bridge.api.get(&format!("/api/v2/dispatch/{sound}")).await;
    assert_eq!(
        (status, &body["code"]),
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            &json!("RECORD_UNREADABLE")
        )
    );
    assert_eq!(bridge.api.run(quiet("after", "ok")).await["status"], "ok");
}

fn database(home: &Home) -> rusqlite::Connection {
    let folder = &home.variables["BRIDGE_DATA_DIR"];
    rusqlite::Connection::open(format!("{folder}/bridge.db")).unwrap()
}

fn damage(home: &Home, change: &str, tasks: &[&str]) {
    for task in tasks {
        let dispatch = format!("(SELECT seq FROM dispatch WHERE task_id = '{task}')");
        let sql = format!("UPDATE body SET {change} WHERE dispatch = {dispatch}");
        assert_eq!(database(home).execute(&sql, []).unwrap(), 1);
    }
}

fn damage_result(home: &Home, task: &str) {
    let sql = format!(
        "UPDATE result SET body = '{{' WHERE dispatch = (SELECT seq FROM dispatch WHERE task_id = '{task}')"
    );
    assert_eq!(database(home).execute(&sql, []).unwrap(), 1);
}

#[tokio::test]
async fn an_agent_that_waits_for_a_tool_result_continues_after_a_kill() {
    let home = Home::new(&[]);
    let bridge = home.start();
    let tools = json!([{"name": "spawn_agent", "inputSchema": {"type": "object"}}]);
    let orders = "say one\nspawn {\"type\": 1}\nsay two";
    let begin = json!({"message": orders, "tools": tools});
    let id = bridge
        .api
        .dispatch(with(quiet("begin", "run"), &begin))
        .await;
    let waiting = bridge.api.finished(&id).await["result"].clone();
    assert_eq!(waiting["errorCode"], "input_required", "{waiting}");
    let call = &waiting["toolCalls"][0];
    assert_eq!(call["input"], json!({"type": 1}), "{waiting}");
    bridge.kill();

    let bridge = home.start();
    let answer =
        json!({"toolCallId": call["toolCallId"], "name": call["name"], "output": "merged"});
    let next = json!({
        "message": "Continue.", "tools": tools, "sessionId": waiting["sessionId"], "toolResults": [answer],
    });
    let id = bridge.api.dispatch(with(quiet("next", "run"), &next)).await;
    let result = bridge.api.finished(&id).await["result"].clone();
    assert_eq!(
        result["output"], "one\nspawn_agent: merged\ntwo\n",
        "{result}"
    );
}
