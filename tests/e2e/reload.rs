//! Reload by SIGHUP: changed settings that a running bridge applies, and invalid files, which it refuses.

use std::fs;

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::callbacks::is_signed_with;
use super::harness::api::owed;
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

async fn read_again(home: &Home, bridge: &Process, answer: &str) {
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
    assert!(!home.log().contains("\"new\""), "a token is in the log");
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
