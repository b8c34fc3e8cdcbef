//! One walk, the same for services in different languages: manifest, import by URL, generated files, command, query, and
//! a caller that is denied.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::harness::Bridge;

const POLICIES: &str = r#"
auth = "dev-headers"

[external.policies."billing.write"]
roles = ["admin"]

[external.policies."billing.read"]
roles = ["admin", "reader"]
"#;

/// Service that ends with the test.
struct Service {
    process: Child,
    url: String,
}

impl Service {
    /// Starts a program that prints its address.
    fn start(command: &mut Command) -> Self {
        let started = command.arg("0").stdout(Stdio::piped()).spawn();
        let mut process = started.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut url = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut url).unwrap();
        Self {
            process,
            url: url.trim().to_owned(),
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It has ended if this fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn example(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join(path).display().to_string()
}

/// Runs `forge`; returns its exit code and its JSON output.
fn forge(root: &Path, bridge: &str, arguments: &[&str]) -> (i32, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forge"));
    command.env_clear().env("HOME", root).current_dir(root);
    let Output {
        status,
        stdout,
        stderr,
    } = command
        .env("BRIDGE_URL", bridge)
        .args(arguments)
        .arg("--json")
        .output()
        .unwrap();
    let output = serde_json::from_slice(&stdout);
    let output = output.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&stderr)));
    (status.code().unwrap(), output)
}

async fn walk(service: Service) {
    let root = TempDir::new().unwrap();
    let settings = format!("[external]\nroot = {:?}\n{POLICIES}", root.path());
    let bridge = Bridge::configured(&settings, &[]).await;
    let url = bridge.app.as_ref().unwrap().url();
    let folder = root.path().to_owned();
    tokio::task::spawn_blocking(move || {
        let forge = |arguments: &[&str]| forge(&folder, &url, arguments);
        let (code, out) = forge(&["manifest", "import", &format!("{}/manifest", service.url)]);
        assert_eq!((code, &out["imported"]), (0, &json!(true)), "{out}");
        assert_eq!(forge(&["generate"]).0, 0);
        let tools = folder.join("src/forge/_generated/agentTools.json");
        let tools: Value = serde_json::from_slice(&std::fs::read(tools).unwrap()).unwrap();
        assert_eq!(
            tools["autoTools"][0]["name"],
            "forge_command_billing_createInvoice"
        );
        assert_eq!(
            tools["autoTools"][0]["inputSchema"]["required"],
            json!(["title"])
        );

        let admin = ["--user-id", "u1", "--tenant-id", "t1", "--role", "admin"];
        let create = [
            "run",
            "billing.createInvoice",
            "--args",
            r#"{"title": "Invoice é"}"#,
        ];
        // The bridge takes the import within two seconds.
        let created = (0..100).find_map(|_| {
            let (code, out) = forge(&[&create[..], &admin].concat());
            let unknown =
                out["run"]["diagnostics"][0]["code"] == "FORGE_EXTERNAL_RUNTIME_NOT_FOUND";
            match code {
                1 if unknown => std::thread::sleep(std::time::Duration::from_millis(100)),
                _ => return Some(out),
            }
            None
        });
        let invoice = json!({"id": "inv_1", "title": "Invoice é", "tenant": "t1"});
        assert_eq!(created.unwrap()["run"]["result"], invoice);
        let (code, out) = forge(&[&create[..3], &[r#"{"title": 5}"#], &admin].concat());
        assert_eq!(
            (code, &out["run"]["diagnostics"][0]["code"]),
            (1, &json!("FORGE_EXTERNAL_INPUT_INVALID"))
        );
        let reader = ["--user-id", "u2", "--tenant-id", "t1", "--role", "reader"];
        let (code, out) = forge(&[&create[..], &reader].concat());
        assert_eq!(
            (code, &out["run"]["diagnostics"][0]["code"]),
            (1, &json!("FORGE_POLICY_DENIED"))
        );
        let (code, out) = forge(&[&["query", "billing.listInvoices"][..], &reader].concat());
        assert_eq!((code, &out["run"]["result"]), (0, &json!([invoice])));
        let other = ["--user-id", "u2", "--tenant-id", "t2", "--role", "reader"];
        let (_, out) = forge(&[&["run", "query", "billing.listInvoices"][..], &other].concat());
        assert_eq!(out["run"]["result"], json!([]));
    })
    .await
    .unwrap();
    bridge.stop().await;
}

#[tokio::test]
async fn a_service_in_python() {
    let program = example("plugins/examples/billing-python/billing.py");
    walk(Service::start(Command::new("python3").arg(program))).await;
}

#[tokio::test]
async fn a_service_in_node() {
    let node = forge_test_runtimes::node();
    let program = example("plugins/examples/billing-node/billing.mjs");
    walk(Service::start(Command::new(node).arg(program))).await;
}

#[tokio::test]
async fn a_service_in_rust() {
    // `cargo test` builds the examples; with `--test`, build it by `cargo build -p forge-bridge --example billing`.
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples/billing");
    walk(Service::start(&mut Command::new(program))).await;
}
