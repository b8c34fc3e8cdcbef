//! External services: calls of commands and queries through the bridge, over HTTP and gRPC and as programs.

mod approvals;
mod calls;
mod durable;
mod following;
mod grpc;
mod hostile;
mod identity;
mod programs;
mod redaction;
mod requests;
mod spans;
mod tokens;
mod tools;
mod walk;

use std::path::Path;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::harness::api::{JsonBody as _, answer};
use super::harness::{Answer, Bridge, CallbackSink};

pub(crate) const COMMAND: &str = "/external/probe/commands/run";
const QUERY: &str = "/external/probe/queries/look";

/// A bridge with services of a folder of its own.
struct Setup {
    bridge: Bridge,
    root: TempDir,
}

impl Setup {
    /// `settings` are lines of `[external]`, and tables after them.
    async fn new(manifests: &[Value], settings: &str) -> Self {
        Self::with(manifests, settings, &[]).await
    }

    async fn with(manifests: &[Value], settings: &str, variables: &[(&str, &str)]) -> Self {
        let root = tempfile::tempdir().unwrap();
        register(root.path(), manifests);
        let file = format!("[external]\nroot = {:?}\n{settings}", root.path());
        let bridge = Bridge::configured(&file, variables).await;
        Self { bridge, root }
    }

    /// Posts a body with further headers.
    async fn post(
        &self,
        path: &str,
        body: &Value,
        headers: &[(&str, &str)],
    ) -> (StatusCode, Value) {
        let request = self.bridge.api.request(Method::POST, path).json_body(body);
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        let (status, body) = answer(request).await;
        if status.as_u16() >= 400 {
            let last = body["diagnostics"].as_array().unwrap().last().unwrap();
            assert_eq!(body["ok"], false, "{body}");
            assert_eq!(body["code"], last["code"], "{body}");
            assert_eq!(body["error"], last["message"], "{body}");
        }
        (status, body)
    }

    async fn call(&self, path: &str) -> (StatusCode, Value) {
        self.post(path, &json!({}), &[]).await
    }

    /// Calls an entry that fails; returns status, code and message.
    async fn failure(&self, path: &str, args: Value) -> (u16, String, String) {
        let (status, body) = self.post(path, &json!({ "args": args }), &[]).await;
        assert_ne!(status, StatusCode::OK, "{body}");
        let text = |key: &str| body[key].as_str().unwrap().to_owned();
        (status.as_u16(), text("code"), text("error"))
    }
}

/// Writes the registry as an import does.
pub(crate) fn register(root: &Path, manifests: &[Value]) {
    let text = json!({ "manifests": manifests, "schemaVersion": "0.1.0" }).to_string();
    write_registry(root, &text);
}

fn write_registry(root: &Path, text: &str) {
    let folder = root.join(".forge");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("new"), text).unwrap();
    std::fs::rename(folder.join("new"), folder.join("external-manifests.json")).unwrap();
}

pub(crate) fn manifest(service: &Value, entries: &Value) -> Value {
    json!({
        "forgeProtocol": "1.0", "language": "rust", "service": service, "entries": entries,
    })
}

/// Service `probe` over HTTP with the public command `run` and the public query `look`.
pub(crate) fn probe(sink: &CallbackSink) -> Value {
    manifest(
        &json!({"name": "probe", "transport": "http", "baseUrl": sink.url("/base/")}),
        &json!([
            {"name": "run", "kind": "command", "path": "/run"},
            {"name": "look", "kind": "query", "path": "look?kept=1", "method": "GET"},
        ]),
    )
}

/// Service that answers every call with this result.
pub(crate) async fn sink_with(result: Value) -> CallbackSink {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(200).body(json!({ "result": result }).to_string()));
    sink
}
