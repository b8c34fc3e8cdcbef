//! Services over gRPC, on the real servers of grpcio (reflection 1alpha alone) and grpc-js (reflection 1): JSON both
//! ways, statuses, bounds, and servers that end.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::harness::process::Home;
use crate::harness::until;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/grpc");
const METHODS: [&str; 7] = [
    "Echo", "Metadata", "Fail", "Wait", "Flood", "Watch", "Missing",
];
const BOUNDS: &str = "answer_bytes = 65536\ntimeout = \"2s\"\nauth = \"dev-headers\"\n";

/// Server that ends with the test.
pub(super) struct Server {
    process: Child,
    pub(super) port: u16,
}

impl Server {
    fn start(mut command: Command) -> Self {
        let started = command.stdout(Stdio::piped()).stdin(Stdio::null()).spawn();
        let mut process = started.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut port = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut port).unwrap();
        let port = port.trim().parse();
        let port = port.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { process, port }
    }

    pub(super) fn grpcio(arguments: &[&str]) -> Self {
        let mut command = Command::new(forge_test_runtimes::grpc_python());
        command
            .arg("-B")
            .arg(format!("{FIXTURE}/server.py"))
            .args(arguments);
        Self::start(command)
    }

    fn grpc_js(port: u16) -> Self {
        let mut command = Command::new(forge_test_runtimes::node());
        command
            .arg(format!("{FIXTURE}/server.mjs"))
            .arg(port.to_string());
        command.arg(forge_test_runtimes::grpc_js());
        Self::start(command)
    }

    fn kill(&mut self) {
        // It has ended if this fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Service `probe` whose commands are the methods of probe.proto; `Echo` is a query, too.
pub(super) fn manifest_of(port: u16) -> Value {
    let entry = |name: &str, kind: &str| json!({"name": name, "kind": kind, "path": format!("/probe.v1.Probe/{name}")});
    let mut entries: Vec<_> = METHODS.iter().map(|name| entry(name, "command")).collect();
    entries.push(entry("Fail", "query"));
    entries.push(json!({"name": "NoPath", "kind": "command"}));
    let url = format!("http://127.0.0.1:{port}");
    manifest(
        &json!({"name": "probe", "transport": "grpc", "baseUrl": url}),
        &json!(entries),
    )
}

fn path(method: &str) -> String {
    format!("/external/probe/commands/{method}")
}

/// Everything that the JSON mapping of protobuf treats in a special way.
fn everything() -> Value {
    json!({
        "big": "9007199254740993", "data": "AP+/", "kind": "KIND_SMALL", "counts": {"a": 1, "é": -2},
        "number": 0, "at": "2026-11-25T01:02:03.500Z",
    })
}

async fn exchange(setup: &Setup) {
    let echo = path("Echo");
    let (status, body) = setup.post(&echo, &json!({"args": everything()}), &[]).await;
    assert_eq!(
        (status, &body["result"]),
        (StatusCode::OK, &everything()),
        "{body}"
    );
    // A number, a name in snake case and an enum by number mean the same; defaults are left out.
    let other = json!({"big": 5, "kind": 1, "text": "é", "counts": {}});
    let (_, body) = setup.post(&echo, &json!({"args": other}), &[]).await;
    assert_eq!(
        body["result"],
        json!({"big": "5", "kind": "KIND_SMALL", "text": "é"})
    );
    // The status alone says that a call failed.
    let (_, body) = setup
        .post(&echo, &json!({"args": {"ok": false}}), &[])
        .await;
    assert_eq!(body["result"], json!({}));

    for (args, reason) in [
        (json!({"unknown": 1}), "unknown"),
        (json!({"text": "a", "number": 1}), "oneof"),
        (json!({"big": "many"}), "big"),
        (json!([1]), "map"),
    ] {
        let (status, code, message) = setup.failure(&echo, args.clone()).await;
        assert_eq!(
            (status, code.as_str()),
            (400, "FORGE_EXTERNAL_INPUT_INVALID"),
            "{args}: {message}"
        );
        assert!(
            message.contains("probe.v1.Everything"),
            "{reason}: {message}"
        );
    }
}

async fn statuses(setup: &Setup) {
    const NAMES: [&str; 16] = [
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    for (code, name) in (1..).zip(NAMES) {
        let args = json!({"code": code, "message": "because é"});
        let (status, found, message) = setup.failure(&path("Fail"), args).await;
        if name == "DEADLINE_EXCEEDED" {
            assert_eq!(
                (status, found.as_str()),
                (504, "FORGE_EXTERNAL_RUNTIME_TIMEOUT")
            );
            continue;
        }
        assert_eq!(
            (status, found.as_str()),
            (400, "FORGE_EXTERNAL_RUNTIME_FAILED"),
            "{message}"
        );
        let said = format!("external runtime returned gRPC status {name}: because é");
        assert_eq!(message, said);
    }
}

async fn bounds(setup: &Setup) {
    let size = |value: u32| json!({ "value": value });
    let (status, code, message) = setup.failure(&path("Flood"), size(70_000)).await;
    assert_eq!(
        (status, code.as_str()),
        (400, "FORGE_EXTERNAL_RUNTIME_BAD_RESPONSE"),
        "{message}"
    );
    assert!(message.contains("longer than 65536 bytes"), "{message}");
    let (status, body) = setup
        .post(&path("Flood"), &json!({"args": size(65_000)}), &[])
        .await;
    assert_eq!(
        (status, body["result"]["text"].as_str().unwrap().len()),
        (StatusCode::OK, 65_000)
    );
    let (status, code, _) = setup.failure(&path("Wait"), size(10_000)).await;
    assert_eq!(
        (status, code.as_str()),
        (504, "FORGE_EXTERNAL_RUNTIME_TIMEOUT")
    );

    for (method, code, expected) in [
        (
            "Watch",
            "FORGE_EXTERNAL_RUNTIME_UNSUPPORTED",
            "streaming method",
        ),
        (
            "NoPath",
            "FORGE_EXTERNAL_RUNTIME_UNSUPPORTED",
            "/package.Service/Method",
        ),
        (
            "Missing",
            "FORGE_EXTERNAL_RUNTIME_FAILED",
            "no method \"Missing\"",
        ),
    ] {
        let (status, found, message) = setup.failure(&path(method), json!({})).await;
        assert_eq!((status, found.as_str()), (400, code), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

async fn identity(setup: &Setup) {
    let headers = [
        ("x-forge-user-id", "u1"),
        ("x-forge-role", "admin"),
        ("cookie", "a=b"),
    ];
    let (_, body) = setup.post(&path("Metadata"), &json!({}), &headers).await;
    let pairs = &body["result"]["pairs"];
    assert_eq!(pairs["x-forge-user-id"], "u1", "{body}");
    assert_eq!(pairs["x-forge-roles"], "[\"admin\"]");
    assert_eq!(pairs["x-forge-external-entry"], "Metadata");
    assert_eq!(pairs["x-forge-trace-id"], body["traceId"]);
    assert_eq!(pairs["cookie"], Value::Null);
}

#[tokio::test]
async fn grpcio_is_called_by_reflection_1alpha() {
    let server = Server::grpcio(&["0"]);
    let setup = Setup::new(&[manifest_of(server.port)], BOUNDS).await;
    exchange(&setup).await;
    statuses(&setup).await;
    bounds(&setup).await;
    identity(&setup).await;
    setup.bridge.stop().await;
}

#[tokio::test]
async fn grpc_js_is_called_by_reflection_1_and_again_after_its_end() {
    let mut server = Server::grpc_js(0);
    let setup = Setup::new(&[manifest_of(server.port)], BOUNDS).await;
    exchange(&setup).await;
    statuses(&setup).await;
    bounds(&setup).await;
    identity(&setup).await;

    server.kill();
    let (status, code, message) = setup.failure(&path("Echo"), json!({})).await;
    assert_eq!(
        (status, code.as_str()),
        (400, "FORGE_EXTERNAL_RUNTIME_FAILED")
    );
    assert!(
        message.contains("is not reachable") || message.contains("closed"),
        "{message}"
    );
    let _again = Server::grpc_js(server.port);
    until("the server is called again", || async {
        let (status, _) = setup.call(&path("Echo")).await;
        (status == StatusCode::OK).then_some(())
    })
    .await;
    setup.bridge.stop().await;
}

/// Writes the descriptors of the fixture.
fn descriptor_set(folder: &Path) -> PathBuf {
    let file = folder.join("probe.binpb");
    let mut command = Command::new(forge_test_runtimes::grpc_python());
    command
        .arg("-B")
        .arg(format!("{FIXTURE}/server.py"))
        .arg("--descriptor-set")
        .arg(&file);
    assert!(command.status().unwrap().success());
    file
}

#[tokio::test]
async fn a_server_without_reflection_is_called_by_a_file() {
    let server = Server::grpcio(&["0", "--no-reflection"]);
    let setup = Setup::new(&[manifest_of(server.port)], BOUNDS).await;
    let (status, code, message) = setup.failure(&path("Echo"), json!({})).await;
    assert_eq!(
        (status, code.as_str()),
        (400, "FORGE_EXTERNAL_RUNTIME_UNSUPPORTED")
    );
    assert!(message.contains("descriptor_set"), "{message}");
    setup.bridge.stop().await;

    let folder = tempfile::tempdir().unwrap();
    let file = descriptor_set(folder.path());
    let settings = format!("{BOUNDS}[external.services.probe]\ndescriptor_set = {file:?}\n");
    let setup = Setup::new(&[manifest_of(server.port)], &settings).await;
    exchange(&setup).await;
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_refused_address_is_not_called_over_grpc() {
    let server = Server::grpcio(&["0"]);
    let setup = Setup::new(&[manifest_of(server.port)], "allow = []\n").await;
    let (status, code, message) = setup.failure(&path("Echo"), json!({})).await;
    assert_eq!(
        (status, code.as_str()),
        (400, "FORGE_EXTERNAL_RUNTIME_FAILED")
    );
    assert!(message.contains("external.allow"), "{message}");
    setup.bridge.stop().await;
}

/// The certificate has to be one of an authority of the system; the name is checked, too.
#[tokio::test]
async fn a_server_with_tls_is_called_if_its_certificate_is_trusted() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let home = Home::new(&[]);
    let file = |name: &str, text: String| {
        let path = home.dir.path().join(name).display().to_string();
        std::fs::write(&path, text).unwrap();
        path
    };
    let cert = file("server.crt", made.cert.pem());
    let key = file("server.key", made.signing_key.serialize_pem());
    let server = Server::grpcio(&["0", "--tls", &cert, &key]);
    let mut manifest = manifest_of(server.port);
    let called = async |home: &Home| {
        let bridge = home.start();
        let path = path("Echo");
        let answer = bridge
            .api
            .post(&path, &json!({"args": {"text": "a"}}))
            .await;
        drop(bridge);
        answer
    };
    let url = |host: &str| json!(format!("https://{host}:{}", server.port));
    manifest["service"]["baseUrl"] = url("localhost");
    register(home.dir.path(), &[manifest.clone()]);
    let (status, body) = called(&home).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
    let error = body["error"].as_str().unwrap();
    assert!(error.contains("TLS handshake failed"), "{error}");

    let mut home = home;
    home.set("SSL_CERT_FILE", &cert);
    let (status, body) = called(&home).await;
    assert_eq!(
        (status, &body["result"]),
        (StatusCode::OK, &json!({"text": "a"})),
        "{body}"
    );
    manifest["service"]["baseUrl"] = url("127.0.0.1");
    register(home.dir.path(), &[manifest]);
    let (status, body) = called(&home).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
}
