//! Tokens and session keys of signals: no file, backup, log or command line has them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use forge_base::digest::{hex, sha256};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::harness::api::{JsonBody as _, answer};
use super::harness::process::{Home, Process};
use super::harness::{Answer, CallbackSink};
use super::signals::{Tool, agent_of};
use super::signals_engine;

/// Token with all scopes.
const OPERATOR: &str = "operator-of-the-bridge";
const KEYSTORE: [(&str, &str); 2] = [
    ("FORG_KEYSTORE", "file"),
    (
        "FORG_KEYSTORE_KEY",
        "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
    ),
];
const FORG: &str = env!("CARGO_BIN_EXE_forg");

/// Program of an execution: hands its key to the test, sends a signal by `forg`, and waits until it may end.
const AGENT: &str = r#"
import json, os, subprocess, sys, time, urllib.request
url, forg = sys.argv[1:]
urllib.request.urlopen(url + "/key", os.environ["FORG_SESSION_KEY"].encode())
record = {"adapter": "agent", "ts": 0, "model": "m", "tokens_in": 1, "session_id": os.environ["FORG_SESSION_ID"]}
subprocess.run([forg, "emit", json.dumps(record)], check=True)
while urllib.request.urlopen(url + "/wait").status != 200:
    time.sleep(0.02)
"#;

/// Collects the command lines of all processes until it is dropped.
struct CommandLines {
    is_over: Arc<AtomicBool>,
    seen: Option<thread::JoinHandle<BTreeSet<Vec<u8>>>>,
}

impl CommandLines {
    fn watch() -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let seen = thread::spawn(move || {
            let mut seen = BTreeSet::new();
            loop {
                let is_last = ends.load(Ordering::Relaxed);
                let processes = fs::read_dir("/proc").unwrap().flatten();
                // A process can end between the two steps.
                let lines = processes.filter_map(|one| fs::read(one.path().join("cmdline")).ok());
                seen.extend(lines);
                if is_last {
                    return seen;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        Self {
            is_over,
            seen: Some(seen),
        }
    }

    fn seen(mut self) -> BTreeSet<Vec<u8>> {
        self.is_over.store(true, Ordering::Relaxed);
        self.seen.take().unwrap().join().unwrap()
    }
}

impl Drop for CommandLines {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// One character for each byte, so that any bytes can be searched as text.
fn characters(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}

/// Forms in which a key could appear.
fn forms(key: &[u8]) -> Vec<String> {
    let url_safe = BASE64_URL_SAFE_NO_PAD.encode(key);
    let standard = BASE64_STANDARD.encode(key);
    let plain = standard.trim_end_matches('=').to_owned();
    vec![characters(key), hex(key), plain, url_safe]
}

/// Files below a folder that contain one of the words.
fn holding(folder: &Path, words: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(holding(&path, words));
            continue;
        }
        // A socket cannot be read.
        let text = characters(&fs::read(&path).unwrap_or_default());
        if words.iter().any(|word| text.contains(word)) {
            found.push(path.display().to_string());
        }
    }
    found
}

async fn forg(home: &Home, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command = Command::new(FORG);
    command
        .env_clear()
        .env("HOME", home.dir.path())
        .envs(variables.iter().copied())
        .current_dir(home.dir.path())
        .args(arguments)
        .stdin(Stdio::null());
    let output = spawn_blocking(move || command.output().unwrap()).await;
    let output = output.unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    output
}

fn text(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

/// Home whose bridge knows the token that `forg activate` has made, and runs the agent; and that token.
async fn activated(sink: &CallbackSink) -> (Home, String) {
    let mut home = Home::new(&[
        ("BRIDGE_LOG_LEVEL", "trace"),
        ("BRIDGE_ADAPTERS", "command"),
    ]);
    home.set("PATH", &std::env::var("PATH").unwrap());
    let made = forg(&home, &KEYSTORE, &["activate"]).await;
    let line = text(&made).lines().find(|line| line.contains("hash ="));
    let printed = forg(&home, &KEYSTORE, &["token", "--print"]).await;
    let token = text(&printed).trim().to_owned();
    let agent = home.dir.path().join("agent.py");
    fs::write(&agent, AGENT).unwrap();
    let settings = format!(
        "auth.token = [\n{{ hash = \"{}\", name = \"operator\" }},\n{}]\n[adapters.command]\nisolation = \"process\"\n\
         program = \"python3\"\nargs = [{:?}, {:?}, {FORG:?}]\n",
        hex(&sha256(OPERATOR)),
        line.unwrap(),
        agent.display().to_string(),
        sink.url("")
    );
    fs::write(home.dir.path().join("forge-bridge.toml"), settings).unwrap();
    (home, token)
}

/// Starts a dispatch; returns its id.
async fn dispatch(bridge: &Process) -> String {
    let body = json!({
        "taskId": "t", "agentId": "a", "provider": "command", "message": "go", "callbackUrl": null,
    });
    let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let (status, accepted) = answer(request.bearer_auth(OPERATOR).json_body(&body)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{accepted}");
    accepted["dispatchId"].as_str().unwrap().to_owned()
}

async fn finished(bridge: &Process, id: &str) -> Value {
    let path = format!("/api/v2/dispatch/{id}?wait=60");
    let request = bridge.api.request(Method::GET, &path);
    answer(request.bearer_auth(OPERATOR)).await.1
}

#[tokio::test]
async fn no_token_and_no_session_key_is_kept_or_shown() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(202));
    let lines = CommandLines::watch();
    let (home, token) = activated(&sink).await;
    let bridge = home.start();
    let agent = agent_of(&bridge.api).await;

    // A session that `forg` opens, whose key the test gets too.
    let variables = [("FORG_AGENT_URL", agent.as_str())];
    for event in ["session.start", "model.call"] {
        let arguments = ["emit", "--adapter", "cli", "--session", "own", "--event"];
        let usage = ["--model", "m", "--input-tokens", "1"];
        let usage = if event == "model.call" {
            &usage[..]
        } else {
            &[]
        };
        let arguments = [&arguments[..], &[event], usage].concat();
        forg(&home, &variables, &arguments).await;
    }
    let own = json!({"adapter": "cli", "client_session_id": "own"});
    let tool = Tool::start(&agent, &own).await;
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(health["signals"]["sessions"], 1, "{health}");
    let signal = json!({"type": "post-tool", "adapter": "a", "session_id": "s"});
    let told = signals_engine::try_send(&bridge.api, &token, &signal).await;
    assert_eq!(told.unwrap()["logged"], true);

    // An execution, whose program has a key of its own.
    let id = dispatch(&bridge).await;
    let key = sink.until(1).await.remove(0).body;
    let mut words = forms(&BASE64_STANDARD.decode(&key).unwrap());
    words.extend(forms(&tool.key));
    words.extend([token.clone(), token[..32].to_owned()]);
    sink.until(2).await;
    let backup = home.dir.path().join("copy.db");
    let copied = home
        .command()
        .args(["store", "backup"])
        .arg(&backup)
        .output();
    let copied = copied.unwrap();
    assert!(copied.status.success() && backup.is_file(), "{copied:?}");
    sink.answer(Answer::status(200));
    let ended = finished(&bridge, &id).await;
    assert_eq!(ended["result"]["status"], "ok", "{ended}");

    let folder = home.dir.path();
    assert!(folder.join("data/bridge.db-wal").is_file());
    assert!(home.log().contains("DEBUG"), "{}", home.log());
    let hash = hex(&sha256(&token));
    let settings = folder.join("forge-bridge.toml").display().to_string();
    assert!(
        holding(folder, &[hash]).contains(&settings),
        "it would be found"
    );
    assert_eq!(holding(folder, &words), [""; 0]);
    bridge.kill();
    assert_eq!(holding(folder, &words), [""; 0]);

    let seen: Vec<_> = lines.seen().iter().map(|line| characters(line)).collect();
    for expected in ["agent.py", "emit\0"] {
        assert!(seen.iter().any(|line| line.contains(expected)), "{seen:?}");
    }
    for line in seen {
        assert!(!words.iter().any(|word| line.contains(word)), "{line}");
    }
}
