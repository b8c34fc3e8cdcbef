//! `forge-bridge adapters test` with conforming adapters, a library that ends its process, and files that are not
//! adapters.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::harness::library::{compile, file_name, root};
use super::harness::plugins;

/// Runs the command; returns exit code, report and standard error.
fn test(library: &Path, arguments: &[&str]) -> (i32, Value, String) {
    let home = tempfile::tempdir().unwrap();
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(env!("CARGO_BIN_EXE_forge-bridge"))
        .env_clear()
        .env("HOME", home.path())
        .env("PATH", path())
        .args(["adapters", "test", "--json"])
        .arg(library)
        .args(arguments)
        .output()
        .unwrap();
    let report = serde_json::from_slice(&stdout).unwrap_or_default();
    let complaint = String::from_utf8(stderr).unwrap();
    (status.code().unwrap(), report, complaint)
}

/// The `PATH` of the tests with their Node in front.
fn path() -> String {
    let node = forge_test_runtimes::node();
    let rest = std::env::var("PATH").unwrap();
    format!("{}:{rest}", node.parent().unwrap().display())
}

fn with<'a>(report: &'a Value, outcome: &str) -> Vec<&'a Value> {
    let rules = report["rules"].as_array().unwrap();
    let found = rules.iter().filter(|rule| rule["outcome"] == outcome);
    found.collect()
}

#[test]
fn a_good_library_keeps_every_rule() {
    let echo = plugins().join(file_name("echo"));
    let arguments = [
        "--model",
        "stream:3",
        "--slow-model",
        "slow:60000",
        "--failing-model",
        "fail",
        "--transient-model",
        "busy:1",
        "--retracting-model",
        "retract",
        "--attaching-model",
        "attachments",
        "--steerable-model",
        "slow:60000",
        "--bad",
        "max_concurrent=many",
    ];
    let (code, report, complaint) = test(&echo, &arguments);
    assert_eq!(code, 0, "{report} {complaint}");
    assert_eq!(with(&report, "failed"), Vec::<&Value>::new());
    // Registration, and redaction, since its settings hold no secret.
    let unchecked = with(&report, "unchecked");
    assert_eq!(unchecked.len(), 2, "{unchecked:?}");
    assert!(with(&report, "ok").len() > 18, "{report}");
}

#[test]
fn the_examples_keep_every_rule() {
    let examples = root().join("plugins/examples");
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join(file_name("c-echo"));
    compile(
        &library,
        examples.join("c-echo/adapter.c").to_str().unwrap(),
        &[],
    );
    for (file, slow) in [
        (
            examples.join("python-echo/forge-adapter-python-echo"),
            "slow:60000",
        ),
        (
            examples.join("node-echo/forge-adapter-node-echo"),
            "slow:60000",
        ),
        (library, ""),
    ] {
        let mut arguments = Vec::new();
        if !slow.is_empty() {
            arguments.extend(["--slow-model", slow, "--failing-model", "fail"]);
        }
        let (code, report, complaint) = test(&file, &arguments);
        assert_eq!(code, 0, "{}: {report:#} {complaint}", file.display());
        assert_eq!(with(&report, "failed"), Vec::<&Value>::new());
        assert!(with(&report, "ok").len() >= 13, "{report:#}");
    }
}

#[test]
fn a_broken_rule_shows_the_call_and_strict_what_is_untested() {
    let python = root().join("plugins/examples/python-echo/forge-adapter-python-echo");
    let (code, report, _) = test(&python, &["--model", "fail", "--set", "api_key=12345678"]);
    assert_eq!(code, 1, "{report:#}");
    let failed = with(&report, "failed");
    let sent = failed[0]["sent"].as_str().unwrap();
    let line: Value = serde_json::from_str(sent).unwrap();
    assert_eq!(line["op"], "execute", "{sent}");
    assert_eq!(line["payload"]["model"], "fail", "{sent}");
    assert!(!report.to_string().contains("12345678"), "{report:#}");

    let (code, report, _) = test(&python, &["--strict"]);
    assert_eq!(code, 2, "{report:#}");
    let needed = with(&report, "unchecked");
    let needed = needed.iter().filter(|rule| rule["required"] == true);
    let needed: BTreeSet<_> = needed.map(|rule| rule["needs"].as_str().unwrap()).collect();
    assert_eq!(needed, BTreeSet::from(["--failing-model", "--slow-model"]));
}

#[test]
fn a_library_that_ends_its_process_is_told_of() {
    let echo = plugins().join(file_name("echo"));
    let (code, report, _) = test(&echo, &["--model", "crash"]);
    assert_eq!(code, 1, "{report}");
    let failed = with(&report, "failed");
    let seen = failed[0]["seen"].as_str().unwrap();
    assert!(seen.contains("ended its process: signal 6"), "{report}");
    assert!(failed[0]["rule"].is_string(), "it says at which rule");
}

#[test]
fn what_is_no_adapter_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join(file_name("text"));
    std::fs::write(&text, "not a library").unwrap();
    let other = folder.path().join("other.so");
    let empty = folder.path().join(file_name("empty"));
    compile(&empty, "faulty-disk/shim.c", &[]);
    for (file, wanted) in [
        (&text, "libforge_adapter_text"),
        (&other, "is not named libforge_adapter_<name>"),
        (&empty, "libforge_adapter_empty"),
    ] {
        let (code, report, complaint) = test(file, &[]);
        assert_eq!((code, &report), (1, &Value::Null), "{complaint}");
        assert!(complaint.contains(wanted), "{wanted}: {complaint}");
        let errors = complaint.lines().filter(|line| line.contains("error: "));
        assert_eq!(errors.count(), 1, "{complaint}");
    }
}
