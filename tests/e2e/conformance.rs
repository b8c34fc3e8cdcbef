//! `forg-conformance`: adapters with seeded faults, each found by its own check; the reference adapters, the local agent and
//! packages, which pass.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::harness::Bridge;
use super::harness::library::root;
use super::harness::process::Home;
use super::signals::agent_of;

/// Time limit of the calls of adapters with a fault, in milliseconds.
const TIMEOUT: &str = "300";
/// Time limit of adapters that pass: on a busy machine, the first call of a Node takes longer than the other.
const LONG_TIMEOUT: &str = "1500";
const FREE: &str = "http://127.0.0.1:0";

/// Faults of `faulty.py`, each with its check.
const FAULTS: [(&str, &str); 35] = [
    ("start-of-another", "session-start"),
    ("text-plain", "content-type"),
    ("unsigned", "signature-header"),
    ("digits-only", "signature-header"),
    ("wrong-key", "signature-key"),
    ("text-key", "signature-key"),
    ("re-serialised", "signature-raw-bytes"),
    ("text-tokens", "record-fields"),
    ("another-name", "adapter-id"),
    ("prompt", "no-content"),
    ("frozen-clock", "timestamp"),
    ("own-session", "session-id"),
    ("no-end", "session-end"),
    ("ends-badly", "continues"),
    ("ascii-session-id", "opaque-session-id"),
    ("text-key-of-environment", "key-environment"),
    ("ends-when-refused", "fail-open-refused"),
    ("ends-when-gone", "fail-open-gone"),
    ("ends-without-session", "fail-open-start"),
    ("ends-at-start-pages", "fail-open-start-page"),
    ("never-recovers", "start-recovery"),
    ("ends-at-errors", "fail-open-status"),
    ("ends-at-pages", "fail-open-page"),
    ("ends-at-json", "fail-open-json"),
    ("ends-at-truncated", "fail-open-truncated"),
    ("follows-redirects", "redirect"),
    ("hangs-at-start", "timeout-start"),
    ("no-timeout", "timeout-emit"),
    ("timeout-of-a-read", "timeout-drip"),
    ("ignores-blocks", "block"),
    ("wants-message", "block-without-message"),
    ("blocks-on-text", "block-strict-text"),
    ("blocks-on-number", "block-strict-number"),
    ("no-restart", "restart-on-401"),
    ("restarts-forever", "no-retry-storm"),
];

/// Checks that the first run of an adapter decides together.
const PLAIN: [&str; 12] = [
    "session-start",
    "content-type",
    "signature-header",
    "signature-key",
    "signature-raw-bytes",
    "record-fields",
    "adapter-id",
    "no-content",
    "timestamp",
    "session-id",
    "session-end",
    "continues",
];

/// The path of this process, behind the Node of the tests and the programs of this build.
pub(super) fn path() -> String {
    let node = forge_test_runtimes::node();
    let own = Path::new(env!("CARGO_BIN_EXE_forg-conformance"));
    let rest = std::env::var("PATH").unwrap();
    let folders = [node.parent(), own.parent()].map(|folder| folder.unwrap().display().to_string());
    format!("{}:{rest}", folders.join(":"))
}

/// A program with the Node of the tests and the programs of this build on its path.
fn program(name: impl AsRef<OsStr>, home: &Path) -> Command {
    let mut command = Command::new(name);
    command
        .env_clear()
        .env("HOME", home)
        .env("PATH", path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(home);
    command
}

/// Runs the command; returns its exit code and report.
fn checked(home: &Path, timeout: &str, arguments: &[&str]) -> (i32, Value) {
    let mut command = program(env!("CARGO_BIN_EXE_forg-conformance"), home);
    let command = command.args(["--json", "--timeout-ms", timeout]);
    let Output {
        status,
        stdout,
        stderr,
    } = command.args(arguments).output().unwrap();
    let report = serde_json::from_slice(&stdout);
    let report = report.unwrap_or_else(|_| String::from_utf8_lossy(&stderr).into());
    (status.code().unwrap(), report)
}

fn ids(report: &Value, outcome: &str) -> Vec<String> {
    let rows = report["checks"].as_array().into_iter().flatten();
    let found = rows.filter(|row| row["outcome"] == outcome);
    found
        .map(|row| row["id"].as_str().unwrap().to_owned())
        .collect()
}

/// Runs these checks of the fixture, all if there are none.
fn faulty(home: &Path, fault: &str, only: &[&str]) -> (i32, Value) {
    let script = root().join("tests/fixtures/signals/faulty.py");
    let mut arguments = vec!["--adapter-id", "faulty", "--endpoint", FREE];
    for check in only {
        arguments.extend(["--only", check]);
    }
    arguments.extend(["--", "python3", "-S", script.to_str().unwrap(), fault]);
    checked(home, TIMEOUT, &arguments)
}

#[test]
fn each_fault_is_found_by_its_own_check() {
    let home = tempfile::tempdir().unwrap();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((fault, check)) = FAULTS.get(index) else {
                        return;
                    };
                    let only = match PLAIN.contains(check) {
                        true => &PLAIN[..],
                        false => &[*check],
                    };
                    let (code, report) = faulty(home.path(), fault, only);
                    assert_eq!(ids(&report, "failed"), [*check], "{fault}: {report:#}");
                    assert_eq!(code, 1, "{fault}");
                }
            });
        }
    });
}

/// The columns of the rows of the registry: name, version, folder, status.
fn registry() -> Vec<[String; 4]> {
    let text = fs::read_to_string(root().join("plugins/REGISTRY.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    let columns = |line: &str| {
        line.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().to_owned())
            .collect::<Vec<_>>()
    };
    rows.map(|line| columns(line).try_into().unwrap()).collect()
}

#[test]
fn each_verified_adapter_passes_again() {
    let home = tempfile::tempdir().unwrap();
    let schema = fs::read(root().join("bridge/schemas/forg-adapter.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_slice(&schema).unwrap()).unwrap();
    let rows = registry();
    assert!(rows.len() >= 2, "{rows:?}");
    for [name, version, link, status] in rows {
        let (_, folder) = link.trim_end_matches(')').split_once("](").unwrap();
        let folder = root().join("plugins").join(folder);
        let manifest = fs::read(folder.join("forg-adapter.json")).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        assert!(schema.is_valid(&manifest), "{manifest}");
        assert_eq!(manifest["name"], name.trim_matches('`'));
        assert_eq!(manifest["version"], version);
        let date: jiff::civil::Date = status.strip_prefix("Verified ").unwrap().parse().unwrap();
        assert!(date <= jiff::Zoned::now().date(), "{status}");

        let arguments = ["--check-package", folder.to_str().unwrap()];
        let (code, report) = checked(home.path(), LONG_TIMEOUT, &arguments);
        assert_eq!(
            (code, ids(&report, "failed")),
            (0, Vec::new()),
            "{name}: {report:#}"
        );
        assert_eq!(ids(&report, "unchecked"), [""; 0], "{name}");
        for id in ids(&report, "ok")
            .iter()
            .filter(|id| !id.starts_with("package-"))
        {
            let faults = FAULTS.iter().any(|(_, check)| check == id);
            assert!(faults, "{id} has no fault");
        }
        let adapter = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        for file in adapter.filter(|path| path.file_stem().is_some_and(|stem| stem == "adapter")) {
            let lines = fs::read_to_string(&file).unwrap().lines().count();
            assert!(lines <= 120, "{} has {lines} lines", file.display());
        }
    }
}

#[test]
fn a_package_that_lacks_a_part_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let package = home.path().join("package");
    fs::create_dir(&package).unwrap();
    let check = || checked(home.path(), TIMEOUT, &["--check-package", "package"]);
    let (code, report) = check();
    assert_eq!(
        (code, ids(&report, "failed")),
        (
            1,
            vec!["package-readme".to_owned(), "package-manifest".to_owned()]
        )
    );

    // A part of each, and an adapter that is not there.
    fs::write(
        package.join("README.md"),
        "# Prerequisites\n## Installation\n",
    )
    .unwrap();
    let manifest = json!({"name": "a", "version": "1.0.0", "hooks": ["SessionEnd"], "command": ["false"], "test": ["true"]});
    let write = |manifest: &Value| {
        fs::write(package.join("forg-adapter.json"), manifest.to_string()).unwrap();
    };
    for (member, wrong) in [
        ("hooks", json!(["Later"])),
        ("version", json!("1")),
        ("test", json!([])),
        ("more", json!(1)),
    ] {
        let mut manifest = manifest.clone();
        manifest[member] = wrong;
        write(&manifest);
        assert!(
            ids(&check().1, "failed").contains(&"package-manifest".to_owned()),
            "{member}"
        );
    }
    write(&manifest);
    let (code, report) = check();
    let failed = ids(&report, "failed");
    assert_eq!(code, 1);
    for part in [
        "package-readme",
        "package-tests",
        "package-fail-open",
        "session-start",
    ] {
        assert!(failed.contains(&part.to_owned()), "{part}: {failed:?}");
    }
    assert!(
        !failed.contains(&"package-manifest".to_owned()),
        "{failed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_local_agent_passes() {
    let bridge = Bridge::start().await;
    let url = agent_of(&bridge.api).await;
    let home = tempfile::tempdir().unwrap();
    let arguments = [
        "--adapter-id",
        "my-tool-forg",
        "--endpoint",
        &url,
        "--junit",
        "report.xml",
    ];
    let (code, report) =
        tokio::task::block_in_place(|| checked(home.path(), LONG_TIMEOUT, &arguments));
    assert_eq!(
        (code, ids(&report, "failed")),
        (0, Vec::new()),
        "{report:#}"
    );
    assert!(ids(&report, "ok").len() > 55, "{report:#}");
    let junit = fs::read_to_string(home.path().join("report.xml")).unwrap();
    let count = ids(&report, "ok").len();
    assert!(
        junit.contains(&format!("tests=\"{count}\" failures=\"0\"")),
        "{junit}"
    );
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_of_the_bridge_passes() {
    let bridge = Bridge::start().await;
    let home = tempfile::tempdir().unwrap();
    let arguments = ["--engine", &bridge.api.url];
    let (code, report) =
        tokio::task::block_in_place(|| checked(home.path(), LONG_TIMEOUT, &arguments));
    assert_eq!(
        (code, ids(&report, "failed")),
        (0, Vec::new()),
        "{report:#}"
    );
    assert!(ids(&report, "ok").len() > 40, "{report:#}");
    bridge.stop().await;
}

/// Engine of the fixture with a fault; ended when dropped.
struct Engine(Child, String);

impl Engine {
    fn start(home: &Path, fault: &str) -> Self {
        let script = root().join("tests/fixtures/signals/engine.py");
        let mut command = program("python3", home);
        let command = command.arg(script).arg(fault).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut url)
            .unwrap();
        Self(child, url.trim().to_owned())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn an_engine_is_checked() {
    let home = tempfile::tempdir().unwrap();
    for (fault, expected) in [
        ("none", &[][..]),
        ("content", &["content-prompt", "content-nested"]),
        ("range", &["drift-above"]),
    ] {
        let Engine(_, url) = &Engine::start(home.path(), fault);
        let (code, report) = checked(home.path(), TIMEOUT, &["--engine", url]);
        assert_eq!(ids(&report, "failed"), expected, "{fault}: {report:#}");
        assert_eq!(code, i32::from(!expected.is_empty()));
    }
    let Engine(_, url) = &Engine::start(home.path(), "whole-token");
    let (_, report) = checked(home.path(), TIMEOUT, &["--engine", url]);
    assert!(
        ids(&report, "failed").contains(&"signal".to_owned()),
        "{report:#}"
    );
}

/// The example of the description signs on Node, and is accepted by another implementation.
#[test]
fn a_signal_of_node_reaches_an_engine() {
    let home = tempfile::tempdir().unwrap();
    let Engine(_, url) = &Engine::start(home.path(), "none");
    let example = root().join("plugins/examples/signals/typescript/engine.ts");
    let mut command = program(forge_test_runtimes::node(), home.path());
    let command = command.arg(example).env("FORG_ENGINE_URL", url);
    let output = command
        .env("FORG_TOKEN", "forg_live_a3f9e2c1b84d7f6e0a2c1d8e9f0b3c4d\n")
        .output()
        .unwrap();
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["action"], "noop", "{answer}");
}

#[test]
fn wrong_arguments_end_it_with_2() {
    let home = tempfile::tempdir().unwrap();
    for arguments in [
        &[][..],
        &["--endpoint", FREE],
        &["--adapter-id", "a", "--endpoint", "here"],
        &["--adapter-id", "a", "--endpoint", FREE, "--engine", FREE],
        &["--adapter-id", "", "--endpoint", FREE],
        &["--check-package", ".", "--", "true"],
    ] {
        let (code, report) = checked(home.path(), TIMEOUT, arguments);
        assert_eq!(code, 2, "{arguments:?}: {report}");
    }
}

/// All commands of the guide, as they stand there, beside a bridge whose agent has another port.
#[tokio::test(flavor = "multi_thread")]
async fn the_guide_works_as_it_is_written() {
    let bridge = Bridge::start().await;
    let url = agent_of(&bridge.api).await;
    let home = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root().join("plugins"), home.path().join("plugins")).unwrap();
    let guide = fs::read_to_string(root().join("plugins/SIGNALS.md")).unwrap();
    let mut script = "set -eux\n".to_owned();
    let mut inside = false;
    for line in guide.lines().map(str::trim_start) {
        match line {
            "```sh" => inside = true,
            "```" => inside = false,
            line if inside => script.extend([line, "\n"]),
            _ => {}
        }
    }
    assert!(script.lines().count() > 7, "{script}");
    let script = script.replace("http://127.0.0.1:6247", &url);
    let run = || {
        program("sh", home.path())
            .args(["-c", &script])
            .output()
            .unwrap()
    };
    let output = tokio::task::block_in_place(run);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(text.matches(" 0 failed").count(), 3, "{text}");
    assert!(home.path().join("report.xml").exists());
    bridge.stop().await;
}

/// The adapter of the description, on Node: the agent goes away while the tool runs, a budget blocks, the session is ended.
#[tokio::test]
async fn a_tool_on_node_is_blocked_continues_without_an_agent_and_ends_its_session() {
    let rules = json!({"version": 1, "rules": [{
        "id": "calls", "scope": "session", "window": "session", "action": "block", "message": "Two calls are enough.",
        "condition": {"signals": {"gte": 2}},
    }]});
    let home = Home::new(&[]);
    fs::write(home.dir.path().join("rules.json"), rules.to_string()).unwrap();
    let settings = "[signals]\nrules = \"rules.json\"\n";
    fs::write(home.dir.path().join("forge-bridge.toml"), settings).unwrap();
    let bridge = home.start();
    let url = agent_of(&bridge.api).await;
    let tool = || {
        let mut tool = program(forge_test_runtimes::node(), home.dir.path());
        tool.arg(root().join("tests/fixtures/signals/steps.ts"))
            .env("FORG_AGENT_URL", &url);
        let piped = tool
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        piped.spawn().unwrap()
    };
    let blocked = tool();
    let (mut ended, mut alone) = (tool(), tool());
    let (mut ended_input, mut alone_input) =
        (ended.stdin.take().unwrap(), alone.stdin.take().unwrap());
    let mut alone_output = BufReader::new(alone.stdout.take().unwrap());
    blocked
        .stdin
        .as_ref()
        .unwrap()
        .write_all(b"call\ncall\ncall\n")
        .unwrap();
    let output = blocked.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("FORG policy blocked this request: Two calls are enough."),
        "{error}"
    );
    assert_eq!(
        (output.status.code(), &output.stdout[..]),
        (Some(1), &b"continued\n"[..])
    );

    ended_input.write_all(b"call\nend\n").unwrap();
    drop(ended_input);
    let output = ended.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"continued\nended\n");
    let log = bridge.api.event_log().await;
    let ends = log
        .iter()
        .filter(|event| event["type"] == "signal.session.ended");
    assert_eq!(ends.count(), 1, "{log:?}");

    let mut continued = |input: &mut ChildStdin| {
        input.write_all(b"call\n").unwrap();
        let mut line = String::new();
        alone_output.read_line(&mut line).unwrap();
        assert_eq!(line, "continued\n");
    };
    continued(&mut alone_input);
    bridge.kill();
    continued(&mut alone_input);
    continued(&mut alone_input);
    drop(alone_input);
    assert!(alone.wait().unwrap().success());
}
