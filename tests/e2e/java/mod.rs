//! The Java adapter and its Spring starter: examples and services of the tests, in JVMs whose platform charset is not
//! UTF-8.

mod protocol;
mod spring;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::LazyLock;

use reqwest::{Method, RequestBuilder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::{NamedTempFile, TempDir};

use super::harness::Api;

/// Class path of the adapter, of Jackson and of the example.
pub(crate) static JAVA: LazyLock<String> = LazyLock::new(|| build("java"));

/// Class path of the starter, of the adapter, of Spring and Tomcat, and of the example.
pub(crate) static SPRING: LazyLock<String> = LazyLock::new(|| build("java-spring-boot-starter"));

/// Builds into a folder of the tests; returns the class path.
fn build(adapter: &str) -> String {
    let built = Command::new(root().join("adapters").join(adapter).join("build.sh"))
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join(adapter))
        .output()
        .unwrap();
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    String::from_utf8(built.stdout).unwrap().trim().to_owned()
}

/// A JVM that starts fast, with a temporary folder of its own. Its platform charset is not UTF-8.
pub(crate) fn java(class_path: &str, temporary: &Path) -> Command {
    let mut command = Command::new("java");
    command
        .args(["-Dfile.encoding=ISO-8859-1", "-XX:TieredStopAtLevel=1"])
        .arg(format!("-Djava.io.tmpdir={}", temporary.display()))
        .args(["-cp", class_path]);
    command
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A JVM that is killed when dropped.
struct Service {
    child: Child,
    lines: BufReader<ChildStdout>,
    log: NamedTempFile,
    _temporary: TempDir,
}

impl Service {
    fn start(class_path: &str, arguments: &[&str]) -> Self {
        let log = NamedTempFile::new().unwrap();
        let temporary = TempDir::new().unwrap();
        let mut child = java(class_path, temporary.path())
            .args(arguments)
            .current_dir(root())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.reopen().unwrap())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            lines,
            log,
            _temporary: temporary,
        }
    }

    /// Next line of its output.
    fn line(&mut self) -> String {
        let mut line = String::new();
        let length = self.lines.read_line(&mut line).unwrap();
        assert!(length > 0, "the service ended: {}", self.log());
        line.trim_end().to_owned()
    }

    fn log(&self) -> String {
        let bytes = fs::read(self.log.path()).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn terminate(&self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn answer(request: RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "application/json");
    let status = answer.status().as_u16();
    let body = answer.bytes().await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

async fn post(service: &Api, path: &str, body: impl Into<reqwest::Body>) -> (u16, Value) {
    answer(service.request(Method::POST, path).body(body)).await
}

async fn get(service: &Api, path: &str) -> (u16, Value) {
    answer(service.request(Method::GET, path)).await
}

/// Answer to a call that fails, in the form of the protocol.
fn failure(code: &str, message: &str) -> Value {
    let docs = ["docs/forge-protocol.md"];
    let diagnostic = json!({"severity": "error", "code": code, "message": message, "docs": docs});
    json!({"ok": false, "diagnostics": [diagnostic], "error": {"code": code, "message": message}})
}

/// Asserts that `forge manifest validate` has nothing to say about a manifest.
fn is_valid(manifest: &Value) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("m.json"), manifest.to_string()).unwrap();
    let checked = Command::new(env!("CARGO_BIN_EXE_forge-bridge"))
        .args(["forge", "manifest", "validate", "m.json", "--json"])
        .env_clear()
        .env("HOME", folder.path())
        .current_dir(folder.path())
        .output()
        .unwrap();
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(
        (&checked["diagnostics"], &checked["exitCode"]),
        (&json!([]), &json!(0)),
        "{manifest}"
    );
}

#[tokio::test]
async fn the_billing_service_exports_its_manifest_and_keeps_tenants_apart() {
    let mut service = Service::start(&JAVA, &["Billing", "0"]);
    let line = service.line();
    let billing = Api::new(line.strip_prefix("billing serves at ").unwrap().to_owned());

    let (status, manifest) = get(&billing, "/manifest").await;
    let entry = |name: &str, kind: &str, path: &str, transaction: &str, risk: &str| {
        json!({"name": name, "kind": kind, "path": path, "method": "POST", "policy": "billing.manage",
            "tenantScoped": true, "transaction": transaction, "risk": risk})
    };
    let mut command = entry(
        "createInvoice",
        "command",
        "/commands/createInvoice",
        "external-managed",
        "write",
    );
    command["needsApproval"] = json!(true);
    let query = entry(
        "listInvoices",
        "query",
        "/queries/listInvoices",
        "read-only",
        "read",
    );
    let expected = json!({"forgeProtocol": "1.0", "language": "java", "framework": "java/jdk-http", "service":
        {"name": "billing", "transport": "http", "baseUrl": "http://127.0.0.1:8788", "health": "/health"},
        "entries": [command, query]});
    assert_eq!((status, &manifest), (200, &expected));
    is_valid(&manifest);
    let path = format!(
        "/manifest?x=1&baseUrl={}",
        billing.url.replace("://", "%3A%2F%2F")
    );
    let (_, moved) = get(&billing, &path).await;
    assert_eq!(moved["service"]["baseUrl"], json!(billing.url));
    is_valid(&moved);
    for refused in ["ftp%3A%2F%2Fa", "http%3A%2F%2Fuser%3Apass%40a", "nowhere"] {
        let (status, answer) = get(&billing, &format!("/manifest?baseUrl={refused}")).await;
        assert_eq!(
            (status, &answer["error"]["code"]),
            (400, &json!("FORGE_JAVA_BAD_REQUEST"))
        );
    }

    let call = |tenant: &str, args: Value| {
        json!({"args": args, "auth": {"kind": "user", "userId": "u1", "tenantId": tenant},
            "forge": {"service": "billing", "entry": "createInvoice", "kind": "command", "traceId": "t-1"}})
        .to_string()
    };
    let args = json!({"title": "Größe €", "amountCents": 12});
    let (status, created) = post(
        &billing,
        "/commands/createInvoice",
        call("t1", args.clone()),
    )
    .await;
    let invoice = json!({"id": "inv_1", "tenantId": "t1", "title": "Größe €", "amountCents": 12, "createdBy": "u1"});
    assert_eq!(
        (status, created),
        (
            200,
            json!({"ok": true, "result": invoice, "traceId": "t-1"})
        )
    );
    let untitled = post(
        &billing,
        "/commands/createInvoice",
        call("t1", json!({"amountCents": 1})),
    );
    let (status, untitled) = untitled.await;
    let mut expected = failure("INVOICE_TITLE_MISSING", "an invoice needs a title");
    expected["traceId"] = json!("t-1");
    assert_eq!((status, untitled), (422, expected));
    for (tenant, invoices) in [("t1", json!([invoice])), ("t2", json!([]))] {
        let (_, listed) = post(&billing, "/queries/listInvoices", call(tenant, json!({}))).await;
        assert_eq!(listed["result"], json!({"invoices": invoices}));
    }
}
