//! Tests of `artifacts`.

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{manifest, registry};
use forge_base::ownership::Trust;

const BILLING: &str = include_str!("../../../../../tests/fixtures/external/billing.manifest.json");

fn catalog(trees: &[Value]) -> (TempDir, Catalog) {
    let root = TempDir::new().unwrap();
    for tree in trees {
        registry::import(root.path(), &manifest::check(tree).manifest.unwrap()).unwrap();
    }
    let catalog = Catalog::load(
        root.path(),
        Trust::Enforce,
        ["billing.read", "billing.write"],
    )
    .unwrap();
    (root, catalog)
}

fn billing() -> Value {
    serde_json::from_str(BILLING).unwrap()
}

fn parsed(artifacts: &[Artifact], name: &str) -> Value {
    let artifact = artifacts
        .iter()
        .find(|artifact| artifact.name == name)
        .unwrap();
    serde_json::from_str(&artifact.content).unwrap()
}

#[test]
fn the_files_say_what_the_manifest_says() {
    let artifacts = generate(&catalog(&[billing()]).1).unwrap();
    let services = parsed(&artifacts, "externalServices.json");
    let input = json!({"diagnostics": services["diagnostics"], "services": services["services"]});
    assert_eq!(services["inputHash"], canonical::digest(&input));
    let service = &services["services"][0];
    assert_eq!(service["entries"][1]["source"], "external");
    assert_eq!(service["health"], "/actuator/health");

    let api = parsed(&artifacts, "api.json");
    let reference = json!({
        "service": "billing", "name": "createInvoice", "kind": "command",
        "language": "java", "framework": "spring-boot", "transport": "http",
    });
    assert_eq!(
        api["external"]["commands"]["billing.createInvoice"],
        reference
    );

    let contract = parsed(&artifacts, "agentContract.json");
    assert_eq!(
        contract["externalServices"][0]["queries"],
        json!(["billing.listInvoices"])
    );
    let command = &contract["commands"][0];
    assert_eq!(
        command["http"]["path"],
        "/external/billing/commands/createInvoice"
    );
    assert_eq!(command["tablesWritten"], json!(["external:billing"]));
    assert_eq!(command["emits"], json!(["invoice.created"]));
    assert_eq!(contract["queries"][0]["tenantScoped"], true);

    let policies = parsed(&artifacts, "policyRegistry.json");
    let binding = json!({
        "commandName": "billing.createInvoice", "file": "external:billing",
        "symbolId": "external:billing:command:createInvoice",
        "auth": {"kind": "policy", "policy": "billing.write"},
    });
    assert_eq!(policies["commandAuth"], json!([binding]));
    let capability = &parsed(&artifacts, "capabilityMap.json")["entries"][1];
    assert_eq!(capability["id"], "runtime:query:billing.listInvoices");
    assert_eq!(capability["userAction"], "Read query billing.listInvoices");
}

#[test]
fn tools_carry_what_an_agent_needs() {
    let mut tree = billing();
    let schema = json!({"type": "object", "required": ["title"]});
    tree["entries"][0]["inputSchema"] = schema.clone();
    let entry =
        |name: &str, risk: Option<&str>| json!({"name": name, "kind": "command", "risk": risk});
    let entries = tree["entries"].as_array_mut().unwrap();
    let mut bare = entry("bare", None);
    bare.as_object_mut().unwrap().remove("risk");
    entries.extend([entry("safe", Some("read")), bare]);
    let tools = parsed(&generate(&catalog(&[tree]).1).unwrap(), "agentTools.json");
    let tools = tools["autoTools"].as_array().unwrap();
    let short: Vec<_> = tools
        .iter()
        .map(|tool| {
            (
                tool["name"].as_str().unwrap(),
                tool["needsApproval"].clone(),
                tool["requiresAuth"].clone(),
            )
        })
        .collect();
    assert_eq!(
        short,
        [
            (
                "forge_command_billing_createInvoice",
                json!(true),
                json!(true)
            ),
            (
                "forge_query_billing_listInvoices",
                json!(false),
                json!(true)
            ),
            ("forge_command_billing_safe", json!(false), json!(false)),
            ("forge_command_billing_bare", json!(true), json!(false)),
        ]
    );
    assert_eq!(tools[0]["inputSchema"], schema);
    assert_eq!(tools[0]["execution"], "external-runtime-endpoint");
    assert_eq!(tools[0]["external"]["risk"], "write");
}

#[test]
fn colliding_tool_names_are_an_error() {
    let mut tree = billing();
    tree["entries"][1] = json!({"name": "a-b", "kind": "query"});
    tree["entries"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "a_b", "kind": "query"}));
    let found = generate(&catalog(&[tree]).1).unwrap_err();
    assert_eq!(found.len(), 1);
    assert!(
        found[0].message.contains("billing.a-b"),
        "{}",
        found[0].message
    );
}

#[test]
fn a_second_run_changes_no_byte() {
    let (root, catalog) = catalog(&[billing()]);
    let artifacts = generate(&catalog).unwrap();
    let folder = root.path().join(FOLDER);
    assert_eq!(write(&folder, &artifacts).unwrap().len(), 7);
    assert_eq!(
        write(&folder, &generate(&catalog).unwrap()).unwrap(),
        [""; 0].map(PathBuf::from)
    );
}

#[test]
fn names_stand_in_the_client_as_literals_only() {
    let mut tree = billing();
    let name = "x\"]: evil(), [\"__proto__";
    tree["entries"][0]["name"] = name.into();
    let artifacts = generate(&catalog(&[tree]).1).unwrap();
    let client = &artifacts.last().unwrap().content;
    let literal = json!(format!("billing.{name}")).to_string();
    assert!(client.contains(&format!("[{literal}]: {{")), "{client}");
    let content = client.split_once('\n').unwrap();
    let digest = forge_base::digest::hex(&forge_base::digest::sha256(content.1));
    assert!(
        content.0.ends_with(&format!("content={digest}")),
        "{}",
        content.0
    );
    assert_eq!(
        route("a/b", EntryKind::Query, "c d"),
        "/external/a%2Fb/queries/c%20d"
    );
}

/// `sdk/typescript/test` type-checks and runs the file.
#[test]
fn the_client_of_the_documented_manifest_is_the_fixture() {
    let root = TempDir::new().unwrap();
    std::fs::write(root.path().join(registry::ROOT_MANIFEST), BILLING).unwrap();
    let catalog = Catalog::load(
        root.path(),
        Trust::Enforce,
        ["billing.read", "billing.write"],
    )
    .unwrap();
    let artifacts = generate(&catalog).unwrap();
    let fixture = include_str!("../../../../../tests/fixtures/external/client.ts");
    assert_eq!(artifacts.last().unwrap().content, fixture);
}
