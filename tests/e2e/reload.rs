//! Reload by SIGHUP: changed settings that a running bridge applies, and invalid files, which it refuses.

use std::fs;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::callbacks::is_signed_with;
use super::harness::api::{JsonBody as _, answer, owed, quiet};
use super::harness::process::{Home, Process};
use super::harness::{CallbackSink, until};

const FIRST: &str = "whsec_Zmlyc3Qtc2VjcmV0LW9mLXRoaXMtdGVzdC1ydW4=";
const SECOND: &str = "whsec_c2Vjb25kLXNlY3JldC1vZi10aGlzLXRlc3QtcnVu";

/// A home with this configuration file, and no variables that take precedence over it.
fn home(file: &str) -> Home {
    let mut home = Home::new(&[]);
    home.variables.remove("BRIDGE_CALLBACK_ALLOW");
    write(&home, file);
    home
}

fn write(home: &Home, file: &str) {
    fs::write(home.dir.path().join("forge-bridge.toml"), file).unwrap();
}

pub(super) async fn read_again(home: &Home, bridge: &Process, answer: &str) {
    let before = home.log().matches(answer).count();
    bridge.hang_up();
    let answered = || async { (home.log().matches(answer).count() > before).then_some(()) };
    until("an answer to SIGHUP", answered).await;
}

async fn status(bridge: &Process, token: &str) -> StatusCode {
    let request = bridge.api.request(Method::GET, "/api/v2/dispatches");
    let answer = request.bearer_auth(token).send().await.unwrap();
    answer.status()
}

#[tokio::test]
async fn a_rotation_of_tokens_overlaps_and_needs_no_restart() {
    let home = home("auth.tokens = [\"old\"]");
    let bridge = home.start();
    let both = async || [status(&bridge, "old").await, status(&bridge, "new").await];
    const YES: StatusCode = StatusCode::OK;
    const NO: StatusCode = StatusCode::UNAUTHORIZED;
    assert_eq!(both().await, [YES, NO]);
    for (tokens, expected) in [("\"old\", \"new\"", [YES, YES]), ("\"new\"", [NO, YES])] {
        write(&home, &format!("auth.tokens = [{tokens}]"));
        read_again(&home, &bridge, "settings reloaded").await;
        assert_eq!(both().await, expected);
    }
    // Hash of the token "new", with fewer scopes.
    let hash = "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437";
    write(
        &home,
        &format!("auth.token = [{{ hash = \"{hash}\", scopes = [\"dispatch\"] }}]"),
    );
    read_again(&home, &bridge, "settings reloaded").await;
    assert_eq!(status(&bridge, "new").await, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_revoked_token_ends_its_streams_and_no_others() {
    let home = home("auth.tokens = [\"old\", \"new\"]");
    let bridge = home.start();
    let open = async |path: &str, token: Option<&str>, accept: &str| {
        let request = bridge.api.request(Method::GET, path);
        let request = request.header("accept", accept);
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        answer
    };
    let request = bridge.api.request(Method::POST, "/api/v2/stream-tickets");
    let (_, ticket) = answer(request.bearer_auth("old")).await;
    let with_ticket = format!(
        "/api/v2/events?ticket={}",
        ticket["ticket"].as_str().unwrap()
    );
    let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let held = quiet("held", "slow:600000");
    let (status, body) = answer(request.bearer_auth("new").json_body(&held)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{body}");
    let (ndjson, sse) = ("application/x-ndjson", "text/event-stream");
    let of_dispatch = "/api/v2/dispatch/held/events";
    let ending = [
        open("/api/v2/events", Some("old"), ndjson).await,
        open("/api/v2/events", Some("old"), sse).await,
        open(&with_ticket, None, sse).await,
        open(of_dispatch, Some("old"), ndjson).await,
    ];
    let mut going_on = open(of_dispatch, Some("new"), ndjson).await;
    write(&home, "auth.tokens = [\"new\"]");
    read_again(&home, &bridge, "settings reloaded").await;
    for stream in ending {
        let text = stream.text().await.unwrap();
        let last = text.lines().rfind(|line| !line.is_empty()).unwrap();
        let last: Value = serde_json::from_str(last.trim_start_matches("data: ")).unwrap();
        assert_eq!(
            (&last["type"], &last["code"]),
            (&json!("unauthorized"), &json!("UNAUTHORIZED")),
            "{text}"
        );
    }
    let request = bridge
        .api
        .request(Method::POST, "/api/v2/dispatch/held/cancel");
    let (status, _) = answer(request.bearer_auth("new")).await;
    assert_eq!(status, StatusCode::OK);
    let mut text = String::new();
    while let Some(chunk) = going_on.chunk().await.unwrap() {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(text.contains("execution.failed"), "{text}");
    assert!(!text.contains("unauthorized"), "{text}");
}

#[tokio::test]
async fn a_file_that_makes_no_sense_changes_nothing() {
    let home = home("auth.tokens = [\"old\"]");
    let bridge = home.start();
    for (broken, wanted) in [
        ("auth.tokens = [\"new\"", "TOML parse error"),
        ("auth.tokens = [\"new\"]\nlog.level = \"loud\"", "log.level"),
        ("auth.tokens = [\"new\"]\nsurprise = 1", "surprise"),
        (
            "auth.tokens = [\"new\"]\ncallback.allow = [\"a b\"]",
            "callback.allow",
        ),
        (
            "callback.allow = [\"https://user:hush-hush@hooks.example\"]",
            "[hidden]@hooks.example",
        ),
        (
            "auth.tokens = [\"new\"]\ncallback.secrets = [\"x\"]",
            "callback.secrets",
        ),
        ("auth.tokens = [\"new\", \"\"]", "auth.tokens"),
    ] {
        write(&home, broken);
        read_again(&home, &bridge, "settings unchanged: ").await;
        let log = home.log();
        let line = log
            .lines()
            .rfind(|line| line.contains("settings unchanged"));
        assert!(log.contains(wanted), "{wanted:?} is not in {line:?}");
        assert_eq!(status(&bridge, "old").await, StatusCode::OK, "{broken}");
        assert_eq!(status(&bridge, "new").await, StatusCode::UNAUTHORIZED);
    }
    for secret in ["\"new\"", "hush-hush"] {
        assert!(!home.log().contains(secret), "{secret} is in the log");
    }
}

#[tokio::test]
async fn callbacks_follow_the_file_and_the_rest_waits_for_a_restart() {
    let sink = CallbackSink::start().await;
    let home = home("");
    let bridge = home.start();
    let refused = owed("t-0", "ok", &sink.url("/cb"));
    let (answer, _) = bridge.api.post("/api/v2/dispatch", &refused).await;
    assert_eq!(
        answer,
        StatusCode::BAD_REQUEST,
        "loopback is not allowed yet"
    );

    let allow = "callback.allow = [\"loopback\"]\n";
    for (number, secret) in [FIRST, SECOND].into_iter().enumerate() {
        write(&home, &format!("{allow}callback.secrets = [\"{secret}\"]"));
        read_again(&home, &bridge, "settings reloaded").await;
        let task = format!("t-{}", number + 1);
        let id = bridge
            .api
            .dispatch(owed(&task, "ok", &sink.url("/cb")))
            .await;
        bridge.api.delivery_is(&id, "delivered").await;
        let received = sink.received().pop().unwrap();
        assert!(is_signed_with(&received, secret), "secret {number}");
    }

    write(
        &home,
        "log.level = \"warn\"\nstore.readers = 2\n[adapters.echo]\napi_key = \"hush\"\n[retention]\nrecords = \"1h\"",
    );
    read_again(&home, &bridge, "only after a restart").await;
    let log = home.log();
    let line = log.lines().rfind(|line| line.contains("restart")).unwrap();
    assert!(line.ends_with(": adapters.echo, store.readers"), "{line}");
    assert!(!log.contains("hush"));

    // The log level is raised now: reloading the same file logs only the warning.
    let said = log.matches("settings reloaded").count();
    read_again(&home, &bridge, "only after a restart").await;
    assert_eq!(home.log().matches("settings reloaded").count(), said);
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(health["status"], json!("healthy"), "{health}");
}
