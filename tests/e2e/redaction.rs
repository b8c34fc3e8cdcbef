//! Secrets of every kind are planted and must not appear in anything that a bridge emits or stores: logs at the most
//! verbose level, files, answers and errors, output of commands.

use std::borrow::Cow;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use forge_base::digest::hex;
use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_tungstenite::accept_async;
use tokio_tungstenite::tungstenite::Message;

use super::harness::api::{JsonBody as _, answer, owed, quiet, with};
use super::harness::process::{Home, Process};
use super::harness::{Answer, CallbackSink, until};

/// Planted secrets, one for each kind, unique in the sources.
const TOKEN: &str = "planted-bridge-token-7f3a";
const WRONG_TOKEN: &str = "planted-wrong-token-11c9";
const ADAPTER_IN_FILE: &str = "planted-adapter-table-09be";
const ADAPTER_IN_VARIABLES: &str = "planted-adapter-variable-4d21";
const MCP_ENV: &str = "planted-mcp-env-8e52";
const MCP_HEADER: &str = "planted-mcp-header-c370";
const ORIGIN_BEARER: &str = "planted-origin-bearer-a61f";
const HERMES: &str = "planted-hermes-token-b83e";
const OPENCLAW: &str = "planted-openclaw-token-64ad";
const UPSTREAM: &str = "planted-upstream-token-51d7";
const REGISTRATION: &str = "planted-registration-2b94";
const OTLP: &str = "planted-otlp-header-d9c6";
const BEARER: &str = "planted-callback-bearer-55d8";
const HEADER: &str = "planted-callback-header-e7a0";
const MALFORMED: &str = "planted-malformed-f18c";
const KEY: [u8; 32] = *b"planted-key-of-the-store-6c2e-ab";
const FORMER_KEY: [u8; 32] = *b"planted-former-key-of-store-9d-1";
const SIGNING: &[u8; 32] = b"planted-signing-secret-30f1-zzzz";
const OWN_SIGNING: &[u8; 32] = b"planted-own-signing-of-one-b4-zz";

fn signing(key: &[u8]) -> String {
    format!("whsec_{}", BASE64.encode(key))
}

/// Planted secrets in each form in which they could appear.
fn planted() -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = [
        TOKEN,
        WRONG_TOKEN,
        ADAPTER_IN_FILE,
        ADAPTER_IN_VARIABLES,
        MCP_ENV,
        MCP_HEADER,
        ORIGIN_BEARER,
        HERMES,
        OPENCLAW,
        REGISTRATION,
        UPSTREAM,
        OTLP,
        BEARER,
        HEADER,
        MALFORMED,
    ]
    .map(|word| word.as_bytes().to_vec())
    .into();
    for key in [&KEY, &FORMER_KEY, SIGNING, OWN_SIGNING] {
        words.extend([key.to_vec(), hex(key).into(), BASE64.encode(key).into()]);
    }
    words
}

fn found(bytes: &[u8], words: &[Vec<u8>]) -> Vec<String> {
    // Comparing windows takes seconds for a log in a debug build. What is not UTF-8 is replaced, and secrets are ASCII.
    let text = String::from_utf8_lossy(bytes);
    let words = words.iter().map(|word| String::from_utf8_lossy(word));
    words
        .filter(|word| text.contains(&**word))
        .map(Cow::into_owned)
        .collect()
}

pub(crate) fn assert_clean(place: &str, bytes: &[u8], words: &[Vec<u8>]) {
    let found = found(bytes, words);
    assert!(
        found.is_empty(),
        "{found:?} in {place}: {}",
        String::from_utf8_lossy(&bytes[..bytes.len().min(2000)])
    );
}

fn files(folder: &Path, all: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, all),
            false => all.push(path),
        }
    }
}

/// Searches all files of a bridge's data.
pub(crate) fn assert_folder_clean(folder: &Path, words: &[Vec<u8>]) {
    let mut all = Vec::new();
    files(folder, &mut all);
    assert!(
        all.iter().any(|file| file.ends_with("bridge.db-wal")),
        "{all:?}"
    );
    for file in all {
        assert_clean(
            &file.display().to_string(),
            &fs::read(&file).unwrap(),
            words,
        );
    }
}

/// A gateway of OpenClaw that refuses each connection with the token in its reason; returns its address.
async fn gateway() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    forge_base::tasks::Tasks::here().spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut socket = accept_async(stream).await.unwrap();
            let challenge = json!({"type": "event", "event": "connect.challenge", "payload": {"nonce": "n", "ts": 1}});
            socket
                .send(Message::text(challenge.to_string()))
                .await
                .unwrap();
            let request = socket.next().await.unwrap().unwrap().into_text().unwrap();
            let request: Value = serde_json::from_str(&request).unwrap();
            let token = request["params"]["auth"]["token"].as_str().unwrap();
            let details = json!({"code": "AUTH_TOKEN_MISMATCH"});
            let error = json!({"code": "INVALID_REQUEST", "message": format!("not {token}"), "details": details});
            let refusal = json!({"type": "res", "id": request["id"], "ok": false, "error": error});
            socket
                .send(Message::text(refusal.to_string()))
                .await
                .unwrap();
        }
    });
    url
}

fn file(
    registry: &CallbackSink,
    collector: &CallbackSink,
    receiver: &CallbackSink,
    gateway: &str,
) -> String {
    format!(
        r#"
auth.tokens = ["{TOKEN}"]
callback.secrets = ["{}"]
callback.allow = ["loopback"]
registration.url = "{}"
registration.token = "{REGISTRATION}"
signals.upstream.url = "http://127.0.0.1:9"
signals.upstream.token = "{UPSTREAM}"
otlp.endpoint = "{}"
otlp.headers = ["x-otlp-key={OTLP}"]
secret.previous = ["{}"]
[callback.origins."{}"]
bearer = "{ORIGIN_BEARER}"
[adapters.echo]
api_key = "{ADAPTER_IN_FILE}"
[adapters.hermes-agent]
management_url = "{}"
management_token = "{HERMES}"
[adapters.openclaw]
url = "{gateway}"
token = "{OPENCLAW}"
[mcp.servers.program]
command = "false"
env = {{ API_KEY = "{MCP_ENV}" }}
[mcp.servers.remote]
url = "{}"
headers = {{ authorization = "Bearer {MCP_HEADER}" }}
"#,
        signing(SIGNING),
        registry.url("/gateways"),
        collector.url("/otlp"),
        BASE64.encode(FORMER_KEY),
        receiver.url(""),
        receiver.url("/hermes"),
        receiver.url("/mcp"),
    )
}

fn home(file: &str) -> Home {
    let home = Home::new(&[
        ("BRIDGE_ADAPTERS", "echo,hermes-agent,openclaw"),
        ("BRIDGE_LOG_LEVEL", "trace"),
        ("BRIDGE_SECRET_KEY", &hex(&KEY)),
        ("ECHO_API_KEY", ADAPTER_IN_VARIABLES),
        ("BRIDGE_ADAPTERS_ECHO_SECOND_KEY", ADAPTER_IN_VARIABLES),
    ]);
    fs::write(home.dir.path().join("forge-bridge.toml"), file).unwrap();
    home
}

async fn asked(
    bridge: &Process,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> (StatusCode, String) {
    let mut request = bridge.api.request(method, path).bearer_auth(TOKEN);
    request = request.header("accept", "application/json");
    if let Some(body) = body {
        request = request.json_body(body);
    }
    let answer = request.send().await.unwrap();
    let (status, headers) = (answer.status(), format!("{:?}", answer.headers()));
    (status, headers + &answer.text().await.unwrap())
}

/// Runs work of every kind, with a secret in each member that accepts one; returns the accepted tasks.
async fn work(bridge: &Process, receiver: &CallbackSink) -> Vec<String> {
    let callback = json!({"callback": {
        "bearer": BEARER, "secret": signing(OWN_SIGNING), "headers": {"X-Api-Key": HEADER},
    }});
    let mut ids = Vec::new();
    for (task, model, more) in [
        ("ok", "ok", json!({})),
        ("fails", "fail", json!({})),
        ("panics", "panic", json!({})),
        ("with-program", "ok", json!({"mcpServers": ["program"]})),
        ("with-remote", "ok", json!({"mcpServers": ["remote"]})),
        ("runs", "hang", json!({})),
    ] {
        let body = with(
            with(owed(task, model, &receiver.url("/cb")), &callback),
            &more,
        );
        let (status, answer) = asked(bridge, Method::POST, "/api/v2/dispatch", Some(&body)).await;
        match status {
            StatusCode::ACCEPTED => ids.push(task.to_owned()),
            // Not every adapter accepts MCP servers.
            status => assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{answer}"),
        }
    }
    receiver.until(3).await;
    ids
}

/// Sends invalid requests that contain secrets; returns each with its answer.
async fn refusals(bridge: &Process) -> Vec<(String, String)> {
    let wrong = |more: Value| {
        with(
            quiet("t", "ok"),
            &json!({"callbackUrl": "https://example.org", "callback": more}),
        )
    };
    let mut answers = Vec::new();
    for body in [
        wrong(json!({"bearer": [MALFORMED]})),
        wrong(json!({"bearer": format!("two {MALFORMED}")})),
        wrong(json!({"secret": MALFORMED})),
        wrong(json!({"secret": {"a": MALFORMED}})),
        wrong(json!({"headers": {"authorization": MALFORMED}})),
        wrong(json!({"headers": {"x-key": [MALFORMED]}})),
        wrong(json!({"headers": {"x-key": format!("ü{MALFORMED}")}})),
        wrong(json!({"headers": MALFORMED})),
        wrong(json!(MALFORMED)),
    ] {
        let (status, answer) = asked(bridge, Method::POST, "/api/v2/dispatch", Some(&body)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        answers.push((body.to_string(), answer));
    }
    let broken = format!("{{\"callback\": {{\"bearer\": \"{MALFORMED}\", }}");
    let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let answer = request
        .bearer_auth(TOKEN)
        .header("content-type", "application/json")
        .body(broken)
        .send()
        .await
        .unwrap();
    answers.push(("broken JSON".to_owned(), answer.text().await.unwrap()));
    for path in [
        "/api/v2/dispatches",
        "/api/v2/events?ticket=planted-wrong-token-11c9",
        "/nowhere",
    ] {
        let request = bridge.api.request(Method::GET, path);
        let answer = request.bearer_auth(WRONG_TOKEN).send().await.unwrap();
        answers.push((path.to_owned(), answer.text().await.unwrap()));
    }
    answers
}

#[tokio::test]
async fn nothing_that_is_secret_is_said_or_kept_in_the_clear() {
    let (registry, receiver) = (CallbackSink::start().await, CallbackSink::start().await);
    let collector = CallbackSink::start().await;
    receiver.answer_with(|request| match request.path.as_str() {
        "/cb" if request.number % 2 == 0 => Answer::status(503),
        path if path.starts_with("/hermes") => {
            let token = &request.headers["x-hermes-session-token"];
            Answer::status(400).body(json!({ "detail": token }).to_string())
        }
        _ => Answer::status(200),
    });
    let mut home = home(&file(&registry, &collector, &receiver, &gateway().await));
    home.variables.remove("BRIDGE_CALLBACK_ALLOW");
    let (data, mut words) = (home.dir.path().join("data"), planted());
    let bridge = home.start();
    let ids = work(&bridge, &receiver).await;
    registry.until(1).await;
    assert!(registry.received()[0].headers["authorization"].contains(REGISTRATION));
    collector.until(1).await;
    assert_eq!(collector.received()[0].headers["x-otlp-key"], OTLP);
    let callbacks = receiver.received();
    let callback = callbacks
        .iter()
        .find(|request| request.path == "/cb")
        .unwrap();
    assert_eq!(callback.headers["x-api-key"], HEADER);
    let path = "/api/v2/agents?provider=hermes-agent";
    let (_, refused) = asked(&bridge, Method::GET, path, None).await;
    assert!(refused.contains("Hermes: [REDACTED]"), "{refused}");
    let (_, refused) = asked(
        &bridge,
        Method::GET,
        "/api/v2/agents?provider=openclaw",
        None,
    )
    .await;
    assert!(refused.contains("not [REDACTED]"), "{refused}");

    // Creates one ticket that is used and one that is not.
    let mut streams = Vec::new();
    for used in [true, false] {
        let request = bridge.api.request(Method::POST, "/api/v2/stream-tickets");
        let (_, body) = answer(request.bearer_auth(TOKEN)).await;
        let ticket = body["ticket"].as_str().unwrap().to_owned();
        if used {
            let path = format!("/api/v2/events?after=0&ticket={ticket}");
            let stream = bridge.api.request(Method::GET, &path).send().await.unwrap();
            assert_eq!(stream.status(), StatusCode::OK);
            streams.push(stream);
        }
        words.push(ticket.into());
    }

    for (what, answer) in refusals(&bridge).await {
        assert_clean(&format!("the answer to {what}"), answer.as_bytes(), &words);
    }
    let mut paths: Vec<String> = [
        "/api/health?verbose",
        "/api/health/ready",
        "/api/v2/adapters",
        "/api/v2/adapters/echo",
        "/api/v2/dispatches",
        "/api/v2/deliveries",
        "/api/v2/deliveries/destinations",
        "/metrics",
        "/api/v2/events?after=0&limit=1000",
        "/api/v2/models?provider=echo",
        "/api/v2/agents?provider=hermes-agent",
        "/api/v2/adapters/hermes-agent",
        "/api/v2/agents?provider=openclaw",
        "/api/v2/adapters/openclaw",
        "/openapi.json",
        "/",
    ]
    .map(str::to_owned)
    .into();
    for id in &ids {
        paths.push(format!("/api/v2/dispatch/{id}"));
        paths.push(format!("/api/v2/dispatch/{id}/request"));
        paths.push(format!("/api/v2/dispatch/{id}/output"));
        paths.push(format!("/api/v2/dispatch/{id}/events"));
        let (_, record) = asked(
            &bridge,
            Method::GET,
            &format!("/api/v2/dispatch/{id}"),
            None,
        )
        .await;
        let delivery = record
            .split("/api/v2/deliveries/")
            .nth(1)
            .map(|rest| rest.split('"').next().unwrap());
        paths.extend(delivery.map(|id| format!("/api/v2/deliveries/{id}")));
    }
    for path in paths {
        let (_, answer) = asked(&bridge, Method::GET, &path, None).await;
        assert_clean(&path, answer.as_bytes(), &words);
    }
    commands(&home, &bridge, &words);

    // Reloads valid and invalid settings.
    let file_now = home.dir.path().join("forge-bridge.toml");
    let well = fs::read_to_string(&file_now).unwrap();
    for ill in broken_files() {
        fs::write(&file_now, &ill).unwrap();
        // An environment variable can take precedence over the file, so that the file is accepted.
        let answers = || {
            let log = home.log();
            log.matches("settings unchanged").count() + log.matches("settings reloaded").count()
        };
        let before = answers();
        bridge.hang_up();
        until("an answer to SIGHUP", || async {
            (answers() > before).then_some(())
        })
        .await;
    }
    fs::write(&file_now, &well).unwrap();

    assert_folder_clean(&data, &words);
    bridge.kill();
    assert_folder_clean(&data, &words);
    // The key of the adapter's device is in its own folder, and there alone.
    let device = fs::read(data.join("state/adapter-data/openclaw/device.json")).unwrap();
    let device: Value = serde_json::from_slice(&device).unwrap();
    words.push(device["privateKey"].as_str().unwrap().into());
    // The bridge recovers and stops cleanly.
    let bridge = home.start();
    bridge.terminate();
    assert!(bridge.ended().await.success());
    let log = home.log();
    assert!(log.contains("TRACE"), "the log is as loud as it can be");
    for line in log.lines() {
        assert_clean("a line of the log", line.as_bytes(), &words);
    }
}

/// Configuration files, each with a secret in an invalid place.
fn broken_files() -> Vec<String> {
    [
        "auth.tokens = \"PLANTED\"",
        "auth.tokens = [\"PLANTED\"",
        "auth.tokens = [\"PLANTED\", 5]",
        "auth.token = [{ hash = \"PLANTED\" }]",
        "auth.token = \"PLANTED\"",
        "secret.key = [\"PLANTED\"]",
        "secret.key = \"PLANTED\"",
        "secret.previous = \"PLANTED 1\"",
        "callback.secrets = [\"whsec_PLANTED\"]",
        "callback.origins.\"https://a.example\".bearer = [\"PLANTED\"]",
        "callback.origins.\"https://a.example\".secrets = \"PLANTED\"",
        "registration.token = { a = \"PLANTED\" }",
        "signals.upstream.token = [\"PLANTED\"]",
        "otlp.headers = { a = \"PLANTED\" }",
        "mcp.servers.program.env = \"PLANTED\"",
        "mcp.servers.program.env.A = [\"PLANTED\"]",
        "mcp.servers.remote.headers = [\"PLANTED\"]",
    ]
    .map(|text| text.replace("PLANTED", MALFORMED))
    .into()
}

/// Checks the output of the commands with the token, with a wrong one, and with invalid files.
fn commands(home: &Home, bridge: &Process, words: &[Vec<u8>]) {
    let print = |arguments: &[&str], token: &str| {
        let mut command = home.command();
        command
            .args(arguments)
            .env("BRIDGE_URL", &bridge.api.url)
            .env("BRIDGE_TOKEN", token);
        let output = command.stdin(Stdio::null()).output().unwrap();
        [output.stdout, output.stderr].concat()
    };
    for (token, arguments) in [
        (TOKEN, &["check", "--json"][..]),
        (TOKEN, &["adapters", "--json"]),
        (TOKEN, &["adapters", "inspect", "echo"]),
        (TOKEN, &["deliveries", "list", "--json"]),
        (TOKEN, &["dispatches", "list", "--json"]),
        (TOKEN, &["dispatch", "hello", "--model", "ok", "--json"]),
        (TOKEN, &["secrets", "keys", "--json"]),
        (TOKEN, &["secrets", "rotate"]),
        (TOKEN, &["store", "check", "--json"]),
        (TOKEN, &["--help"]),
        (WRONG_TOKEN, &["adapters", "--json"]),
        (WRONG_TOKEN, &["dispatch", "hello", "--model", "ok"]),
    ] {
        let said = print(arguments, token);
        assert_clean(&format!("{arguments:?}"), &said, words);
    }
    let copy = home.dir.path().join("copy.db");
    print(&["store", "backup", copy.to_str().unwrap()], TOKEN);
    assert_clean("a backup", &fs::read(copy).unwrap(), words);
    let ill = home.dir.path().join("ill.toml");
    for text in broken_files() {
        fs::write(&ill, &text).unwrap();
        let said = print(&["check", "--config", ill.to_str().unwrap()], TOKEN);
        assert_clean(&format!("what is said of {text}"), &said, words);
    }
}
