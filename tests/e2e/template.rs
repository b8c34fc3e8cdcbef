//! `forge-bridge adapters new`: the generated adapter is built and tested unchanged, passes the conformance checks,
//! and serves.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::conformance::path;
use super::harness::Bridge;
use super::harness::library::{file_name, make_safe, root};

fn new(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_forge-bridge"))
        .env_clear()
        .current_dir(folder)
        .args(["adapters", "new"])
        .args(arguments)
        .output()
        .unwrap()
}

/// Build folder shared with the example outside the workspace, which has the same dependencies.
fn target() -> PathBuf {
    let beside = Path::new(env!("CARGO_TARGET_TMPDIR"));
    beside.parent().unwrap().join("acme")
}

fn cargo(folder: &Path, command: &str) {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program)
        .args([command, "--quiet", "--offline", "--target-dir"])
        .arg(target())
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .current_dir(folder)
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success(), "cargo {command}: {said}");
    assert!(
        said.trim().is_empty() || command == "test",
        "cargo {command}: {said}"
    );
}

#[tokio::test]
async fn what_is_written_builds_passes_and_serves() {
    let home = tempfile::tempdir().unwrap();
    let api = root().join("adapter-api").display().to_string();
    let written = new(home.path(), &["try-out", "--api-path", &api]);
    let said = String::from_utf8(written.stdout).unwrap();
    assert!(written.status.success(), "{said}");
    assert!(
        said.contains("cargo test && cargo build --release"),
        "{said}"
    );
    let folder = home.path().join("forge-adapter-try-out");
    // Pins the versions that are already downloaded.
    let locked = root().join("plugins/examples/acme-ai/Cargo.lock");
    fs::copy(locked, folder.join("Cargo.lock")).unwrap();
    let built = folder.clone();
    let work = move || ["build", "test"].map(|command| cargo(&built, command));
    tokio::task::spawn_blocking(work).await.unwrap();

    let plugins = tempfile::tempdir().unwrap();
    let library = plugins.path().join(file_name("try-out"));
    fs::copy(target().join("debug").join(file_name("try-out")), &library).unwrap();
    make_safe(&library);
    let verdict = Command::new(env!("CARGO_BIN_EXE_forge-bridge"))
        .env_clear()
        .env("HOME", home.path())
        .args(["adapters", "test", "--json", "--slow-model", "slow"])
        .arg(&library)
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&verdict.stdout).unwrap();
    assert!(verdict.status.success(), "{report}");
    assert_eq!(report["passed"], json!(true), "{report}");
    let rules = report["rules"].as_array().unwrap();
    let without: Vec<_> = rules
        .iter()
        .filter(|rule| rule["needs"] == "--slow-model")
        .collect();
    assert!(without.is_empty(), "cancellation was tested: {without:?}");

    let path = plugins.path().display().to_string();
    let bridge = Bridge::with(&[
        ("BRIDGE_PLUGIN_PATH", &path),
        ("BRIDGE_ADAPTERS", "try-out"),
    ])
    .await;
    let body = json!({"taskId": "t", "agentId": "a", "message": "hello", "callbackUrl": null});
    assert_eq!(bridge.api.run(body).await["output"], "HELLO");
    bridge.stop().await;
}

/// Adapters in other languages keep every rule of the boundary as they are written.
#[tokio::test]
async fn each_language_passes_and_serves() {
    let home = tempfile::tempdir().unwrap();
    let plugins = tempfile::tempdir().unwrap();
    let library = file_name("try-c");
    let compile = format!(
        "cc -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC -pthread -o {library} adapter.c"
    );
    for (lang, name, product, build) in [
        ("python", "try-python", "forge-adapter-try-python", "true"),
        ("node", "try-node", "forge-adapter-try-node", "true"),
        ("c", "try-c", library.as_str(), compile.as_str()),
    ] {
        let written = new(home.path(), &[name, "--lang", lang]);
        let said = String::from_utf8(written.stdout).unwrap();
        let test = said.lines().find(|line| line.contains("adapters test"));
        let (_, test) = test.unwrap().split_once("forge-bridge ").unwrap();
        let folder = home.path().join(format!("forge-adapter-{name}"));
        let run = |program: &str, arguments: &[&str]| {
            let mut command = Command::new(program);
            command.args(arguments).current_dir(&folder).env_clear();
            let output = command
                .env("HOME", home.path())
                .env("PATH", path())
                .output()
                .unwrap();
            let said = [output.stdout, output.stderr].concat();
            assert!(
                output.status.success(),
                "{lang}: {}",
                String::from_utf8_lossy(&said)
            );
        };
        run("sh", &["-c", build]);
        make_safe(&folder.join(product));
        let mut arguments: Vec<_> = test.split(' ').collect();
        if lang != "c" {
            arguments.push("--strict");
        }
        run(env!("CARGO_BIN_EXE_forge-bridge"), &arguments);
        fs::copy(folder.join(product), plugins.path().join(product)).unwrap();
        make_safe(&plugins.path().join(product));
        assert!(
            fs::read_to_string(folder.join("README.md"))
                .unwrap()
                .contains(product)
        );
    }
    let path = plugins.path().display().to_string();
    let settings = [
        ("BRIDGE_PLUGIN_PATH", path.as_str()),
        ("BRIDGE_ADAPTERS", "try-python,try-c"),
    ];
    let bridge = Bridge::with(&settings).await;
    for provider in ["try-python", "try-c"] {
        let body = json!({"taskId": provider, "agentId": "a", "message": "one two", "provider": provider, "callbackUrl": null});
        assert_eq!(bridge.api.run(body).await["output"], "one two");
    }
    bridge.stop().await;
}

#[test]
fn nothing_is_written_over_and_no_bad_name_is_taken() {
    let home = tempfile::tempdir().unwrap();
    assert!(new(home.path(), &["mine"]).status.success());
    let manifest = home.path().join("forge-adapter-mine/Cargo.toml");
    let text = fs::read_to_string(&manifest).unwrap();
    assert!(text.contains("\nforge-adapter-api = "), "{text}");
    for (arguments, wanted) in [
        (&["mine"][..], "cannot create forge-adapter-mine"),
        (
            &["other", "--path", "forge-adapter-mine"],
            "cannot create forge-adapter-mine",
        ),
        (&["Bad_Name"], "is not a valid adapter name"),
        (
            &["other", "--api-path", "."],
            "does not hold the package forge-adapter-api",
        ),
        (&["other", "--api-path", "nowhere"], "cannot find nowhere"),
        (
            &["other", "--lang", "c", "--api-path", "."],
            "--api-path is for adapters in Rust",
        ),
    ] {
        let output = new(home.path(), arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.contains(wanted),
            "{arguments:?}: {said}"
        );
    }
    assert_eq!(fs::read_to_string(&manifest).unwrap(), text);
    assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
}

/// Checks that the guide shows the same lines as the command writes.
#[test]
fn the_guide_shows_the_template() {
    let guide = fs::read_to_string(root().join("adapter-api/README.md")).unwrap();
    let (_, rest) = guide.split_once("```rust\n").unwrap();
    let (shown, _) = rest.split_once("```").unwrap();
    let template = fs::read_to_string(root().join("bridge/src/cli/template/lib.rs.txt")).unwrap();
    assert!(
        template.replace("{{name}}", "shout").contains(shown),
        "{shown}"
    );
    let lines = shown.lines().filter(|line| !line.is_empty());
    assert!(lines.count() <= 30);
}
