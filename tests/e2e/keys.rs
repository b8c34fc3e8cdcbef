//! Rotation of the key that encrypts secrets while the bridge works: after an interruption at any point, each secret
//! can be decrypted.

use std::collections::BTreeSet;
use std::process::Stdio;

use forge_base::failpoint::VARIABLE;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::harness::api::{owed, with};
use super::harness::process::Home;
use super::harness::{Answer, CallbackSink, until};
use super::secrets::{is_signed_with, secret};

/// Output of `forge-bridge secrets …` in this home.
fn secrets(home: &Home, command: &str) -> Value {
    let output = home.command().args(["secrets", command, "--json"]).output();
    let output = output.unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {complaint}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Keys in order, each with the number of secrets encrypted with it.
fn usage(home: &Home) -> Vec<(String, u64)> {
    let keys = secrets(home, "keys");
    let keys = keys["keys"].as_array().unwrap().iter();
    keys.map(|key| {
        let id = key["key"].as_str().unwrap().to_owned();
        (id, key["sealed"].as_u64().unwrap())
    })
    .collect()
}

async fn all_lies_under_the_first(home: &Home) -> String {
    until("all secrets to be resealed", || async {
        let usage = usage(home);
        let rest: u64 = usage[1..].iter().map(|(_, sealed)| sealed).sum();
        (rest == 0).then(|| usage[0].0.clone())
    })
    .await
}

fn with_a_secret(task: &str, sink: &CallbackSink) -> Value {
    let callback = json!({ "callback": { "secret": secret(), "bearer": "b" } });
    with(owed(task, "ok", &sink.url("/cb")), &callback)
}

async fn read_again(home: &Home, bridge: &super::harness::process::Process, answer: &str) {
    let before = home.log().matches(answer).count();
    bridge.hang_up();
    let answered = || async { (home.log().matches(answer).count() > before).then_some(()) };
    until("an answer to SIGHUP", answered).await;
}

#[test]
fn rotations_of_processes_at_once_lose_no_key() {
    let home = Home::new(&[]);
    let rotate = || {
        let mut command = home.command();
        command.args(["secrets", "rotate", "--json"]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let rotations: Vec<_> = (0..20).map(|_| rotate()).collect();
    let rotated: BTreeSet<String> = rotations
        .into_iter()
        .map(|process| {
            let output = process.wait_with_output().unwrap();
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            report["key"].as_str().unwrap().to_owned()
        })
        .collect();
    let file = std::fs::read_to_string(home.dir.path().join("secret.key")).unwrap();
    // The first one made the file, with a key of its own.
    assert_eq!((rotated.len(), file.lines().count()), (20, 21));
}

#[tokio::test]
async fn a_key_is_turned_in_a_running_bridge() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(503).header("retry-after", "3600"));
    let home = Home::new(&[]);
    let file = home.dir.path().join("secret.key");
    let bridge = home.start();
    let before = bridge.api.dispatch(with_a_secret("before", &sink)).await;
    sink.until(1).await;
    let first = usage(&home)[0].0.clone();

    let second = secrets(&home, "rotate")["key"].as_str().unwrap().to_owned();
    assert_ne!(first, second);
    assert_eq!(
        secrets(&home, "retire")["retired"],
        json!([]),
        "it is in use"
    );
    read_again(&home, &bridge, "no configuration file to reload").await;
    assert_eq!(all_lies_under_the_first(&home).await, second);
    let after = bridge.api.dispatch(with_a_secret("after", &sink)).await;
    sink.until(2).await;
    assert_eq!(usage(&home)[1], (first.clone(), 0), "the new one seals");

    // A key can be removed only when no secret is encrypted with it.
    let turned = std::fs::read_to_string(&file).unwrap();
    let old = turned.lines().nth(1).unwrap();
    std::fs::write(&file, old).unwrap();
    read_again(&home, &bridge, "settings unchanged: ").await;
    let log = home.log();
    let line = log
        .lines()
        .rfind(|line| line.contains("settings unchanged"));
    assert!(line.unwrap().contains(&second), "{line:?}");
    std::fs::write(&file, &turned).unwrap();
    assert_eq!(secrets(&home, "retire")["retired"], json!([first]));
    assert_eq!(std::fs::read_to_string(&file).unwrap().lines().count(), 1);
    read_again(&home, &bridge, "no configuration file to reload").await;
    bridge.kill();

    let bridge = home.start();
    sink.answer(Answer::status(200));
    let replay = json!({});
    let (status, _) = bridge
        .api
        .post("/api/v2/deliveries/retry?status=pending", &replay)
        .await;
    assert_eq!(status, StatusCode::ACCEPTED);
    for id in [&before, &after] {
        bridge.api.delivery_is(id, "delivered").await;
    }
    let received = sink.received();
    assert!(
        received
            .iter()
            .all(|request| is_signed_with(request, &secret()))
    );
    // The fingerprint of a dispatch does not depend on the key.
    let body = with_a_secret("before", &sink);
    let (status, again) = bridge.api.post("/api/v2/dispatch", &body).await;
    assert_eq!(
        (status, &again["duplicate"]),
        (StatusCode::ACCEPTED, &json!(true)),
        "{again}"
    );
}

#[tokio::test]
async fn killed_in_the_middle_of_resealing_it_continues() {
    const COUNT: usize = 450;
    let sink = CallbackSink::start().await;
    let mut home = Home::new(&[("BRIDGE_LOG_LEVEL", "warn,forge_bridge::app=info")]);
    let bridge = home.start();
    let tasks = (0..COUNT).map(|number| with_a_secret(&format!("t{number}"), &sink));
    let sent = tasks.map(|task| bridge.api.dispatch(task));
    for id in futures_util::future::join_all(sent).await {
        bridge.api.delivery_is(&id, "delivered").await;
    }
    bridge.kill();
    secrets(&home, "rotate");

    home.variables
        .insert(VARIABLE.to_owned(), "reseal.after:2".to_owned());
    home.run_to_its_end();
    home.variables.remove(VARIABLE);
    let halfway = usage(&home);
    assert!(halfway[0].1 > 200 && halfway[1].1 > 0, "{halfway:?}");

    let bridge = home.start();
    all_lies_under_the_first(&home).await;
    secrets(&home, "retire");
    bridge.kill();
    let bridge = home.start();
    bridge
        .api
        .post("/api/v2/deliveries/retry?status=delivered", &json!({}))
        .await;
    let received = sink.until(2 * COUNT).await;
    assert!(
        received
            .iter()
            .all(|request| is_signed_with(request, &secret()))
    );
}

#[tokio::test]
async fn a_configured_key_is_turned_by_naming_the_former_one() {
    let [one, two] = ["1a".repeat(32), "2b".repeat(32)];
    let mut home = Home::new(&[("BRIDGE_SECRET_KEY", &one)]);
    let bridge = home.start();
    bridge.kill();
    let refused = home.command().args(["secrets", "rotate"]).output().unwrap();
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && complaint.contains("secret.previous"),
        "{complaint}"
    );

    home.variables.insert("BRIDGE_SECRET_KEY".to_owned(), two);
    home.variables
        .insert("BRIDGE_SECRET_PREVIOUS".to_owned(), one);
    let bridge = home.start();
    all_lies_under_the_first(&home).await;
    bridge.kill();
    home.variables.remove("BRIDGE_SECRET_PREVIOUS");
    home.start().kill();
}

#[test]
fn a_new_token_is_shown_once_with_its_hash_for_the_configuration() {
    let home = Home::new(&[]);
    let arguments = [
        "secrets",
        "token",
        "--name",
        "ci",
        "--scopes",
        "read,dispatch",
        "--expires",
        "90d",
    ];
    let shown = home.command().args(arguments).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let token = shown.lines().next().unwrap();
    assert!(token.starts_with("fbt_"), "{shown}");
    let entry = shown
        .lines()
        .find(|line| line.trim().starts_with('{'))
        .unwrap();
    let file = home.dir.path().join("forge-bridge.toml");
    std::fs::write(&file, format!("[auth]\ntoken = [{entry}]\n")).unwrap();
    let checked = home.command().arg("check").output().unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stdout)
    );
    assert!(!entry.contains(token));
    let wrong = home
        .command()
        .args(["secrets", "token", "--scopes", "root"])
        .output()
        .unwrap();
    assert!(!wrong.status.success());
}
