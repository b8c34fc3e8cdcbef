//! Rules of delivery with a real bridge, a real store and real sockets: receiver behaviour and its effect on the
//! delivery. Long waits are tested by the unit tests, with a fake clock.

use jiff::Timestamp;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use super::harness::api::{answer, owed, quiet, with};
use super::harness::{Answer, Api, Bridge, CallbackSink, until};
use forge_test_support::callback::Received;

/// Keys of 32 bytes, each of one value.
const SECRETS: [&str; 2] = [
    "whsec_AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
    "whsec_AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=",
];

/// One kind of receiver.
struct Receiver {
    name: &'static str,
    answers: Vec<Answer>,
    /// Status of each attempt in the delivery; `null` without an answer.
    statuses: Value,
    end: &'static str,
}

/// Waits until the only delivery of a dispatch has this status, and returns it.
async fn delivery(api: &Api, id: &str, status: &str) -> Value {
    until(status, || async {
        let delivery = only_delivery(api, id).await?;
        (delivery["status"] == status).then_some(delivery)
    })
    .await
}

async fn only_delivery(api: &Api, id: &str) -> Option<Value> {
    let (_, record) = api.get(&format!("/api/v2/dispatch/{id}")).await;
    let lines = record["deliveries"].as_array().unwrap();
    assert!(lines.len() <= 1, "{record}");
    let (status, delivery) = api.get(lines.first()?["href"].as_str().unwrap()).await;
    assert_eq!(status, StatusCode::OK, "{delivery}");
    Some(delivery)
}

/// Waits until this number of attempts of the delivery has been settled.
async fn attempted(api: &Api, id: &str, attempts: u64) -> Value {
    until("the attempt to be settled", || async {
        let delivery = only_delivery(api, id).await?;
        (delivery["attemptCount"] == attempts).then_some(delivery)
    })
    .await
}

/// Events of a dispatch, those after its result included.
async fn all_events(api: &Api, id: &str) -> Vec<Value> {
    let path = format!("/api/v2/dispatch/{id}/events?until=delivered&limit=1000");
    let request = api.request(Method::GET, &path);
    let (status, page) = answer(request.header("accept", "application/json")).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    page["events"].as_array().unwrap().clone()
}

fn headers<'a>(received: &'a [Received], name: &str) -> Vec<&'a str> {
    received
        .iter()
        .map(|request| request.headers[name].as_str())
        .collect()
}

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

pub(super) fn is_signed_with(request: &Received, secret: &str) -> bool {
    let timestamp = request.headers["webhook-timestamp"].parse().unwrap();
    let oracle = Webhook::new(secret).unwrap();
    let signature = oracle
        .sign(&request.headers["webhook-id"], timestamp, &request.body)
        .unwrap();
    request.headers["webhook-signature"]
        .split(' ')
        .any(|given| given == signature)
}

#[tokio::test]
async fn each_kind_of_receiver_gets_what_the_reference_says() {
    let elsewhere = CallbackSink::start().await;
    let fine = || Answer::status(200);
    let receivers = [
        Receiver {
            name: "500 and then well",
            answers: vec![Answer::status(500).body("broken"), fine()],
            statuses: json!([500, 200]),
            end: "delivered",
        },
        Receiver {
            name: "429 with Retry-After",
            answers: vec![Answer::status(429).header("retry-after", "2"), fine()],
            statuses: json!([429, 200]),
            end: "delivered",
        },
        Receiver {
            name: "hangs once",
            answers: vec![Answer::hang(), fine()],
            statuses: json!([null, 200]),
            end: "delivered",
        },
        Receiver {
            name: "closes once",
            answers: vec![Answer::close(), fine()],
            statuses: json!([null, 200]),
            end: "delivered",
        },
        Receiver {
            name: "204",
            answers: vec![Answer::status(204)],
            statuses: json!([204]),
            end: "delivered",
        },
        Receiver {
            name: "redirects",
            answers: vec![Answer::redirect(&elsewhere.url("/else"))],
            statuses: json!([302]),
            end: "dead",
        },
        Receiver {
            name: "gone",
            answers: vec![Answer::status(410)],
            statuses: json!([410]),
            end: "dead",
        },
        Receiver {
            name: "refuses what it is sent",
            answers: vec![Answer::status(422).body("no such task")],
            statuses: json!([422]),
            end: "dead",
        },
    ];
    let bridge = Bridge::with(&[
        ("BRIDGE_CALLBACK_TIMEOUT", "500ms"),
        ("BRIDGE_CALLBACK_SECRETS", &SECRETS.join(",")),
    ])
    .await;
    let mut all = Vec::new();
    for receiver in receivers {
        let sink = CallbackSink::start().await;
        sink.script(receiver.answers.clone());
        let id = bridge
            .api
            .dispatch(owed(receiver.name, "ok", &sink.url("/cb")))
            .await;
        all.push((receiver, sink, id));
    }
    for (receiver, sink, id) in &all {
        let name = receiver.name;
        let delivery = delivery(&bridge.api, id, receiver.end).await;
        let attempts = delivery["attempts"].as_array().unwrap();
        let statuses: Value = attempts
            .iter()
            .map(|attempt| attempt["status"].clone())
            .collect();
        assert_eq!(statuses, receiver.statuses, "{name}: {delivery}");
        for attempt in attempts {
            assert_ne!(
                attempt["status"].is_null(),
                attempt["error"].is_null(),
                "{name}: {attempt}"
            );
        }
        let received = sink.received();
        assert_eq!(received.len(), attempts.len(), "{name}");
        let numbers = headers(&received, "x-forge-delivery-attempt");
        assert_eq!(numbers, ["1", "2"][..received.len()], "{name}");
        for request in &received {
            assert_eq!(
                request.headers["webhook-id"],
                delivery["id"].as_str().unwrap()
            );
            assert_eq!(
                request.headers["idempotency-key"],
                request.headers["webhook-id"]
            );
            assert_eq!(request.body, received[0].body, "{name}: one result");
            let signed = SECRETS.map(|secret| is_signed_with(request, secret));
            assert_eq!(signed, [true, true], "{name}");
        }
        let events = all_events(&bridge.api, id).await;
        let told: Vec<_> = events
            .iter()
            .filter_map(|event| event["type"].as_str()?.strip_prefix("callback."))
            .collect();
        let (last, attempted) = told.split_last().unwrap();
        assert_eq!(*last, receiver.end, "{name}");
        assert!(
            attempted.iter().all(|kind| *kind == "attempted"),
            "{name}: {told:?}"
        );
        assert_eq!(attempted.len(), attempts.len(), "{name}");
    }
    assert!(elsewhere.received().is_empty(), "a redirect was followed");
    let (_, slowed, _) = &all[1];
    let wait = slowed.received()[1]
        .at
        .duration_since(slowed.received()[0].at)
        .unwrap();
    assert!(
        wait.as_secs_f64() > 1.99,
        "Retry-After was not waited for: {wait:?}"
    );
    bridge.stop().await;
}

#[tokio::test]
async fn a_long_retry_after_is_kept_and_an_operator_need_not_wait_for_it() {
    let sink = CallbackSink::start().await;
    sink.script(vec![
        Answer::status(503).header("retry-after", "3600"),
        Answer::status(200),
    ]);
    let bridge = Bridge::start().await;
    let id = bridge.api.dispatch(owed("t", "ok", &sink.url("/cb"))).await;
    let waiting = attempted(&bridge.api, &id, 1).await;
    let wait = time(&waiting["dueAt"]).duration_since(time(&waiting["attempts"][0]["at"]));
    assert!(wait.as_secs() >= 3600, "{waiting}");

    let retry = format!(
        "/api/v2/deliveries/{}/retry",
        waiting["id"].as_str().unwrap()
    );
    let (status, retried) = bridge.api.post(&retry, &json!({})).await;
    assert_eq!(
        (status, &retried["retried"]),
        (StatusCode::ACCEPTED, &json!(1))
    );
    delivery(&bridge.api, &id, "delivered").await;
    bridge.stop().await;
}

#[tokio::test]
async fn compat_is_three_retries_and_a_dead_letter_can_be_replayed() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(500));
    let bridge = Bridge::start().await;
    let body = with(
        owed("t", "ok", &sink.url("/cb")),
        &json!({"callback": {"retry": "compat"}}),
    );
    let id = bridge.api.dispatch(body).await;
    let dead = delivery(&bridge.api, &id, "dead").await;
    assert_eq!(dead["attempts"].as_array().unwrap().len(), 4, "{dead}");
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(health["deliveries"], json!({"pending": 0, "dead": 1}));

    // A replay is a new series, with retries of its own.
    let replayed = sink.received().len() + 1;
    sink.answer_with(move |request| {
        Answer::status(if request.number > replayed { 200 } else { 500 })
    });
    let retry = format!("/api/v2/deliveries/{}/retry", dead["id"].as_str().unwrap());
    bridge.api.post(&retry, &json!({})).await;
    delivery(&bridge.api, &id, "delivered").await;
    let received = sink.received();
    let numbers = headers(&received, "x-forge-delivery-attempt");
    assert_eq!(numbers, ["1", "2", "3", "4", "5", "6"]);
    let ids = headers(&received, "webhook-id");
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{ids:?}");
    bridge.stop().await;
}

#[tokio::test]
async fn the_dead_letters_of_one_host_are_replayed_together() {
    let (one, other) = (CallbackSink::start().await, CallbackSink::start().await);
    let bridge = Bridge::start().await;
    let mut ids = Vec::new();
    for (n, sink) in [&one, &one, &other].into_iter().enumerate() {
        sink.answer(Answer::status(410));
        let id = bridge
            .api
            .dispatch(owed(&format!("t{n}"), "ok", &sink.url("/cb")))
            .await;
        delivery(&bridge.api, &id, "dead").await;
        ids.push(id);
    }
    for sink in [&one, &other] {
        sink.answer(Answer::status(200));
    }
    let (_, dead) = bridge.api.get("/api/v2/deliveries?status=dead").await;
    assert_eq!(dead["deliveries"].as_array().unwrap().len(), 3, "{dead}");
    let replay = format!("/api/v2/deliveries/retry?host={}", one.address());
    let (status, retried) = bridge.api.post(&replay, &json!({})).await;
    assert_eq!(
        (status, &retried["retried"]),
        (StatusCode::ACCEPTED, &json!(2))
    );
    for id in &ids[..2] {
        delivery(&bridge.api, id, "delivered").await;
    }
    assert_eq!(
        only_delivery(&bridge.api, &ids[2]).await.unwrap()["status"],
        "dead"
    );
    assert_eq!((one.received().len(), other.received().len()), (4, 1));
}

#[tokio::test]
async fn the_same_dispatch_again_is_the_same_delivery_again() {
    let sink = CallbackSink::start().await;
    let bridge = Bridge::start().await;
    let body = owed("t", "ok", &sink.url("/cb"));
    let id = bridge.api.dispatch(body.clone()).await;
    delivery(&bridge.api, &id, "delivered").await;

    let (status, again) = bridge.api.post("/api/v2/dispatch", &body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{again}");
    assert_eq!(
        (&again["dispatchId"], &again["duplicate"]),
        (&json!(id), &json!(true))
    );
    let received = sink.until(2).await;
    assert_eq!(headers(&received, "x-forge-delivery-attempt"), ["1", "2"]);
    assert_eq!(
        received[0].headers["webhook-id"],
        received[1].headers["webhook-id"]
    );
    assert_eq!(received[0].body, received[1].body);
    attempted(&bridge.api, &id, 2).await;
    delivery(&bridge.api, &id, "delivered").await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_retried_task_supersedes_the_undelivered_callback_of_the_failed_one() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(500));
    let bridge = Bridge::start().await;
    let body = owed("t", "fail", &sink.url("/cb"));
    let failed = bridge.api.dispatch(body.clone()).await;
    let old = attempted(&bridge.api, &failed, 1).await;

    sink.answer(Answer::status(200));
    let body = with(body, &json!({"model": "ok"}));
    let second = bridge.api.dispatch(body).await;
    assert_ne!(second, failed);
    let new = delivery(&bridge.api, &second, "delivered").await;
    delivery(&bridge.api, &failed, "superseded").await;
    let result = bridge.api.finished(&second).await["result"].clone();
    assert_eq!(
        (&result["status"], &result["retryOf"]),
        (&json!("ok"), &json!(failed))
    );
    let received = sink.received();
    let ids = headers(&received, "webhook-id");
    assert_eq!(ids.last(), new["id"].as_str().as_ref());
    assert_eq!(ids[0], old["id"]);
    bridge.stop().await;
}

#[tokio::test]
async fn when_the_callback_comes_the_result_is_there() {
    let sink = CallbackSink::start().await;
    sink.script(vec![Answer::hang(), Answer::status(200)]);
    let bridge = Bridge::with(&[("BRIDGE_CALLBACK_TIMEOUT", "2s")]).await;
    // The callback can arrive before this returns: the receiver identifies the dispatch by its task.
    let posted = bridge.api.dispatch(owed("t", "stream:3", &sink.url("/cb")));
    let (id, received) = tokio::join!(posted, sink.until(1));
    let callback: Value = serde_json::from_slice(&received[0].body).unwrap();
    assert_eq!(
        (&callback["taskId"], &callback["dispatchId"]),
        (&json!("t"), &json!(id))
    );
    let (_, record) = bridge.api.get("/api/v2/dispatch/t").await;
    assert_eq!(record["result"], callback);
    assert_eq!(record["deliveries"][0]["status"], "pending");

    let events = bridge.api.events(&id).await;
    let told = &callback["events"];
    let last = &events[told["count"].as_u64().unwrap() as usize - 1];
    assert_eq!(
        (&last["type"], &last["id"]),
        (&json!("execution.completed"), &told["lastCursor"])
    );
    delivery(&bridge.api, &id, "delivered").await;
    bridge.stop().await;
}

#[tokio::test]
async fn without_a_callback_nothing_is_owed() {
    let bridge = Bridge::start().await;
    let id = bridge.api.dispatch(quiet("t", "ok")).await;
    let record = bridge.api.finished(&id).await;
    assert_eq!(
        (&record["deliveries"], &record["callbackUrl"]),
        (&json!([]), &Value::Null)
    );
    let (_, all) = bridge.api.get("/api/v2/deliveries").await;
    assert_eq!(all["deliveries"], json!([]));
    // The stream ends with the result although there is no delivery.
    let path = format!("/api/v2/dispatch/{id}/events?until=delivered");
    let stream = bridge.api.request(Method::GET, &path).send().await.unwrap();
    assert!(stream.text().await.unwrap().contains("execution.completed"));
    bridge.stop().await;
}

#[tokio::test]
async fn private_addresses_are_refused_on_acceptance() {
    let bridge = Bridge::with(&[("BRIDGE_CALLBACK_ALLOW", "")]).await;
    for url in [
        "http://10.0.0.1/",
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.1:9/",
        "http://localhost:9/",
        "http://0/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://[64:ff9b::a00:1]/",
        "http://100.64.0.1/",
        "http://user:word@example.org/",
        "file:///etc/passwd",
    ] {
        let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
        let body = owed("t", "ok", url).to_string();
        let request = request
            .header("content-type", "application/json")
            .body(body);
        let (status, refusal) = answer(request).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{url}: {refusal}");
        assert_eq!(refusal["code"], "INVALID_REQUEST", "{url}: {refusal}");
        assert_eq!(
            refusal["details"][0]["field"], "callbackUrl",
            "{url}: {refusal}"
        );
        assert_eq!(
            refusal["details"].as_array().unwrap().len(),
            1,
            "{url}: {refusal}"
        );
        let attached = json!([{"name": "a", "mediaType": "text/plain", "url": url}]);
        let body = with(quiet("t", "ok"), &json!({"attachments": attached}));
        let (status, refusal) = bridge.api.post("/api/v2/dispatch", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{url}: {refusal}");
        assert_eq!(
            refusal["details"][0]["field"], "attachments[0].url",
            "{url}: {refusal}"
        );
    }
    let (_, all) = bridge.api.get("/api/v2/dispatches").await;
    assert_eq!(all["dispatches"], json!([]));
    bridge.stop().await;
}
