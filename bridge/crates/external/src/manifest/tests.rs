//! Tests of `manifest`: one row for each rule.

use serde_json::{Value, json};

use super::*;
use crate::diagnostic::{Diagnostic, Severity};

/// The manifest that the protocol's documentation shows.
const BILLING: &str = include_str!("../../../../../tests/fixtures/external/billing.manifest.json");

fn billing() -> Value {
    serde_json::from_str(BILLING).unwrap()
}

/// Codes of the errors, and then of the warnings, of the billing manifest after a change.
fn codes(change: impl FnOnce(&mut Value)) -> (Vec<String>, Vec<String>) {
    let mut tree = billing();
    change(&mut tree);
    let checked = check(&tree);
    let (errors, warnings): (Vec<_>, Vec<_>) = checked
        .diagnostics
        .into_iter()
        .partition(Diagnostic::is_error);
    assert_eq!(errors.is_empty(), checked.manifest.is_some());
    let codes = |found: Vec<Diagnostic>| {
        let codes = found.into_iter().map(|found| {
            assert!(
                found.fix_hint.is_some_and(|hint| !hint.is_empty()),
                "{}",
                found.code
            );
            found.code.trim_start_matches("FORGE_EXTERNAL_").to_owned()
        });
        codes.collect()
    };
    (codes(errors), codes(warnings))
}

#[test]
fn the_documented_manifest_has_no_findings() {
    let checked = read(BILLING.as_bytes());
    assert_eq!(checked.diagnostics, []);
    let manifest = checked.manifest.unwrap();
    assert_eq!(serde_json::to_value(&manifest).unwrap(), billing());
    let base = Url::parse(manifest.service.base_url.as_deref().unwrap()).unwrap();
    assert_eq!(
        manifest.entries[0].url(&base).unwrap().as_str(),
        "http://localhost:8080/invoices"
    );
}

#[test]
fn every_wrong_value_is_an_error_of_its_field() {
    for (pointer, value, code) in [
        ("/forgeProtocol", json!(1.0), "PROTOCOL_VERSION"),
        ("/forgeProtocol", json!("1.1"), "PROTOCOL_VERSION"),
        ("/language", json!(" "), "LANGUAGE"),
        ("/framework", json!(3), "FRAMEWORK"),
        ("/service/name", json!("  "), "SERVICE_NAME"),
        ("/service/name", json!("a\u{7}b"), "SERVICE_NAME"),
        ("/service/transport", json!("smtp"), "SERVICE_TRANSPORT"),
        ("/service/baseUrl", json!(""), "SERVICE_BASE_URL"),
        ("/service/baseUrl", json!("not a url"), "SERVICE_BASE_URL"),
        (
            "/service/baseUrl",
            json!("ftp://a.example/"),
            "SERVICE_BASE_URL",
        ),
        (
            "/service/baseUrl",
            json!("http://u:p@a.example/"),
            "SERVICE_BASE_URL",
        ),
        ("/service/health", json!(true), "SERVICE_HEALTH"),
        ("/entries", json!({}), "ENTRIES"),
        ("/entries/0", json!("x"), "ENTRY_OBJECT"),
        ("/entries/0/name", json!(""), "ENTRY_NAME"),
        ("/entries/0/kind", json!("event"), "ENTRY_KIND"),
        ("/entries/0/description", json!(1), "ENTRY_DESCRIPTION"),
        ("/entries/0/path", json!(5), "ENTRY_PATH"),
        (
            "/entries/0/path",
            json!("http://other.example/x"),
            "ENTRY_PATH",
        ),
        ("/entries/0/path", json!("//other.example/x"), "ENTRY_PATH"),
        (
            "/entries/0/path",
            json!("https://localhost:8080/x"),
            "ENTRY_PATH",
        ),
        (
            "/entries/0/path",
            json!("http://u@localhost:8080/x"),
            "ENTRY_PATH",
        ),
        ("/entries/0/method", json!("PUT"), "ENTRY_METHOD"),
        ("/entries/0/inputSchema", json!("x"), "ENTRY_INPUT_SCHEMA"),
        (
            "/entries/0/inputSchema",
            json!({"type": "nonsense"}),
            "ENTRY_INPUT_SCHEMA",
        ),
        ("/entries/0/policy", json!(7), "ENTRY_POLICY"),
        ("/entries/0/policy", json!(""), "ENTRY_POLICY"),
        (
            "/entries/0/tenantScoped",
            json!("true"),
            "ENTRY_TENANT_SCOPED",
        ),
        (
            "/entries/0/transaction",
            json!("two-phase"),
            "ENTRY_TRANSACTION",
        ),
        ("/entries/0/risk", json!("high"), "ENTRY_RISK"),
        (
            "/entries/0/needsApproval",
            json!("yes"),
            "ENTRY_NEEDS_APPROVAL",
        ),
        ("/entries/0/effects", json!("x"), "ENTRY_EFFECTS"),
        ("/entries/0/effects", json!(["x", 1]), "ENTRY_EFFECTS"),
        ("/entries/1/transaction", json!("saga"), "QUERY_TRANSACTION"),
        ("/entries/1/risk", json!("write"), "QUERY_RISK"),
        ("/schemas", json!([]), "SCHEMAS"),
    ] {
        let found = codes(|tree| {
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            match tree.pointer_mut(parent).unwrap() {
                Value::Array(items) => items[0] = value.clone(),
                members => members[key] = value.clone(),
            }
        });
        assert_eq!(found, (vec![code.to_owned()], vec![]), "{pointer} {value}");
    }
}

#[test]
fn what_is_missing_is_said_together() {
    let all = |tree| {
        check(&tree)
            .diagnostics
            .into_iter()
            .map(|found| found.code.replace("FORGE_EXTERNAL_", ""))
    };
    let mut codes: Vec<_> = all(json!({})).collect();
    codes.sort();
    assert_eq!(
        codes,
        [
            "ENTRIES",
            "LANGUAGE",
            "PROTOCOL_VERSION",
            "SERVICE",
            "SERVICE_NAME",
            "SERVICE_TRANSPORT"
        ]
    );
    for root in [json!(null), json!([]), json!("x")] {
        assert_eq!(all(root).collect::<Vec<_>>(), ["MANIFEST_OBJECT"]);
    }
    for bytes in ["", "{", "\u{feff}{}", "{} {}", "{\"a\": 1, \"a\": 2}"] {
        let found = read(bytes.as_bytes()).diagnostics;
        assert_eq!(found[0].code, "FORGE_EXTERNAL_MANIFEST_PARSE", "{bytes}");
    }
    let large = format!("{{\"language\": \"{}\"}}", "x".repeat(MANIFEST_BYTES));
    assert_eq!(read(large.as_bytes()).diagnostics.len(), 1);
    let many = codes_of_entries(1001);
    assert_eq!(many, ["FORGE_EXTERNAL_ENTRIES"]);
    assert_eq!(codes_of_entries(1000), [""; 0]);
}

fn codes_of_entries(count: usize) -> Vec<String> {
    let mut tree = billing();
    let entries = (0..count).map(|index| json!({"name": format!("e{index}"), "kind": "query"}));
    tree["entries"] = entries.collect();
    check(&tree)
        .diagnostics
        .into_iter()
        .map(|found| found.code)
        .collect()
}

#[test]
fn a_transport_needs_its_address() {
    let service = |service: Value| codes(|tree| tree["service"] = service).0;
    for (members, expected) in [
        (
            json!({"name": "s", "transport": "http"}),
            vec!["SERVICE_BASE_URL"],
        ),
        (
            json!({"name": "s", "transport": "stdio"}),
            vec!["SERVICE_COMMAND"],
        ),
        (
            json!({"name": "s", "transport": "stdio", "command": "a 'b"}),
            vec!["SERVICE_COMMAND"],
        ),
        (
            json!({"name": "s", "transport": "stdio", "commandArgs": []}),
            vec!["SERVICE_COMMAND_ARGS"],
        ),
        (
            json!({"name": "s", "transport": "stdio", "commandArgs": ["", 1]}),
            vec!["SERVICE_COMMAND_ARGS"],
        ),
        (
            json!({"name": "s", "transport": "stdio", "commandArgs": ["a", ""]}),
            vec![],
        ),
        (
            json!({"name": "s", "transport": "stdio", "command": "a b", "commandArgs": ["c"]}),
            vec![],
        ),
        (json!({"name": "s", "transport": "grpc"}), vec![]),
    ] {
        assert_eq!(service(members.clone()), expected, "{members}");
    }
}

#[test]
fn same_names_are_refused_unless_the_kind_differs() {
    let twice = codes(|tree| tree["entries"][1] = tree["entries"][0].clone());
    assert_eq!(twice.0, ["ENTRY_DUPLICATE"]);
    let other = codes(|tree| tree["entries"][1]["name"] = "createInvoice".into());
    assert_eq!(other, (vec![], vec![]));
}

#[test]
fn odd_but_usable_manifests_are_warned_of() {
    let warned = |change: fn(&mut Value)| {
        let (errors, warnings) = codes(change);
        assert_eq!(errors, [""; 0]);
        warnings
    };
    assert_eq!(
        warned(|tree| tree["service"]["name"] = "dot.ted".into()),
        ["SERVICE_NAME"]
    );
    assert_eq!(
        warned(|tree| tree["service"]["name"] = "a/b".into()),
        [""; 0]
    );
    assert_eq!(warned(|tree| tree["extra"] = 1.into()), ["UNKNOWN_KEY"]);
    assert_eq!(
        warned(|tree| tree["service"]["extra"] = 1.into()),
        ["UNKNOWN_KEY"]
    );
    assert_eq!(
        warned(|tree| tree["entries"][1]["extra"] = 1.into()),
        ["UNKNOWN_KEY"]
    );
    assert_eq!(
        warned(|tree| tree["entries"][1]["needsApproval"] = true.into()),
        ["ENTRY_NEEDS_APPROVAL"]
    );
    assert_eq!(warned(|tree| tree["entries"] = json!([])), [""; 0]);
    let grpc = |tree: &mut Value| {
        tree["service"] = json!({"name": "s", "transport": "grpc"});
        tree["entries"] = json!([
            {"name": "a", "kind": "command", "path": "/a.b.C/D"}, {"name": "b", "kind": "query"},
        ]);
    };
    assert_eq!(warned(grpc), ["SERVICE_BASE_URL", "ENTRY_PATH"]);
}

#[test]
fn a_finding_names_the_place_and_the_remedy() {
    let mut tree = billing();
    tree["entries"][1]["tenantScoped"] = "yes".into();
    let found = check(&tree).diagnostics.remove(0);
    assert_eq!(found.severity, Severity::Error);
    assert_eq!(
        found.message,
        "entries[1].tenantScoped must be true or false"
    );
    assert_eq!(
        found.fix_hint.unwrap(),
        "Write true or false without quotes."
    );
}

#[test]
fn paths_are_resolved_as_browsers_do() {
    let base = Url::parse("http://a.example/base/").unwrap();
    let entry = |path: Option<&str>, name: &str| {
        let entry = json!({"name": name, "kind": "query", "path": path});
        let entry: Entry = serde_json::from_value(entry).unwrap();
        entry.url(&base).unwrap().to_string()
    };
    for (path, name, url) in [
        (Some("/x"), "n", "http://a.example/x"),
        (Some("x"), "n", "http://a.example/base/x"),
        (None, "list", "http://a.example/queries/list"),
        (
            None,
            "a/b?c#d e",
            "http://a.example/queries/a%2Fb%3Fc%23d%20e",
        ),
    ] {
        assert_eq!(entry(path, name), url);
    }
}
