//! Providers that repeat an adapter's key in their errors: the key reaches no result, event, callback, log or file.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::harness::library::make_safe;
use super::harness::process::Home;
use super::harness::{Answer, Bridge, CallbackSink};

const KEY: &str = "planted-echoed-key-5b1c";
const MARK: &str = "[REDACTED]";

/// Agent of the Agent Client Protocol that repeats its key in a text, on stderr and in an error.
const AGENT: &str = r#"
import json, os, sys
key = "wrong key " + os.environ["AGENT_API_KEY"]
def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "session/prompt":
        print(key, file=sys.stderr, flush=True)
        send({"method": "session/update", "params": {"sessionId": "s", "update": {
            "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": key}}}})
        send({"id": message["id"], "error": {"code": -32000, "message": key}})
    elif "id" in message:
        send({"id": message["id"], "result": {"protocolVersion": 1, "sessionId": "s"}})
"#;

/// Id of an adapter, and the model that a dispatch names.
const ADAPTERS: [(&str, Option<&str>); 11] = [
    ("openai-compatible", Some("m")),
    ("vercel-ai", Some("anthropic/m")),
    ("vercel-ai", Some("openai/m")),
    ("vercel-ai", Some("google/m")),
    ("package", Some("anthropic/m")),
    ("gloo-ai", Some("m")),
    ("claude-agent-sdk", Some("claude-sonnet-4-5")),
    ("a2a", Some("m")),
    ("server", Some("m")),
    ("langgraph", Some("m")),
    ("agent", None),
];

/// A server that answers every GET with what health checks and discovery want, and refuses every POST with the key.
async fn provider() -> CallbackSink {
    let server = CallbackSink::start().await;
    let card = json!({
        "version": "1.0", "ok": true, "data": [], "name": "provider", "protocolVersion": "0.3.0",
        "url": server.url("/rpc"), "preferredTransport": "JSONRPC", "capabilities": {"streaming": false},
    });
    server.answer_with(move |request| {
        if request.method == "GET" {
            return Answer::status(200)
                .header("content-type", "application/json")
                .body(card.to_string());
        }
        let names = ["authorization", "x-api-key", "x-goog-api-key"];
        let sent = names.map(|name| request.headers.get(name).cloned().unwrap_or_default());
        let message = format!("wrong key {}", sent.concat());
        let body = json!({
            "type": "error", "message": message, "detail": message,
            "error": {"type": "invalid_request_error", "code": 400, "status": "INVALID_ARGUMENT", "message": message},
        });
        Answer::status(400)
            .header("content-type", "application/json")
            .body(body.to_string())
    });
    server
}

fn home(provider: &CallbackSink) -> Home {
    let claude = forge_test_runtimes::claude();
    let home = Home::new(&[
        (
            "BRIDGE_ADAPTERS",
            "openai-compatible,vercel-ai,package,gloo-ai,claude-agent-sdk,a2a,server,langgraph,agent",
        ),
        ("BRIDGE_LOG_LEVEL", "debug"),
        ("PATH", &std::env::var("PATH").unwrap()),
        ("CLAUDE_AGENT_SDK_PROGRAM", claude.to_str().unwrap()),
        ("ANTHROPIC_BASE_URL", &provider.url("")),
        ("ANTHROPIC_API_KEY", KEY),
        ("CLAUDE_CODE_MAX_RETRIES", "0"),
        ("GLOO_API_KEY", KEY),
    ]);
    let agent = home.dir.path().join("agent.py");
    fs::write(&agent, AGENT).unwrap();
    let (url, node, ai) = (
        provider.url(""),
        forge_test_runtimes::node(),
        forge_test_runtimes::ai(),
    );
    let mut file = format!(
        "[adapters.openai-compatible]\nbase_url = \"{url}/v1\"\napi_key = \"{KEY}\"\nmodel = \"m\"\n\
         [adapters.gloo-ai]\nbase_url = \"{url}\"\n\
         [adapters.a2a]\nurl = \"{url}\"\ntoken = \"{KEY}\"\n\
         [adapters.server]\nlibrary = \"http\"\nurl = \"{url}\"\nheaders = {{ Authorization = \"Bearer {KEY}\" }}\n\
         [adapters.langgraph]\nurl = \"{url}\"\napi_key = \"{KEY}\"\nassistant = \"a\"\n\
         [adapters.agent]\nlibrary = \"acp\"\nprogram = \"python3\"\nargs = [{agent:?}]\n\
         env = {{ AGENT_API_KEY = \"{KEY}\" }}\n"
    );
    for (id, mode) in [("vercel-ai", "direct"), ("package", "sidecar")] {
        file.push_str(&format!(
            "[adapters.{id}]\nlibrary = \"vercel-ai\"\nmode = {mode:?}\nmodel = \"anthropic/m\"\n\
             [adapters.{id}.providers]\n\
             anthropic = {{ base_url = \"{url}/v1\", api_key = \"{KEY}\" }}\n\
             openai = {{ base_url = \"{url}/v1\", api_key = \"{KEY}\" }}\n\
             google = {{ base_url = \"{url}/v1beta\", api_key = \"{KEY}\" }}\n\
             [adapters.{id}.sidecar]\nnode = {node:?}\npackages = {ai:?}\n",
        ));
    }
    fs::write(home.dir.path().join("forge-bridge.toml"), file).unwrap();
    home
}

/// Program that sends its key in two pieces, without an output: directly after each other, and with an event in between.
const SPLITTER: &str = r#"#!/usr/bin/env python3
import json, sys
def say(line):
    print(json.dumps(line), flush=True)
say({"manifest": {"name": "splitter", "version": "1.0.0", "provider": "splitter", "schema": {"min": 1, "max": 1},
                  "interfaces": ["execution@1"]}})
key = ""
for line in sys.stdin:
    message = json.loads(line)
    call, op, answer = message.get("id"), message.get("op"), None
    if op == "initialize":
        key = message["payload"]["api_key"]
    elif op == "health":
        answer = {"status": "healthy"}
    elif op == "capabilities":
        answer = {"capabilities": ["streaming"], "nativeTools": [], "maxConcurrent": 4, "outputStrategies": ["stream"],
                  "costTier": "low", "latencyProfile": "fast"}
    elif op == "execute":
        def event(name, **data):
            say({"id": call, "event": {"type": name, "data": data}})
        event("assistant.text", delta="wrong key " + key[:9])
        if message["payload"].get("model") == "apart":
            event("exec.progress", kind="halfway")
        event("assistant.text", delta=key[9:] + ", sorry")
        answer = {"status": "ok"}
    if op and op != "create":
        say({"id": call, "ok": answer})
"#;

fn assert_clean(place: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    assert!(!text.contains(KEY), "{place}: {text}");
}

fn assert_folder_clean(folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => assert_folder_clean(&path),
            false => assert_clean(&path.display().to_string(), &fs::read(&path).unwrap()),
        }
    }
}

#[tokio::test]
async fn a_key_that_a_provider_repeats_is_hidden_everywhere() {
    let (provider, receiver) = (provider().await, CallbackSink::start().await);
    let home = home(&provider);
    let bridge = home.start();
    for (at, (adapter, model)) in ADAPTERS.into_iter().enumerate() {
        let task = format!("t-{at}");
        let body = json!({
            "taskId": task, "agentId": "agent", "provider": adapter, "model": model, "message": "hello",
            "timeoutSeconds": 60, "callbackUrl": receiver.url("/cb"),
        });
        let result = bridge.api.run(body).await;
        assert_eq!(result["status"], "error", "{adapter} {model:?}: {result}");
        // The key was repeated, and is hidden.
        let text = result.to_string();
        assert!(text.contains(MARK), "{adapter} {model:?}: {text}");
        assert_clean(adapter, text.as_bytes());
        let events = Value::from(bridge.api.events(&task).await).to_string();
        assert_clean(adapter, events.as_bytes());
    }
    receiver.until(ADAPTERS.len()).await;
    for request in receiver.received() {
        assert_clean("a callback", &request.body);
    }
    let (_, health) = bridge.api.get("/api/health?verbose").await;
    assert_clean("health", health.to_string().as_bytes());
    drop(bridge);
    assert_clean("the log", home.log().as_bytes());
    assert_folder_clean(&home.dir.path().join("data"));
}

#[tokio::test]
async fn a_key_in_two_pieces_is_hidden() {
    let programs = tempfile::tempdir().unwrap();
    let program = programs.path().join("forge-adapter-splitter");
    fs::write(&program, SPLITTER).unwrap();
    make_safe(&program);
    let path = programs.path().to_str().unwrap();
    let settings = format!("[adapters.splitter]\napi_key = \"{KEY}\"\n");
    let variables = [
        ("BRIDGE_ADAPTERS", "splitter"),
        ("BRIDGE_PLUGIN_PATH", path),
    ];
    let bridge = Bridge::configured(&settings, &variables).await;
    for model in ["together", "apart"] {
        let body = json!({
            "taskId": model, "agentId": "agent", "model": model, "message": "hello", "callbackUrl": null,
        });
        let result = bridge.api.run(body).await;
        assert_eq!(result["output"], format!("wrong key {MARK}, sorry"));
    }
    let events = bridge.api.events("together").await;
    let deltas = events
        .iter()
        .filter_map(|event| event["data"]["delta"].as_str());
    let deltas: Vec<&str> = deltas.collect();
    assert_eq!(deltas, ["wrong key ", &format!("{MARK}, sorry")]);
    bridge.stop().await;
}
