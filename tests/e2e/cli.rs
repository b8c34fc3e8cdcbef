//! The program as a shell sees it: what it prints and its exit code.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::harness::port::Reserved;
use super::harness::process::Home;

/// The program with an empty environment and this home.
fn bridge(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forge-bridge"));
    command.env_clear().env("HOME", home).current_dir(home);
    command
}

/// Folder of this build's adapter libraries: that of the test binary.
fn plugins() -> String {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().display().to_string()
}

fn run(command: &mut Command) -> (i32, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn help_lists_the_commands_and_the_exit_codes() {
    let home = tempfile::tempdir().unwrap();
    let (code, out, _) = run(bridge(home.path()).arg("--help"));
    assert_eq!(code, 0);
    let commands = [
        "serve",
        "demo",
        "dev",
        "check",
        "secrets",
        "adapters",
        "dispatch",
        "dispatches",
        "runs",
        "tail",
        "deliveries",
        "callback",
        "drill",
        "store",
    ];
    for word in commands.into_iter().chain(["Exit codes:", "BRIDGE_URL"]) {
        assert!(out.contains(word), "{word} is not in {out}");
    }
}

#[test]
fn an_unknown_argument_is_a_usage_error() {
    let home = tempfile::tempdir().unwrap();
    let (code, _, err) = run(bridge(home.path()).arg("--colour"));
    assert_eq!(code, 2);
    assert!(err.contains("--colour"), "{err}");
    let (code, _, err) = run(bridge(home.path()).args(["--url", "nowhere", "adapters"]));
    assert_eq!(code, 2);
    assert!(err.contains("\"nowhere\" is not an address"), "{err}");
}

#[test]
fn an_option_that_does_not_act_is_refused_and_not_in_the_help() {
    let home = tempfile::tempdir().unwrap();
    for (arguments, said) in [
        (&["--json"][..], "--json has no effect on `forge-bridge`"),
        (
            &["serve", "--url", "http://127.0.0.1:1"],
            "--url has no effect on `forge-bridge serve`",
        ),
        (
            &["--token", "t", "store", "check"],
            "--token has no effect on `forge-bridge store check`",
        ),
        (
            &["secrets", "token", "--config", "a.toml"],
            "--config has no effect on `forge-bridge secrets token`",
        ),
        (
            &["top", "--json"],
            "--json has no effect on `forge-bridge top`",
        ),
    ] {
        let (code, _, err) = run(bridge(home.path()).args(arguments));
        assert!(code == 2 && err.contains(said), "{arguments:?}: {err}");
    }
    // Variables are set for all commands at once.
    let mut demo = bridge(home.path());
    let demo = demo
        .env("BRIDGE_URL", "http://127.0.0.1:1")
        .env("BRIDGE_TOKEN", "t");
    let (code, _, err) = run(demo.args(["completions", "bash"]));
    assert_eq!(code, 0, "{err}");
    // The URL of the receiver is another argument.
    let mut test = bridge(home.path());
    let (code, _, err) = run(test.args(["callback", "test", "nowhere"]));
    assert!(code == 1 && !err.contains("no effect"), "{err}");
    let (_, out, _) = run(demo.args(["--help"]));
    assert!(!out.contains("--url") && !out.contains("--json"), "{out}");
}

#[test]
fn check_says_everything_at_once_and_never_a_secret() {
    let home = tempfile::tempdir().unwrap();
    fs::write(
        home.path().join("forge-bridge.toml"),
        "listen = 7\nstrcit = true\n[secret]\nkey = [\"hunter2\"]\n[drain]\ngrace = \"20\"\n",
    )
    .unwrap();
    let mut check = bridge(home.path());
    let check = check
        .env("BRIDGE_LITSEN", "x")
        .env("BRIDGE_PLUGIN_PATH", plugins())
        .arg("check");
    let (code, out, err) = run(check);
    assert_eq!((code, err.as_str()), (1, ""));
    let wanted = [
        "warning: BRIDGE_LITSEN is not a setting; did you mean BRIDGE_LISTEN?",
        "error: listen (file forge-bridge.toml): ",
        "error: strcit (file forge-bridge.toml): no such key; did you mean strict?",
        "error: secret.key (file forge-bridge.toml): ",
        "error: drain.grace (file forge-bridge.toml): wanted a duration",
        "advice: agents of runs write to ",
    ];
    for line in wanted {
        assert!(out.contains(line), "{line:?} is not in {out}");
    }
    assert_eq!(out.lines().count(), wanted.len(), "{out}");

    let (code, out, _) = run(check.arg("--json"));
    assert_eq!(code, 1);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["ok"], false);
    assert_eq!(report["problems"].as_array().unwrap().len(), 4);
    assert!(!out.contains("hunter2"));
}

#[test]
fn serve_refuses_an_invalid_configuration() {
    let home = tempfile::tempdir().unwrap();
    let (code, _, err) = run(bridge(home.path()).env("BRIDGE_LISTEN", "here"));
    assert_eq!(code, 1);
    assert!(err.contains("listen (environment BRIDGE_LISTEN)"), "{err}");
}

#[test]
fn a_bridge_that_is_not_there_is_exit_code_3() {
    let home = tempfile::tempdir().unwrap();
    let closed = Reserved::new();
    let url = format!("http://{}", closed.address());
    for arguments in [
        ["adapters", "list"].as_slice(),
        &["dispatch", "hello"],
        &["tail"],
        &["deliveries"],
    ] {
        let (code, out, err) = run(bridge(home.path()).args(arguments).args(["--url", &url]));
        assert_eq!((code, out.as_str()), (3, ""), "{arguments:?}: {err}");
        assert!(err.contains("cannot reach the bridge"), "{err}");
    }
}

#[test]
fn the_demo() {
    let home = tempfile::tempdir().unwrap();
    let mut demo = bridge(home.path());
    let demo = demo.env("BRIDGE_PLUGIN_PATH", plugins()).arg("demo");
    let (code, out, err) = run(demo);
    assert_eq!(code, 0, "{out}\n{err}");
    for line in [
        "202 Accepted",
        "execution.completed",
        "callback.delivered",
        "valid signature",
    ] {
        assert!(out.contains(line), "{line:?} is not in {out}");
    }
    let (code, out, err) = run(demo.arg("--json"));
    assert_eq!(code, 0, "{err}");
    let record: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(record["callback"]["verified"], true);
    assert_eq!(record["callback"]["body"]["status"], "ok");
    assert_eq!(
        record["callback"]["body"]["dispatchId"],
        record["accepted"]["dispatchId"]
    );
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().collect();
    assert!(left.is_empty(), "the demo left {left:?}");
}

#[test]
fn a_demo_that_fails_says_so() {
    let home = tempfile::tempdir().unwrap();
    let mut demo = bridge(home.path());
    let demo = demo.env("BRIDGE_PLUGIN_PATH", plugins()).arg("demo");
    // Neither PATH nor HOME has the program.
    let (code, out, err) = run(demo.args(["--adapter", "claude-agent-sdk"]));
    assert_eq!(code, 1, "{out}\n{err}");
    assert!(
        out.contains("The dispatch failed: ") && !out.contains("Done in"),
        "{out}"
    );
    let (code, out, _) = run(demo.arg("--json"));
    assert_eq!(code, 1, "{out}");
}

#[test]
fn without_a_url_the_bridge_is_where_the_configuration_says() {
    let home = tempfile::tempdir().unwrap();
    let closed = Reserved::new();
    let listen = format!("listen = \"{}\"\n", closed.address());
    fs::write(home.path().join("bridge.toml"), listen).unwrap();
    let arguments = ["deliveries", "--config", "bridge.toml"];
    let (code, _, err) = run(bridge(home.path()).args(arguments));
    let wanted = format!("cannot reach the bridge at http://{}/", closed.address());
    assert!(code == 3 && err.contains(&wanted), "{err}");
    let url = ["--url", "http://127.0.0.1:1"];
    let (_, _, err) = run(bridge(home.path()).args(arguments).args(url));
    assert!(err.contains("http://127.0.0.1:1/"), "{err}");
    let mut unreadable = bridge(home.path());
    let (code, _, err) = run(unreadable.env("BRIDGE_LISTEN", "here").arg("health"));
    assert!(code == 1 && err.contains("unless --url"), "{err}");
}

#[test]
fn health_shows_why_a_bridge_does_not_accept_work() {
    let home = Home::new(&[
        ("BRIDGE_ADAPTERS", "echo"),
        ("BRIDGE_ADAPTERS_ECHO_HEALTH", "offline"),
    ]);
    let bridge = home.start();
    let mut command = home.command();
    let (code, out, err) = run(command.args(["health", "--url", &bridge.api.url]));
    assert_eq!(code, 1, "{err}");
    let mut lines = out.lines();
    assert_eq!(lines.next(), Some("offline, offline"), "{out}");
    let adapter = lines.find(|line| line.starts_with("echo ")).unwrap();
    assert!(adapter.contains("offline"), "{out}");
}

#[test]
fn secrets_shows_the_configured_and_says_when_there_is_none() {
    let home = tempfile::tempdir().unwrap();
    let (code, out, err) = run(bridge(home.path()).arg("secrets"));
    assert_eq!((code, out.as_str()), (0, ""), "{err}");
    assert!(err.contains("none yet"), "{err}");
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let mut secrets = bridge(home.path());
    let secrets = secrets
        .env("BRIDGE_CALLBACK_SECRETS", secret)
        .arg("secrets");
    let (code, out, err) = run(secrets);
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with(secret), "{out}");
    let (_, out, _) = run(secrets.arg("--json"));
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        report["callbackSecrets"][0]["secrets"],
        serde_json::json!([secret])
    );
}

#[test]
fn the_demo_of_a_run() {
    let home = tempfile::tempdir().unwrap();
    let temporary = home.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let mut demo = bridge(home.path());
    let demo = demo
        .env("BRIDGE_PLUGIN_PATH", plugins())
        .env("PATH", std::env::var("PATH").unwrap())
        .env("TMPDIR", &temporary)
        .args(["demo", "--run"]);
    let (code, out, err) = run(demo);
    assert_eq!(code, 0, "{out}\n{err}");
    for line in [
        "captain  What should I build?",
        "links             Link the pages  ◄─ style",
        "german/2          pushed ",
        "refinery-final merged 3 results to ",
        "/german/2 is an ancestor of it",
        "<link rel=stylesheet href=site.css>",
        "its state is the fold of its log",
        "Done in ",
    ] {
        assert!(out.contains(line), "{line:?} is not in {out}");
    }
    let (code, out, err) = run(demo.arg("--json"));
    assert_eq!(code, 0, "{err}");
    let record: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(record["run"]["status"], "completed");
    assert_eq!(record["verify"]["ok"], true);
    assert_eq!(record["merge"]["proof"].as_array().unwrap().len(), 3);
    let left = fs::read_dir(&temporary).unwrap().count();
    assert_eq!(left, 0, "the demo left files");

    // Without git there are no runs.
    let (code, _, err) = run(demo.env("PATH", home.path()));
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("cannot start git"), "{err}");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    assert_eq!(run(demo.args(["--model", "ok"])).0, 2);
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let home = tempfile::tempdir().unwrap();
    let temporary = home.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let mut demo = bridge(home.path());
    let demo = demo
        .env("BRIDGE_PLUGIN_PATH", plugins())
        .env("PATH", std::env::var("PATH").unwrap())
        .env("TMPDIR", &temporary)
        .args(["demo", "--run"])
        .stdout(Stdio::piped());
    let mut demo = demo.spawn().unwrap();
    let lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let mut lines = lines.map(Result::unwrap);
    lines.find(|line| line.contains("works on")).unwrap();
    kill_process(Pid::from_child(&demo), Signal::INT).unwrap();
    // Read on, or the demo would end because of a broken pipe.
    let rest: Vec<String> = lines.collect();
    assert_eq!(demo.wait().unwrap().code(), Some(130), "{rest:?}");
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
}
