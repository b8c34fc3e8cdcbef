//! One walk, the same for services in different languages: manifest, import by URL, generated files, command, query, a
//! caller that is denied, and the generated client.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::super::harness::Bridge;
use super::super::java::{JAVA, SPRING, java};

const POLICIES: &str = r#"
auth = "dev-headers"

[external.policies."billing.write"]
roles = ["admin"]

[external.policies."billing.read"]
roles = ["admin", "reader"]

[external.policies."billing.manage"]
roles = ["admin"]
"#;

/// Type-checked with the SDK in `sdk/typescript/test/package.test.ts`.
const CLIENT: &str = include_str!("../../fixtures/external/client.ts");

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
        let url = url.split_whitespace().last().unwrap_or_default().to_owned();
        Self { process, url }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It has ended if this fails.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Differences between the services, which the protocol leaves to them.
struct Billing {
    /// Invoice of "Invoice é" of the tenant `t1`, created by `u1`.
    invoice: Value,
    /// Pointer to the invoices in the result of the query.
    list: &'static str,
    /// Role that the policy of the query asks for.
    reader: &'static str,
    /// The command declares an `inputSchema`.
    schema: bool,
    /// `baseUrl` is fixed, so that the request for the manifest has to name the address.
    fixed: bool,
}

impl Billing {
    fn scripted() -> Self {
        Self {
            invoice: json!({"id": "inv_1", "title": "Invoice é", "tenant": "t1"}),
            list: "",
            reader: "reader",
            schema: true,
            fixed: false,
        }
    }

    fn java() -> Self {
        Self {
            invoice: json!({"id": "inv_1", "tenantId": "t1", "title": "Invoice é", "amountCents": 12, "createdBy": "u1"}),
            list: "/invoices",
            reader: "admin",
            schema: false,
            fixed: true,
        }
    }

    fn manifest(&self, url: &str) -> String {
        match self.fixed {
            true => format!("{url}/manifest?baseUrl={url}"),
            false => format!("{url}/manifest"),
        }
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

/// Output of the generated client, which Node runs from its source.
fn call_by_client(bridge: &str, client: &Path, args: &str) -> Value {
    let Output { stdout, stderr, .. } = Command::new(forge_test_runtimes::node())
        .arg(example("tests/fixtures/external/call.mjs"))
        .arg(bridge)
        .arg(client)
        .arg(args)
        .output()
        .unwrap();
    let output = serde_json::from_slice(&stdout);
    output.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&stderr)))
}

async fn walk(service: Service, billing: Billing) {
    let root = TempDir::new().unwrap();
    let settings = format!("[external]\nroot = {:?}\n{POLICIES}", root.path());
    let bridge = Bridge::configured(&settings, &[]).await;
    let url = bridge.app.as_ref().unwrap().url();
    let folder = root.path().to_owned();
    tokio::task::spawn_blocking(move || steps(&service, &billing, &folder, &url))
        .await
        .unwrap();
    bridge.stop().await;
}

fn steps(service: &Service, billing: &Billing, root: &Path, bridge: &str) {
    let forge = |arguments: &[&str]| forge(root, bridge, arguments);
    let (code, out) = forge(&["manifest", "import", &billing.manifest(&service.url)]);
    assert_eq!((code, &out["imported"]), (0, &json!(true)), "{out}");
    assert_eq!(forge(&["generate"]).0, 0);
    let generated = root.join("src/forge/_generated");
    let tools = std::fs::read(generated.join("agentTools.json")).unwrap();
    let tools: Value = serde_json::from_slice(&tools).unwrap();
    let tool = &tools["autoTools"][0];
    assert_eq!(tool["name"], "forge_command_billing_createInvoice");
    if billing.schema {
        assert_eq!(tool["inputSchema"]["required"], json!(["title"]));
    }
    let client = std::fs::read_to_string(generated.join("client.ts")).unwrap();
    let body = |source: &str| source.split_once('\n').unwrap().1.to_owned();
    assert_eq!(body(&client), body(CLIENT));

    let admin = ["--user-id", "u1", "--tenant-id", "t1", "--role", "admin"];
    let args = r#"{"title": "Invoice é", "amountCents": 12}"#;
    let create = ["run", "billing.createInvoice", "--args", args];
    // The bridge takes the import within two seconds.
    let created = (0..100).find_map(|_| {
        let (code, out) = forge(&[&create[..], &admin].concat());
        let unknown = out["run"]["diagnostics"][0]["code"] == "FORGE_EXTERNAL_RUNTIME_NOT_FOUND";
        match code {
            1 if unknown => std::thread::sleep(std::time::Duration::from_millis(100)),
            _ => return Some(out),
        }
        None
    });
    let created = created.unwrap();
    assert_eq!(created["run"]["result"], billing.invoice, "{created}");
    let refusals = [
        (r#"{"title": 5}"#, "admin", "FORGE_EXTERNAL_INPUT_INVALID"),
        (args, "guest", "FORGE_POLICY_DENIED"),
    ];
    for (args, role, refusal) in &refusals[usize::from(!billing.schema)..] {
        let caller = ["--user-id", "u2", "--tenant-id", "t1", "--role", role];
        let (code, out) = forge(&[&create[..3], &[args], &caller].concat());
        assert_eq!(
            (code, &out["run"]["diagnostics"][0]["code"]),
            (1, &json!(refusal))
        );
    }
    let queries = [
        (&["query"][..], "t1", json!([billing.invoice])),
        (&["run", "query"], "t2", json!([])),
    ];
    for (query, tenant, listed) in queries {
        let caller = ["--tenant-id", tenant, "--role", billing.reader];
        let entry = ["billing.listInvoices", "--user-id", "u2"];
        let (code, out) = forge(&[query, &entry, &caller].concat());
        let result = out["run"]["result"].pointer(billing.list);
        assert_eq!((code, result), (0, Some(&listed)), "{out}");
    }

    let called = call_by_client(bridge, &generated.join("client.ts"), args);
    let mut second = billing.invoice.clone();
    second["id"] = json!("inv_2");
    assert_eq!(called["created"], second, "{called}");
    let listed = called["listed"].pointer(billing.list);
    assert_eq!(listed, Some(&json!([billing.invoice, second])), "{called}");
}

#[tokio::test]
async fn a_service_in_python() {
    let program = example("plugins/examples/billing-python/billing.py");
    let service = Service::start(Command::new("python3").arg(program));
    walk(service, Billing::scripted()).await;
}

#[tokio::test]
async fn a_service_in_node() {
    let node = forge_test_runtimes::node();
    let program = example("plugins/examples/billing-node/billing.mjs");
    let service = Service::start(Command::new(node).arg(program));
    walk(service, Billing::scripted()).await;
}

#[tokio::test]
async fn a_service_in_rust() {
    // `cargo test` builds the examples; with `--test`, build it by `cargo build -p forge-bridge --example billing`.
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples/billing");
    let service = Service::start(&mut Command::new(program));
    walk(service, Billing::scripted()).await;
}

#[tokio::test]
async fn a_service_in_java() {
    let temporary = TempDir::new().unwrap();
    let service = Service::start(java(&JAVA, temporary.path()).arg("Billing"));
    walk(service, Billing::java()).await;
}

#[tokio::test]
async fn a_service_with_spring() {
    let temporary = TempDir::new().unwrap();
    let service = Service::start(java(&SPRING, temporary.path()).arg("BillingApplication"));
    let billing = Billing {
        schema: true,
        fixed: false,
        ..Billing::java()
    };
    walk(service, billing).await;
}
