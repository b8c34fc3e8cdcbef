//! `forg connect`: the real programs `claude` and `opencode` send their signals, and obey a block.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use forge_test_model::Model;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use super::harness::{Answer, Bridge, CallbackSink};
use super::signal_claude::{CALL_TOKENS, asked};
use super::terminal::on_a_terminal;

/// Project of a user whose tools find `forg`.
struct Project {
    home: TempDir,
    variables: BTreeMap<String, String>,
}

impl Project {
    fn new(variables: &[(&str, &str)]) -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("project")).unwrap();
        let forg = Path::new(env!("CARGO_BIN_EXE_forg")).parent().unwrap();
        let system = env::var_os("PATH").unwrap();
        let paths = [forg.to_owned()]
            .into_iter()
            .chain(env::split_paths(&system));
        let paths = env::join_paths(paths).unwrap();
        let own = [
            ("HOME", home.path().to_str().unwrap()),
            ("PATH", paths.to_str().unwrap()),
        ];
        let variables = own.iter().chain(variables);
        let variables = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Self {
            variables: variables.collect(),
            home,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.home.path().join("project").join(path)
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .envs(&self.variables)
            .current_dir(self.path(""))
            .stdin(Stdio::null());
        command
    }

    fn connect(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(Path::new("forg"));
        command.arg("connect").args(arguments).output().unwrap()
    }

    /// Runs a program without waiting on the test's runtime, which answers it.
    async fn run(&self, program: &Path, arguments: &[&str], more: &[(&str, &str)]) -> Output {
        let mut command = self.command(program);
        command.args(arguments).envs(more.iter().copied());
        spawn_blocking(move || command.output())
            .await
            .unwrap()
            .unwrap()
    }
}

fn text(output: &[u8]) -> String {
    String::from_utf8(output.to_vec()).unwrap()
}

#[test]
fn a_tool_is_connected_and_disconnected_after_its_change_is_shown() {
    let project = Project::new(&[]);
    fs::create_dir(project.path(".claude")).unwrap();
    let settings = project.path(".claude/settings.json");
    let foreign = "{\n  \"model\": \"opus\",\n  \"hooks\": {\n    \"Stop\": [\n      {\"hooks\": [{\"type\": \"command\", \"command\": \"say\"}]}\n    ]\n  }\n}\n";
    fs::write(&settings, foreign).unwrap();
    // Without a terminal, also over a pipe that stays open, the change is only shown.
    let (input, _open) = io::pipe().unwrap();
    let mut asked = project.command(Path::new("forg"));
    asked.args(["connect", "claude-code"]).stdin(input);
    let shown = asked.output().unwrap();
    assert_eq!(shown.status.code(), Some(1));
    let said = text(&shown.stderr);
    assert!(said.contains("--yes"), "{said}");
    assert_eq!(fs::read_to_string(&settings).unwrap(), foreign);
    let diff = text(&shown.stdout);
    assert!(diff.contains("forg emit --event PreToolUse"), "{diff}");
    assert!(!diff.contains("opus"), "{diff}");

    // On a terminal it asks.
    for (answer, code) in [("n\n", 1), ("y\n", 0)] {
        let (input, mut keys) = io::pipe().unwrap();
        keys.write_all(answer.as_bytes()).unwrap();
        let mut asked = project.command(Path::new(env!("CARGO_BIN_EXE_forg")));
        asked.args(["connect", "claude-code"]);
        let mut asked = on_a_terminal(&asked);
        asked.current_dir(project.path("")).stdin(input);
        let output = asked.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        let is_changed = fs::read_to_string(&settings).unwrap() != foreign;
        assert_eq!(is_changed, code == 0, "{output:?}");
    }
    let connected = fs::read_to_string(&settings).unwrap();
    let again = project.connect(&["claude-code"]);
    assert!(text(&again.stdout).contains("no change"), "{again:?}");
    assert_eq!(fs::read_to_string(&settings).unwrap(), connected);
    let removed = project.connect(&["claude-code", "--remove", "--yes"]);
    assert!(removed.status.success(), "{removed:?}");
    assert_eq!(fs::read_to_string(&settings).unwrap(), foreign);

    fs::write(&settings, "{broken").unwrap();
    let refused = project.connect(&["claude-code", "--yes"]);
    assert_eq!(refused.status.code(), Some(1));
    assert_eq!(fs::read_to_string(&settings).unwrap(), "{broken");
    // The settings of the user, in a folder that is new.
    let user = project.connect(&["claude-code", "--user", "--yes"]);
    assert!(user.status.success(), "{user:?}");
    assert!(project.home.path().join(".claude/settings.json").is_file());

    let plugin = project.path(".opencode/plugins/forg.js");
    assert!(project.connect(&["opencode", "--yes"]).status.success());
    assert!(plugin.is_file());
    let removed = project.connect(&["opencode", "--remove", "--yes"]);
    assert!(removed.status.success() && !plugin.exists());
    fs::write(&plugin, "export const Other = 1\n").unwrap();
    for arguments in [
        &["opencode", "--yes"][..],
        &["opencode", "--remove", "--yes"],
    ] {
        assert_eq!(project.connect(arguments).status.code(), Some(1));
    }
    assert!(plugin.is_file());
}

/// A project is written by others: its links do not choose the file that is changed, and a pipe in the place of a file is
/// not waited for. The user's own links lead where the user wants.
#[test]
fn only_a_regular_file_is_changed_and_none_that_a_project_links_to() {
    let project = Project::new(&[]);
    let outside = project.home.path().join("outside.json");
    let own = project.home.path().join(".claude");
    for folder in [&project.path(".claude"), &own] {
        fs::create_dir(folder).unwrap();
    }
    let settings = project.path(".claude/settings.json");
    let user = own.join("settings.json");
    for link in [&settings, &user] {
        std::os::unix::fs::symlink(&outside, link).unwrap();
    }
    let refused = |arguments: &[&str], reason: &str| {
        let output = project.connect(arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(reason), "{arguments:?}: {said}");
    };
    let dangling = "is a link to a file that does not exist; create that file, or remove the link";
    refused(&["claude-code", "--yes"], dangling);
    refused(&["claude-code", "--user", "--yes"], dangling);
    assert!(!outside.exists() && settings.is_symlink() && user.is_symlink());

    fs::write(&outside, "{}\n").unwrap();
    refused(
        &["claude-code", "--yes"],
        "it leads out of this folder by a link",
    );
    assert_eq!(fs::read_to_string(&outside).unwrap(), "{}\n");
    let connected = project.connect(&["claude-code", "--user", "--yes"]);
    assert!(connected.status.success(), "{connected:?}");
    assert!(user.is_symlink());
    let changed = fs::read_to_string(&outside).unwrap();
    assert!(changed.contains("forg emit --event Stop"), "{changed}");

    fs::remove_file(&settings).unwrap();
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mkfifoat(rustix::fs::CWD, &settings, mode).unwrap();
    refused(&["claude-code", "--yes"], "it is not a regular file");
    fs::remove_file(&settings).unwrap();
    fs::write(&settings, " ".repeat(5 << 20)).unwrap();
    refused(&["claude-code", "--yes"], "it is larger than 4194304 bytes");
    assert!(project.connect(&["opencode", "--yes"]).status.success());
}

#[test]
fn a_change_of_another_process_while_it_asks_is_kept() {
    let project = Project::new(&[]);
    fs::create_dir(project.path(".claude")).unwrap();
    let settings = project.path(".claude/settings.json");
    fs::write(&settings, "{}\n").unwrap();
    let mut asked = project.command(Path::new(env!("CARGO_BIN_EXE_forg")));
    asked.args(["connect", "claude-code"]);
    let mut asked = on_a_terminal(&asked);
    let (shown, pipe) = io::pipe().unwrap();
    asked.current_dir(project.path("")).stdin(Stdio::piped());
    asked.stdout(pipe).stderr(Stdio::inherit());
    let mut process = asked.spawn().unwrap();
    // Its end of the pipe would keep the loop below waiting after the process has ended.
    drop(asked);
    let mut text = Vec::new();
    for byte in io::Read::bytes(shown) {
        text.push(byte.unwrap());
        if text.ends_with(b"[y/N]") {
            fs::write(&settings, "{\"model\": \"opus\"}\n").unwrap();
            let mut keys = process.stdin.take().unwrap();
            keys.write_all(b"y\n").unwrap();
        }
    }
    let text = String::from_utf8_lossy(&text);
    assert_eq!(process.wait().unwrap().code(), Some(1), "{text}");
    assert!(text.contains("changed by another process"), "{text}");
    let kept = fs::read_to_string(&settings).unwrap();
    assert_eq!(kept, "{\"model\": \"opus\"}\n");
}

#[tokio::test]
async fn a_connected_claude_is_counted_as_the_model_reports_and_obeys_a_block() {
    let model = Model::start().await;
    let rules = json!({"version": 1, "rules": [
        // A tool round trip is two calls of the model, so the third call is above the limit.
        {"id": "tokens", "scope": "project", "window": "1d", "action": "block", "message": "Used up.",
            "condition": {"project_id": {"eq": "web"}, "tokens": {"gt": 2 * CALL_TOKENS}}},
        {"id": "stop", "scope": "project", "window": "1d", "action": "block", "message": "Enough.",
            "condition": {"project_id": {"eq": "calm"}, "hook": {"eq": "Stop"}}},
    ]});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rules.json");
    fs::write(&file, rules.to_string()).unwrap();
    let bridge = Bridge::configured(&format!("[signals]\nrules = {file:?}\n"), &[]).await;
    let (_, health) = bridge.api.get("/api/health").await;
    let agent = format!("http://{}", health["signals"]["agent"].as_str().unwrap());
    let project = Project::new(&[
        ("FORG_AGENT_URL", &agent),
        ("ANTHROPIC_BASE_URL", model.url()),
        ("ANTHROPIC_API_KEY", "fake"),
        ("CLAUDE_CODE_MAX_RETRIES", "1"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
    ]);
    let connected = project.connect(&["claude-code", "--yes"]);
    assert!(connected.status.success(), "{connected:?}");
    let claude = forge_test_runtimes::claude();
    let run = async |name: &str, prompt: &str| {
        let arguments = [
            "-p",
            prompt,
            "--model",
            "claude-sonnet-4-5",
            "--allowedTools",
            "Bash",
        ];
        project
            .run(&claude, &arguments, &[("FORG_PROJECT_ID", name)])
            .await
    };
    let touch =
        |name: &str| format!("CALL Bash {{\"command\":\"touch {name}\",\"description\":\"d\"}}");

    let output = run("web", &touch("first")).await;
    assert!(project.path("first").is_file(), "{output:?}");
    let log = bridge.api.event_log().await;
    let ended = log
        .iter()
        .find(|event| event["type"] == "signal.session.ended");
    let totals = &ended.expect("the session has ended")["data"]["totals"];
    assert_eq!(
        (&totals["totalTokensIn"], &totals["totalTokensOut"]),
        (&json!(2 * 35), &json!(2 * 12)),
        "{totals}"
    );

    // The call that asks for the tool is above the limit: neither the tool runs nor the model is asked again.
    let output = run("web", &touch("second")).await;
    assert!(!project.path("second").exists(), "{output:?}");
    assert_eq!(asked(&model, "touch second"), 1);
    // The next prompt does not reach the model.
    run("web", "are you there").await;
    assert_eq!(asked(&model, "are you there"), 0);
    // A block at the end of a turn ends the run.
    let output = run("calm", "a calm question").await;
    assert_eq!(asked(&model, "a calm question"), 1, "{output:?}");
    bridge.stop().await;
}

#[tokio::test]
async fn a_connected_opencode_reports_usage_and_runs_no_tool_that_is_blocked() {
    let model = Model::start().await;
    let sink = CallbackSink::start().await;
    sink.answer_with(|received| {
        let is_tool = String::from_utf8_lossy(&received.body).contains("PreToolUse");
        let answer = json!({
            "session_id": "sess_1", "session_key": BASE64_STANDARD.encode([7; 32]), "blocked": is_tool,
            "message": "Not this tool.",
        });
        Answer::status(200).body(answer.to_string())
    });
    let project = Project::new(&[
        ("FORG_AGENT_URL", &sink.url("")),
        ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
        ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
    ]);
    let settings = json!({
        "model": "fake/fake-1", "small_model": "fake/fake-1",
        "provider": {"fake": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": format!("{}/v1", model.url()), "apiKey": "fake"},
            "models": {"fake-1": {"limit": {"context": 128_000, "output": 8_000}, "cost": {"input": 3, "output": 15}}},
        }},
    });
    fs::write(project.path("opencode.json"), settings.to_string()).unwrap();
    assert!(project.connect(&["opencode", "--yes"]).status.success());
    // An argument with spaces would be quoted again.
    let prompt = r#"echo 'CALL bash {"command":"touch ran","description":"d"}' | "$0" run"#;
    let program = forge_test_runtimes::opencode();
    let arguments = ["-c", prompt, program.to_str().unwrap()];
    let output = project.run(Path::new("sh"), &arguments, &[]).await;

    let told = text(&output.stdout) + &text(&output.stderr);
    assert!(told.contains("Not this tool."), "{told}");
    assert!(!project.path("ran").exists(), "{told}");
    let received = sink.received();
    let bodies = received
        .iter()
        .map(|one| serde_json::from_slice::<Value>(&one.body).unwrap());
    let (starts, records): (Vec<_>, Vec<_>) = bodies.partition(|body| body["ts"].is_null());
    assert_eq!(starts[0]["adapter"], "opencode-forg");
    let hooks = records.iter().filter_map(|record| record["hook"].as_str());
    let hooks: Vec<_> = hooks.collect();
    assert_eq!(
        hooks,
        ["SessionStart", "UserPromptSubmit", "PreToolUse", "Stop"]
    );
    let usage: Vec<_> = records
        .iter()
        .filter(|record| record["hook"].is_null())
        .collect();
    assert_eq!(usage.len(), 2, "{records:?}");
    for record in usage {
        // 26 tokens and 5 of the cache; 7 of the text and 2 of the thoughts.
        let counts = ["tokens_in", "tokens_out", "cache_read_tokens"].map(|name| &record[name]);
        assert_eq!(counts, [&json!(31), &json!(9), &json!(5)]);
        assert_eq!(
            (&record["model"], &record["cost_usd"]),
            (&json!("fake-1"), &json!(0.000_213))
        );
    }
}
