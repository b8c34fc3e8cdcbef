//! The command `forge`: manifests of external services as a shell sees them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

const BILLING: &str = include_str!("../fixtures/external/billing.manifest.json");

/// Folder with the manifest that the protocol's documentation shows.
fn workspace() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("billing.json"), BILLING).unwrap();
    root
}

fn forge(root: &Path, arguments: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forge"));
    command.env_clear().env("HOME", root).current_dir(root);
    let Output {
        status,
        stdout,
        stderr,
    } = command.args(arguments.split(' ')).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

fn json_of(root: &Path, arguments: &str) -> (i32, Value) {
    let (code, out, err) = forge(root, &format!("{arguments} --json"));
    let output: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    assert_eq!(output.get("exitCode"), Some(&json!(code)), "{output}");
    (code, output)
}

#[test]
fn the_documented_commands_run() {
    let root = workspace();
    let (code, out) = json_of(root.path(), "manifest validate ./billing.json");
    let expected = json!({"subcommand": "validate", "path": "./billing.json", "diagnostics": [], "exitCode": 0});
    assert_eq!((code, out), (0, expected));
    let (code, out) = json_of(root.path(), "manifest import ./billing.json");
    assert_eq!(
        (code, &out["imported"], &out["serviceCount"]),
        (0, &json!(true), &json!(1))
    );
    assert_eq!(out["path"], "./.forge/external-manifests.json");
    assert_eq!(
        out["changes"]["added"],
        json!(["command:createInvoice", "query:listInvoices"])
    );
    let (code, out) = json_of(root.path(), "generate");
    assert_eq!((code, out["changed"].as_array().unwrap().len()), (0, 7));
    assert_eq!(json_of(root.path(), "generate").1["changed"], json!([]));
    let (code, out) = json_of(root.path(), "inspect external");
    assert_eq!((code, &out["target"]), (0, &json!("external")));
    let generated = root
        .path()
        .join("src/forge/_generated/externalServices.json");
    let generated: Value = serde_json::from_slice(&fs::read(generated).unwrap()).unwrap();
    assert_eq!(out["data"], generated);
    let (code, out, _) = forge(root.path(), "inspect external");
    assert_eq!(code, 0);
    assert!(
        out.contains("billing.createInvoice") && out.contains("billing.write"),
        "{out}"
    );
    let (code, out) = json_of(root.path(), "manifest remove billing");
    assert_eq!(
        (code, &out["removed"], &out["serviceCount"]),
        (0, &json!(true), &json!(0))
    );
    let (code, schema, _) = forge(root.path(), "manifest schema");
    let schema: Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(
        (code, &schema["properties"]["forgeProtocol"]["const"]),
        (0, &json!("1.0"))
    );
}

/// The reference counts the service twice after this and imports the root manifest together with others.
#[test]
fn the_root_manifest_can_be_imported_and_is_never_imported_by_itself() {
    let root = workspace();
    fs::write(root.path().join("forge.manifest.json"), BILLING).unwrap();
    let (code, out) = json_of(root.path(), "manifest import ./forge.manifest.json");
    assert_eq!((code, &out["serviceCount"]), (0, &json!(1)));
    assert_eq!(
        out["diagnostics"][0]["code"],
        "FORGE_EXTERNAL_SERVICE_DUPLICATE"
    );
    assert_eq!(json_of(root.path(), "generate").0, 0);
    json_of(root.path(), "manifest remove billing");
    let other = BILLING.replace("\"billing\"", "\"other\"");
    fs::write(root.path().join("other.json"), other).unwrap();
    let (_, out) = json_of(root.path(), "manifest import other.json");
    assert_eq!(out["serviceCount"], 2);
    let registry = fs::read_to_string(root.path().join(".forge/external-manifests.json")).unwrap();
    assert!(!registry.contains("\"name\":\"billing\""), "{registry}");
}

#[test]
fn a_bad_manifest_fails_with_all_of_its_errors_and_changes_nothing() {
    let root = workspace();
    let bad = BILLING
        .replace("\"http\"", "\"smtp\"")
        .replace("\"read\"", "\"high\"");
    fs::write(root.path().join("bad.json"), bad).unwrap();
    for (command, flag) in [
        ("manifest validate bad.json", None),
        ("manifest import bad.json", Some(false)),
    ] {
        let (code, out) = json_of(root.path(), command);
        assert_eq!(
            (code, out.get("imported").and_then(Value::as_bool)),
            (1, flag),
            "{out}"
        );
        let codes: Vec<_> = out["diagnostics"]
            .as_array()
            .unwrap()
            .iter()
            .map(|found| found["code"].clone())
            .collect();
        assert!(
            codes.contains(&json!("FORGE_EXTERNAL_SERVICE_TRANSPORT")),
            "{out}"
        );
        assert!(codes.contains(&json!("FORGE_EXTERNAL_ENTRY_RISK")), "{out}");
    }
    assert!(!root.path().join(".forge").exists());
    let (code, _, err) = forge(root.path(), "manifest validate bad.json");
    assert_eq!(code, 1);
    assert!(
        err.contains("in bad.json") && err.contains("Set it to how the service is called."),
        "{err}"
    );
    let (code, out) = json_of(root.path(), "manifest validate missing.json");
    assert_eq!(
        (code, &out["diagnostics"][0]["code"]),
        (1, &json!("FORGE_EXTERNAL_MANIFEST_PARSE"))
    );
    fs::write(root.path().join("forge.manifest.json"), "{").unwrap();
    assert_eq!(json_of(root.path(), "generate").0, 1);
    assert!(!root.path().join("src").exists());
}

#[test]
fn an_import_names_the_program_that_it_would_start() {
    let root = workspace();
    let service = json!({"name": "local", "transport": "stdio", "command": "python3 'a b.py'"});
    let manifest =
        json!({"forgeProtocol": "1.0", "language": "python", "service": service, "entries": []});
    fs::write(root.path().join("local.json"), manifest.to_string()).unwrap();
    let (code, _, err) = forge(root.path(), "manifest import local.json");
    assert_eq!(code, 0);
    assert!(err.contains(r#"["python3", "a b.py"]"#), "{err}");
    assert!(
        err.contains(r#"[external.services."local"] program = true"#),
        "{err}"
    );
}

#[test]
fn usage_errors_have_the_shape_and_the_code_of_the_reference() {
    let root = workspace();
    for arguments in [
        "manifest",
        "manifest validate",
        "generate --nonsense",
        "inspect internal",
    ] {
        let (code, out) = json_of(root.path(), arguments);
        assert_eq!(
            (code, &out["failureKind"]),
            (1, &json!("usage")),
            "{arguments}"
        );
        assert_eq!(out["errors"][0]["code"], "FORGE_CLI_USAGE", "{arguments}");
        assert_eq!(forge(root.path(), arguments).0, 1, "{arguments}");
    }
    assert_eq!(forge(root.path(), "--help").0, 0);
}

#[test]
fn foreign_text_reaches_a_terminal_without_control_characters() {
    let root = workspace();
    let described = BILLING.replace(
        "\"kind\": \"command\",",
        "\"kind\": \"command\", \"description\": \"a\\u001b[31mb\",",
    );
    fs::write(root.path().join("forge.manifest.json"), described).unwrap();
    let (code, out, _) = forge(root.path(), "inspect external");
    assert_eq!(code, 0);
    assert!(out.contains("[31mb") && !out.contains('\u{1b}'), "{out}");
}
