//! The log of the real program: standard error that is full, closed or not read stops nothing, no message forges a
//! line, and changes of a runtime are logged without their content.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, PipeReader, Read};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use forge_base::digest::{hex, sha256};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::harness::api::{JsonBody as _, answer, owed, quiet, with};
use super::harness::library::{compile, file_name};
use super::harness::port::Reserved;
use super::harness::process::{Home, Process, listening};
use super::harness::{Api, CallbackSink, plugins, until};

/// Starts a bridge and reads its log until it listens.
fn start(home: &Home) -> (Process, BufReader<PipeReader>) {
    let (reader, writer) = std::io::pipe().unwrap();
    let mut bridge = home.spawn(writer.into());
    let mut log = BufReader::new(reader);
    let url = log
        .by_ref()
        .lines()
        .find_map(|line| listening(&line.unwrap()));
    bridge.api = Api::new(url.unwrap());
    (bridge, log)
}

/// Home of a bridge with echo and the adapter of `tests/fixtures/rogue`, and the folder of the latter.
fn with_rogue() -> (Home, TempDir) {
    let mut home = Home::new(&[("BRIDGE_ADAPTERS", "echo,rogue")]);
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join(file_name("rogue"));
    compile(&library, "rogue/rogue.c", &[]);
    let path = format!("{},{}", folder.path().display(), plugins().display());
    home.set("BRIDGE_PLUGIN_PATH", &path);
    (home, folder)
}

/// Number of dropped log lines, from the metrics.
async fn dropped(bridge: &Process) -> u64 {
    let page = bridge.api.request(Method::GET, "/metrics").send().await;
    let page = page.unwrap().text().await.unwrap();
    let name = "forge_bridge_log_lines_dropped_total ";
    let count = page.lines().find_map(|line| line.strip_prefix(name));
    count.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_log_on_a_full_disk_stops_nothing() {
    let mut home = Home::new(&[]);
    // Free again once its reservation is dropped here.
    let address = Reserved::new().address().to_string();
    home.set("BRIDGE_LISTEN", &address);
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut bridge = home.spawn(full.into());
    bridge.api = Api::new(format!("http://{address}"));
    until("the bridge to be ready", async || {
        let answer = bridge.api.request(Method::GET, "/api/health/ready");
        let status = answer.send().await.ok()?.status();
        (status == StatusCode::OK).then_some(())
    })
    .await;
    assert_eq!(bridge.api.run(quiet("t", "ok")).await["status"], "ok");
    assert!(dropped(&bridge).await > 0);
    bridge.terminate();
    assert!(bridge.ended().await.success());
}

#[tokio::test]
async fn a_bridge_whose_log_is_closed_is_managed_reloaded_and_drained() {
    let sink = CallbackSink::start().await;
    let home = Home::new(&[]);
    let (bridge, log) = start(&home);
    drop(log);
    for operation in ["pause", "resume", "reload"] {
        let path = format!("/api/v2/adapters/echo/{operation}");
        let (status, answer) = bridge.api.post(&path, &json!({})).await;
        assert!(status.is_success(), "{operation}: {answer}");
    }
    let before = dropped(&bridge).await;
    bridge.hang_up();
    until("the reload", async || {
        (dropped(&bridge).await > before).then_some(())
    })
    .await;
    let running = owed("t", "slow:500", &sink.url("/cb"));
    let running = bridge.api.dispatch(running).await;
    bridge.api.running(&running).await;
    bridge.terminate();
    assert!(bridge.ended().await.success());
    assert_eq!(
        sink.received().len(),
        1,
        "the callback was sent before the end"
    );
}

#[tokio::test]
async fn an_unread_log_delays_nothing_and_reports_the_gap_when_it_is_read() {
    let (mut home, _libraries) = with_rogue();
    home.set("BRIDGE_LOG_LEVEL", "trace");
    let (bridge, log) = start(&home);
    let rounds = AtomicU32::new(0);
    until("lines to be dropped", async || {
        let round = rounds.fetch_add(1, Ordering::Relaxed);
        for (provider, model) in [("rogue", "logs:200"), ("echo", "stream:20")] {
            let body = quiet(&format!("{provider}-{round}"), model);
            let body = with(body, &json!({ "provider": provider }));
            assert_eq!(bridge.api.run(body).await["status"], "ok");
        }
        (dropped(&bridge).await > 0).then_some(())
    })
    .await;

    let (gap, gaps) = mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut stopped = false;
        for line in log.lines() {
            let line = line.unwrap();
            if let Some((before, _)) = line.split_once(" log lines were dropped") {
                let count: u64 = before.rsplit(' ').next().unwrap().parse().unwrap();
                // The test needs the first only.
                let _ = gap.send(count);
            }
            stopped |= line.ends_with("INFO stopped");
        }
        stopped
    });
    let count = until("the gap to be reported", async || gaps.try_recv().ok()).await;
    let all = dropped(&bridge).await;
    assert!((1..=all).contains(&count), "{count} of {all}");
    assert_eq!(bridge.api.run(quiet("after", "ok")).await["status"], "ok");
    bridge.terminate();
    assert!(bridge.ended().await.success());
    assert!(reading.join().unwrap(), "the last lines were written");
}

#[tokio::test]
async fn a_message_with_control_characters_is_one_line() {
    let (home, _libraries) = with_rogue();
    let bridge = home.start();
    let body = with(quiet("t", "log"), &json!({"provider": "rogue"}));
    assert_eq!(bridge.api.run(body).await["status"], "ok");
    until("the message", async || {
        home.log().contains(r"first\nsecond\u{1b}[2J").then_some(())
    })
    .await;
    assert!(!home.log().contains('\u{1b}'), "{}", home.log());
}

/// Word in every content of the changes below.
const CONTENT: &str = "planted-content-of-a-change-3e8a";

/// One change of each kind: method, path, body, the op that is called, the name of the entry, and the outcome.
fn changes() -> [(
    Method,
    &'static str,
    Value,
    &'static str,
    &'static str,
    &'static str,
); 13] {
    let text = json!({ "content": CONTENT });
    let agent = |id: &str| json!({"agentId": id, "systemPrompt": CONTENT, "colour": CONTENT});
    let skill = json!({"skillKey": "dig", "content": CONTENT, "description": CONTENT});
    let bindings = json!({"bindings": [{"channel": "slack", "team": CONTENT}]});
    let file = "/agents/ada/files/notes/a.md";
    let (put, post, delete) = (Method::PUT, Method::POST, Method::DELETE);
    let none = Value::Null;
    [
        (
            post.clone(),
            "/agents",
            agent("ada"),
            "agents.create",
            "ada",
            "done",
        ),
        (
            post.clone(),
            "/agents",
            agent("ada"),
            "agents.create",
            "ada",
            "INVALID_REQUEST",
        ),
        (
            post.clone(),
            "/agents",
            agent("taken"),
            "agents.create",
            "taken",
            "CONFLICT",
        ),
        (
            post.clone(),
            "/agents",
            agent("panic"),
            "agents.create",
            "panic",
            "ADAPTER_ERROR",
        ),
        (
            put.clone(),
            "/agents/ada",
            agent("ada"),
            "agents.update",
            "ada",
            "done",
        ),
        (
            put.clone(),
            file,
            text.clone(),
            "runtime.pushFile",
            "ada",
            "done",
        ),
        (
            delete.clone(),
            file,
            none.clone(),
            "agents.removeFile",
            "ada",
            "done",
        ),
        (
            put.clone(),
            "/agents/ada/bindings",
            bindings,
            "agents.setBindings",
            "ada",
            "done",
        ),
        (
            post.clone(),
            "/skills",
            skill.clone(),
            "skills.create",
            "dig",
            "done",
        ),
        (put, "/skills/dig", skill, "skills.update", "dig", "done"),
        (
            post,
            "/skills/dig/dependencies",
            none.clone(),
            "skills.installDependencies",
            "dig",
            "done",
        ),
        (
            delete.clone(),
            "/skills/dig",
            none.clone(),
            "skills.remove",
            "dig",
            "done",
        ),
        (delete, "/agents/ada", none, "agents.remove", "ada", "done"),
    ]
}

#[tokio::test]
async fn a_change_of_a_runtime_is_one_line_without_its_content() {
    let home = Home::new(&[
        ("BRIDGE_ADAPTERS", "echo,manager"),
        ("BRIDGE_LOG_LEVEL", "trace"),
    ]);
    let hash = hex(&sha256(b"the-token"));
    let file = format!("[[auth.token]]\nname = \"ci\"\nhash = \"{hash}\"\n");
    std::fs::write(home.dir.path().join("forge-bridge.toml"), file).unwrap();
    let bridge = home.start();
    let mut lines = Vec::new();
    for (method, path, body, op, entry, outcome) in changes() {
        let request = bridge.api.request(method, &format!("/api/v2{path}"));
        let request = request.bearer_auth("the-token");
        let (status, answer) = match &body {
            Value::Null => answer(request).await,
            body => answer(request.json_body(body)).await,
        };
        assert_eq!(status.is_success(), outcome == "done", "{path}: {answer}");
        lines.push(format!(
            "{op} {entry:?} on adapter manager by ci: {outcome}"
        ));
    }
    bridge.terminate();
    assert!(bridge.ended().await.success());
    let log = home.log();
    let logged = log.lines().filter_map(|line| {
        line.split_once(" INFO ")?
            .1
            .split_once(" on adapter manager")
    });
    assert_eq!(logged.count(), lines.len(), "{log}");
    for line in lines {
        assert_eq!(log.matches(&line).count(), 1, "{line} in\n{log}");
    }
    assert!(!log.contains(CONTENT), "{log}");
}
