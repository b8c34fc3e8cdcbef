//! Secrets of a dispatch reach only its receiver: they are not in answers, events, files of the store, or the log.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use super::harness::api::{owed, quiet, with};
use super::harness::process::{Home, Process};
use super::harness::{Answer, CallbackSink};
use forge_test_support::callback::Received;

const BEARER: &str = "bearer-0f4c1b77-of-this-dispatch";
const MESSAGE: &str = "the-body-of-the-request-61d0";

pub(super) fn secret() -> String {
    format!(
        "whsec_{}",
        BASE64.encode(*b"0123456789-signing-key-456789012")
    )
}

/// Secrets in each form, none of which must be found.
fn forbidden(secret: &str) -> Vec<Vec<u8>> {
    let key = secret.strip_prefix("whsec_").unwrap();
    vec![BEARER.into(), key.into(), BASE64.decode(key).unwrap()]
}

fn assert_clean(place: &str, bytes: &[u8], forbidden: &[Vec<u8>]) {
    for word in forbidden {
        let found = bytes.windows(word.len()).any(|window| window == word);
        assert!(!found, "{:?} is in {place}", String::from_utf8_lossy(word));
    }
}

/// Checks every file below a folder; returns their number.
fn assert_files_clean(folder: &Path, forbidden: &[Vec<u8>]) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            count += assert_files_clean(&path, forbidden);
        } else if path.extension().is_none_or(|extension| extension != "so") {
            assert_clean(
                &path.display().to_string(),
                &fs::read(&path).unwrap(),
                forbidden,
            );
            count += 1;
        }
    }
    count
}

async fn assert_interface_clean(process: &Process, ids: &[&str], forbidden: &[Vec<u8>]) {
    let mut paths: Vec<String> = [
        "/api/health?verbose",
        "/api/v2/adapters",
        "/api/v2/dispatches",
        "/api/v2/deliveries",
        "/api/v2/events?after=0&limit=1000",
    ]
    .map(str::to_owned)
    .into();
    for id in ids {
        let (_, record) = process.api.get(&format!("/api/v2/dispatch/{id}")).await;
        let deliveries = record["deliveries"].as_array().unwrap();
        paths.extend(
            deliveries
                .iter()
                .map(|line| line["href"].as_str().unwrap().to_owned()),
        );
        paths.push(format!("/api/v2/dispatch/{id}"));
        paths.push(format!("/api/v2/dispatch/{id}/events"));
    }
    for path in paths {
        let request = process
            .api
            .request(Method::GET, &path)
            .header("accept", "application/json");
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        assert_clean(&path, &response.bytes().await.unwrap(), forbidden);
    }
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
async fn secrets_of_a_dispatch_reach_only_its_receiver() {
    let (well, ill) = (CallbackSink::start().await, CallbackSink::start().await);
    ill.answer(Answer::status(500));
    let home = Home::new(&[
        ("BRIDGE_LOG_LEVEL", "trace"),
        ("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", "1"),
    ]);
    let (secret, data) = (secret(), home.dir.path().join("data"));
    let forbidden = forbidden(&secret);
    let callback = json!({
        "message": MESSAGE,
        "callback": {"bearer": BEARER, "secret": secret, "headers": {"X-Team": "blue"}},
    });
    let asks =
        |task: &str, sink: &CallbackSink| with(owed(task, "ok", &sink.url("/cb")), &callback);

    let bridge = home.start();
    let delivered = bridge.api.dispatch(asks("delivered", &well)).await;
    let request = well.until(1).await.remove(0);
    assert_eq!(request.headers["authorization"], format!("Bearer {BEARER}"));
    assert_eq!(request.headers["x-team"], "blue");
    assert!(is_signed_with(&request, &secret));
    assert_clean("the callback's body", &request.body, &forbidden);

    // One with a pending callback, one that runs, one that is queued.
    let undelivered = bridge.api.dispatch(asks("undelivered", &ill)).await;
    ill.until(1).await;
    let running = bridge
        .api
        .dispatch(with(asks("runs", &well), &json!({"model": "hang"})))
        .await;
    let queued = bridge.api.dispatch(asks("queued", &well)).await;
    let ids = [&delivered, &undelivered, &running, &queued].map(String::as_str);
    assert_interface_clean(&bridge, &ids, &forbidden).await;
    assert!(
        assert_files_clean(&data, &forbidden) >= 2,
        "the store and its WAL"
    );
    bridge.kill();
    assert_files_clean(&data, &forbidden);

    // The secrets outlive the process.
    let bridge = home.start();
    let received = well.until(3).await;
    let late: Vec<_> = received[1..]
        .iter()
        .filter(|request| is_signed_with(request, &secret))
        .collect();
    assert_eq!(late.len(), received.len() - 1);
    assert!(
        late.iter()
            .all(|r| r.headers["authorization"] == format!("Bearer {BEARER}"))
    );
    assert_interface_clean(&bridge, &ids, &forbidden).await;
    assert_files_clean(&data, &forbidden);
    bridge.terminate();
    assert!(bridge.ended().await.success());
    assert_files_clean(home.dir.path(), &forbidden);

    let log = home.log();
    let id = &request.headers["webhook-id"];
    assert!(log.contains(id), "the log tells of deliveries");
    assert_clean("the log", log.as_bytes(), &[MESSAGE.into()]);
}

#[tokio::test]
async fn a_refusal_does_not_repeat_a_secret() {
    let home = Home::new(&[("BRIDGE_LOG_LEVEL", "trace")]);
    let bridge = home.start();
    let hidden = "hidden-7c1f";
    for callback in [
        json!({"bearer": format!("two words {hidden}")}),
        json!({"bearer": [hidden]}),
        json!({"secret": hidden}),
        json!({"secret": {"key": hidden}}),
        json!({"headers": {"Authorization": hidden}}),
    ] {
        let body = with(quiet("t", "ok"), &json!({"callback": callback}));
        let body = with(body, &json!({"callbackUrl": "https://example.org/"}));
        let (status, refusal) = bridge.api.post("/api/v2/dispatch", &body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{refusal}");
        assert_clean(
            "the refusal",
            refusal.to_string().as_bytes(),
            &[hidden.into()],
        );
    }
    bridge.kill();
    assert_clean("the log", home.log().as_bytes(), &[hidden.into()]);
}

#[tokio::test]
async fn the_bridges_own_secret_is_made_once_and_lies_sealed() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&[]);
    let bridge = home.start();
    let shown = home.command().args(["secrets", "--json"]).output().unwrap();
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    let secret = first_secret(&shown).unwrap();
    bridge
        .api
        .dispatch(owed("first", "ok", &sink.url("/cb")))
        .await;
    sink.until(1).await;
    bridge.kill();
    let bridge = home.start();
    bridge
        .api
        .dispatch(owed("second", "ok", &sink.url("/cb")))
        .await;
    for request in sink.until(2).await {
        assert!(is_signed_with(&request, &secret), "{:?}", request.headers);
        assert!(!request.headers.contains_key("authorization"));
    }
    assert_files_clean(&home.dir.path().join("data"), &forbidden(&secret));
    bridge.kill();

    // With another key the secret cannot be decrypted, and no other one is used instead.
    let mut stranger = home;
    stranger
        .variables
        .insert("BRIDGE_SECRET_KEY".to_owned(), "5a".repeat(32));
    let Err(log) = stranger.launch() else {
        panic!("it started")
    };
    assert!(log.contains("encrypted with another key"), "{log}");
    let keys = stranger
        .command()
        .args(["secrets", "keys", "--json"])
        .output();
    let keys: Value = serde_json::from_slice(&keys.unwrap().stdout).unwrap();
    let of = |role: &str| {
        let mut keys = keys["keys"].as_array().unwrap().iter();
        keys.find(|key| key["role"] == role).unwrap()["key"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    for role in ["sealing", "missing"] {
        assert!(
            log.contains(&of(role)),
            "the {role} key is not named: {log}"
        );
    }
}

/// First string in the value that is a signing secret.
fn first_secret(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => text.starts_with("whsec_").then(|| text.clone()),
        Value::Array(values) => values.iter().find_map(first_secret),
        Value::Object(members) => members.values().find_map(first_secret),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}
