//! Services that are programs: answers, bounds, and the end of all their processes.

use tokio::task::JoinSet;

use super::*;
use crate::harness::process::Home;
use crate::harness::until;

/// Service `probe` that runs a shell script, with the command `run`.
fn script(text: &str) -> Value {
    program(&json!(["/bin/sh", "-c", text]))
}

fn program(words: &Value) -> Value {
    manifest(
        &json!({"name": "probe", "transport": "stdio", "commandArgs": words}),
        &json!([{"name": "run", "kind": "command"}]),
    )
}

const PERMITTED: &str = "[external.services.probe]\nprogram = true\n";

#[tokio::test]
async fn a_program_is_started_only_where_the_settings_permit_it() {
    let setup = Setup::new(&[script("echo > \"$0\"")], "").await;
    let (status, code, message) = setup.failure(COMMAND, json!({})).await;
    assert_eq!(
        (status, code.as_str()),
        (400, "FORGE_EXTERNAL_RUNTIME_UNSUPPORTED")
    );
    assert!(
        message.contains("program = true in [external.services.\"probe\"]"),
        "{message}"
    );
    setup.bridge.stop().await;
}

#[tokio::test]
async fn the_envelope_goes_in_and_the_answer_comes_out() {
    let setup = Setup::new(
        &[script("printf '{\"result\":'; cat; printf '}'")],
        PERMITTED,
    )
    .await;
    let large = "x".repeat(3_000_000);
    let (status, body) = setup.post(COMMAND, &json!({"args": large}), &[]).await;
    assert_eq!(status, StatusCode::OK, "{}", &body.to_string()[..200]);
    let envelope = &body["result"];
    assert_eq!(envelope["args"], large);
    assert_eq!(envelope["auth"], json!({"kind": "anonymous"}));
    let trace = &body["traceId"];
    let forge = json!({"service": "probe", "entry": "run", "kind": "command", "traceId": trace});
    assert_eq!(envelope["forge"], forge);
    setup.bridge.stop().await;
}

#[tokio::test]
async fn every_end_of_a_program_is_read() {
    let settings =
        format!("answer_bytes = 65536\n{PERMITTED}env = {{ KEY = \"planted-secret\" }}\n");
    let setup = Setup::new(&[], &settings).await;
    let failed = "FORGE_EXTERNAL_RUNTIME_FAILED";
    let bad = "FORGE_EXTERNAL_RUNTIME_BAD_RESPONSE";
    let reads = |manifest: Value| {
        register(setup.root.path(), &[manifest]);
        setup.bridge.app.as_ref().unwrap().reload_external()
    };
    for (text, result) in [
        ("true", json!({})),
        ("echo '{\"ok\":true,\"result\":[1]}'", json!([1])),
        ("head -c 20000000 /dev/zero >&2; echo 5", json!(5)),
    ] {
        reads(script(text)).await;
        // Never reads the 3 MB either.
        let args = json!({"args": "x".repeat(3_000_000)});
        let (status, body) = setup.post(COMMAND, &args, &[]).await;
        assert_eq!(
            (status, &body["result"]),
            (StatusCode::OK, &result),
            "{text}: {body}"
        );
    }
    for (manifest, code, said) in [
        (script("echo 1; exit 3"), failed, "exited with code 3"),
        (script("kill -9 $$"), failed, "exited with code 137"),
        (
            script("echo '{\"error\":{\"message\":\"m\"}}'; exit 1"),
            failed,
            "m",
        ),
        (script("echo 1; echo 2"), bad, "non-JSON"),
        (script("printf '{\"result\":'"), bad, "non-JSON"),
        (
            script("echo text; echo help $KEY >&2"),
            bad,
            "stderr: help [hidden]",
        ),
        (script("printf '\\377'"), bad, "non-JSON"),
        (script("exec cat /dev/zero"), bad, "external.answer_bytes"),
        (
            program(&json!(["/does/not/exist"])),
            failed,
            "failed to start",
        ),
        (program(&json!(["/etc/passwd"])), failed, "failed to start"),
    ] {
        reads(manifest.clone()).await;
        let (status, found, message) = setup.failure(COMMAND, json!({})).await;
        assert_eq!(
            (status, found.as_str()),
            (400, code),
            "{manifest}: {message}"
        );
        assert!(message.contains(said), "{manifest}: {message}");
        assert!(!message.contains("planted"), "{message}");
    }
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_program_sees_its_own_variables_and_few_others() {
    let settings =
        format!("{PERMITTED}env = {{ KEY = \"value\" }}\npass_env = [\"PASSED\", \"ABSENT\"]\n");
    let text = "printf '\"%s\"' \"$KEY,$PASSED,$KEPT_BACK,${PATH:+path}\"";
    let variables = [("PASSED", "passed"), ("KEPT_BACK", "1")];
    let setup = Setup::with(&[script(text)], &settings, &variables).await;
    let (status, body) = setup.call(COMMAND).await;
    assert_eq!(
        (status, &body["result"]),
        (StatusCode::OK, &json!("value,passed,,path"))
    );
    setup.bridge.stop().await;
}

/// Writes its process id and that of a child, and hangs; both ignore every signal that can be ignored.
const HANGING: &str = "trap '' TERM HUP INT QUIT; sleep 3600 & echo $$ $! > \"$PIDS.new\"; mv \"$PIDS.new\" \"$PIDS\"; wait";

/// Runs `$SCRIPT`, which is `HANGING`, detached: in a session of its own, with a parent that has ended, and without the
/// pipes of the call.
fn detached(command: &str) -> String {
    format!("({command} setsid sh -c \"$SCRIPT\" < /dev/null > /dev/null 2>&1 &)")
}

/// Settings of a program that writes its process ids to this file.
fn recording(pids: &Path) -> String {
    format!("{PERMITTED}env = {{ PIDS = {pids:?}, SCRIPT = {HANGING:?} }}\n")
}

async fn hanging(timeout: &str) -> (Setup, std::path::PathBuf) {
    running(HANGING, timeout).await
}

async fn running(text: &str, timeout: &str) -> (Setup, std::path::PathBuf) {
    let root = tempfile::tempdir().unwrap().keep();
    let pids = root.join("pids");
    let settings = format!("timeout = \"{timeout}\"\n{}", recording(&pids));
    (Setup::new(&[script(text)], &settings).await, pids)
}

async fn until_gone(pids: &Path) {
    let text = until("the program's start", || async {
        std::fs::read_to_string(pids).ok()
    })
    .await;
    let all: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(all.len(), 2, "{text}");
    until("the end of the program and its child", || async {
        let lives = |pid: &&str| Path::new("/proc").join(pid).exists();
        (!all.iter().any(lives)).then_some(())
    })
    .await;
    std::fs::remove_dir_all(pids.parent().unwrap()).unwrap();
}

#[tokio::test]
async fn a_program_that_hangs_is_killed_with_its_children() {
    let (setup, pids) = hanging("3s").await;
    let (status, code, message) = setup.failure(COMMAND, json!({})).await;
    assert_eq!(
        (status, code.as_str()),
        (504, "FORGE_EXTERNAL_RUNTIME_TIMEOUT"),
        "{message}"
    );
    until_gone(&pids).await;
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_caller_that_leaves_ends_its_program() {
    let (setup, pids) = hanging("1h").await;
    let api = setup.bridge.api.clone();
    let mut calling = JoinSet::new();
    calling.spawn(async move { api.request(Method::POST, COMMAND).send().await });
    until("the program", || async { pids.exists().then_some(()) }).await;
    drop(calling);
    until_gone(&pids).await;
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_program_that_detaches_leaves_no_process() {
    // The second child has no variable left by which it could be found.
    for command in ["", "exec env -i PIDS=\"$PIDS\""] {
        let started = "until [ -e \"$PIDS\" ]; do sleep 0.02; done";
        let text = format!("{}; {started}; echo 1", detached(command));
        let (setup, pids) = running(&text, "30s").await;
        let (status, body) = setup.call(COMMAND).await;
        assert_eq!(
            (status, &body["result"]),
            (StatusCode::OK, &json!(1)),
            "{body}"
        );
        until_gone(&pids).await;
        setup.bridge.stop().await;
    }
}

#[tokio::test]
async fn a_bridge_that_is_killed_leaves_no_program() {
    for text in [HANGING.to_owned(), format!("{}; sleep 3600", detached(""))] {
        let home = Home::new(&[]);
        let root = home.dir.path();
        let pids = tempfile::tempdir().unwrap().keep().join("pids");
        register(root, &[script(&text)]);
        let settings = format!("[external]\nroot = {root:?}\n{}", recording(&pids));
        std::fs::write(root.join("forge-bridge.toml"), settings).unwrap();
        let bridge = home.start();
        let api = bridge.api.clone();
        let mut calling = JoinSet::new();
        calling.spawn(async move { api.request(Method::POST, COMMAND).send().await });
        until("the program", || async { pids.exists().then_some(()) }).await;
        bridge.kill();
        until_gone(&pids).await;
    }
}
