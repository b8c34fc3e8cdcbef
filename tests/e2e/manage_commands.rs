//! `forge-bridge agents`, `skills`, `models` and `system`, as a shell sees them.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use serde_json::{Value, json};

use super::harness::process::{Home, Process};

/// A bridge whose runtimes keep agents, and a folder with files for its commands.
struct Shell {
    home: Home,
    bridge: Process,
}

impl Shell {
    fn start(adapters: &str) -> Self {
        let home = Home::new(&[
            ("BRIDGE_ADAPTERS", adapters),
            ("BRIDGE_ADAPTERS_SECOND_LIBRARY", "manager"),
        ]);
        let bridge = home.start();
        Self { home, bridge }
    }

    /// Runs a command with a text on its standard input. Returns its exit code, answer and remarks.
    fn run_with(&self, line: &str, input: &str) -> (i32, String, String) {
        let mut command = self.home.command();
        command
            .args(["--url", &self.bridge.api.url])
            .args(line.split(' '))
            .current_dir(self.home.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that does not read it can have ended.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let code = output.status.code().unwrap();
        (code, text(output.stdout), text(output.stderr))
    }

    /// Runs a command that succeeds; returns its answer.
    fn run(&self, line: &str) -> String {
        let (code, out, err) = self.run_with(line, "");
        assert_eq!(code, 0, "{line}: {out}{err}");
        out
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.run(&format!("{line} --json"))).unwrap()
    }

    fn file(&self, name: &str, text: &str) {
        fs::write(self.home.dir.path().join(name), text).unwrap();
    }
}

const ADA: &str = "name = \"Ada\"\nmodel = \"m-1\"\nsystemPrompt = \"\"\"\nYou are kind.\nBe brief.\n\"\"\"\ncolour = [\"blue\"]\n";

#[test]
fn an_agent_is_what_its_file_says() {
    let shell = Shell::start("echo,manager");
    shell.file("ada.toml", ADA);
    let absent = shell.run_with("agents diff ada --file ada.toml", "");
    assert!(
        absent.0 == 4 && absent.2.contains("NOT_FOUND"),
        "{absent:?}"
    );
    assert_eq!(
        shell.run("agents push ada --file ada.toml"),
        "created ada\n"
    );
    assert_eq!(
        shell.run("agents push ada --file ada.toml"),
        "updated ada\n"
    );
    assert_eq!(shell.run("agents diff ada --file ada.toml"), "");
    let ada = shell.json("agents show ada");
    let expected = json!({
        "agentId": "ada", "name": "Ada", "model": "m-1", "colour": ["blue"],
        "systemPrompt": "You are kind.\nBe brief.\n",
    });
    assert_eq!(ada, expected);
    let shown = shell.run("agents show ada");
    assert!(
        shown.contains("colour        blue") && shown.ends_with("Be brief.\n"),
        "{shown}"
    );
    let listed = shell.run("agents list --provider manager");
    assert_eq!(listed, "agentId  name  model\nada      Ada   m-1\n");

    let other = json!({"name": "Ada", "model": "m-2", "systemPrompt": "You are kind.\nBe long."});
    let (code, out, err) = shell.run_with("agents diff ada", &other.to_string());
    let expected = "- in the runtime, + in standard input\nmodel\n- m-1\n+ m-2\nsystemPrompt\n- Be brief.\n+ Be long.\n";
    assert_eq!((code, out.as_str()), (1, expected), "{err}");
    let (_, out, _) = shell.run_with("agents diff ada --json", r#"{"model": "m-2"}"#);
    let different: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        different,
        json!([{"member": "model", "runtime": "m-1", "file": "m-2"}])
    );
    assert_eq!(shell.run("models set ada m-3"), "updated ada\n");
    let ada = shell.json("agents show ada");
    assert_eq!(
        (&ada["model"], &ada["name"]),
        (&json!("m-3"), &json!("Ada"))
    );

    let (code, out, err) = shell.run_with("agents remove ada", "n\n");
    assert_eq!((code, out.as_str()), (1, ""));
    assert_eq!(
        err,
        "Remove ada? [y/N] nothing was removed; --yes removes without a question\n"
    );
    let (code, out, _) = shell.run_with("agents remove ada", "y\n");
    assert_eq!((code, out.as_str()), (0, "removed ada\n"));
    assert_eq!(shell.json("agents list"), json!([]));
}

#[test]
fn files_bindings_and_models_of_a_runtime_are_seen_and_changed() {
    let shell = Shell::start("echo,manager");
    shell.file("ada.toml", ADA);
    shell.run("agents push a/b --file ada.toml");
    let (code, out, err) = shell.run_with("agents file write a/b notes/a.md", "kind\n");
    assert_eq!((code, out.as_str()), (0, "written notes/a.md\n"), "{err}");
    assert_eq!(
        shell.run("agents files a/b"),
        "path        sizeBytes\nnotes/a.md  5\n"
    );
    assert_eq!(shell.run("agents file read a/b notes/a.md"), "kind\n");
    assert_eq!(
        shell.json("agents file read a/b notes/a.md")["content"],
        "kind\n"
    );
    assert_eq!(
        shell.run("agents file remove a/b notes/a.md --yes"),
        "removed notes/a.md\n"
    );

    shell.file(
        "bindings.toml",
        "[[bindings]]\nchannel = \"slack\"\nteam = \"t\"\n",
    );
    assert_eq!(
        shell.run("agents bind a/b --file bindings.toml"),
        "bound a/b\n"
    );
    let bindings = shell.json("agents bindings a/b");
    assert_eq!(
        bindings,
        json!({"bindings": [{"channel": "slack", "team": "t"}]})
    );
    let (code, ..) = shell.run_with("agents bind a/b", &bindings.to_string());
    assert_eq!(code, 0, "what was printed can be bound");

    assert!(shell.run("models list").contains("m-1"));
    assert_eq!(shell.json("system catalogue"), json!([{"modelId": "m-1"}]));
    let posture = shell.run("system posture");
    let lines: Vec<_> = posture
        .lines()
        .map(str::split_whitespace)
        .map(Vec::from_iter)
        .collect();
    let finding = ["low", "everything", "is", "in", "memory"];
    let expected = [
        &["sandboxed", "true"][..],
        &["severity", "message"],
        &finding,
    ];
    assert_eq!(lines, expected, "{posture}");
    assert_eq!(
        shell.run("system reload"),
        "changed       true\nnotes         the port needs a restart\n"
    );
    let log = shell.home.log();
    assert!(
        log.contains("agents.create") && !log.contains("kind"),
        "{log}"
    );
}

#[test]
fn a_skill_that_can_only_be_disabled_is_not_said_to_be_removed() {
    let shell = Shell::start("manager");
    shell.file("SKILL.md", "---\nname: dig\n---\nUse paws.\n");
    for key in ["dig", "bundled"] {
        let pushed = shell.run(&format!("skills push {key} --file SKILL.md"));
        assert_eq!(pushed, format!("created {key}\n"));
    }
    let shown = shell.run("skills show dig");
    assert!(
        shown.ends_with("content\n---\nname: dig\n---\nUse paws.\n"),
        "{shown}"
    );
    assert_eq!(shell.run("skills disable dig"), "disabled dig\n");
    assert_eq!(shell.json("skills show dig")["enabled"], false);
    assert_eq!(shell.run("skills enable dig"), "enabled dig\n");
    let dig = shell.json("skills show dig");
    assert!(
        dig["enabled"] == true && dig["content"].is_string(),
        "{dig}"
    );
    assert!(
        shell
            .run("skills status dig")
            .contains("missing       ripgrep")
    );
    assert!(
        shell
            .run("skills install dig")
            .contains("installed     ripgrep")
    );
    assert_eq!(shell.json("skills status dig"), json!({"ready": true}));
    assert_eq!(shell.run("skills remove dig --yes"), "removed dig\n");
    let (code, out, err) = shell.run_with("skills remove bundled", "y\n");
    assert_eq!((code, out.as_str()), (0, "disabled bundled\n"));
    assert!(err.contains("keeps it, disabled"), "{err}");
    assert_eq!(
        shell.run("skills list"),
        "skillKey  enabled  description\nbundled   false    -\n"
    );
}

#[test]
fn bad_input_is_told_apart_from_a_refusal() {
    let shell = Shell::start("echo,manager,second");
    shell.file("bad.toml", "name = Ada\n");
    shell.file("bad.json", "{\"name\": }");
    shell.file("other.json", "{\"agentId\": \"bob\"}");
    fs::write(shell.home.dir.path().join("bytes"), [0xff, 0xfe]).unwrap();
    for (line, code, text) in [
        (
            "agents list",
            4,
            "provider: must name an adapter: manager or second",
        ),
        ("agents list --provider nothing", 4, "UNKNOWN_PROVIDER"),
        ("agents list --provider echo", 4, "NOT_SUPPORTED"),
        ("agents show bob --provider second", 4, "NOT_FOUND"),
        ("agents remove bob --yes --provider second", 4, "NOT_FOUND"),
        ("models set bob m-1 --provider second", 4, "NOT_FOUND"),
        (
            "agents push ada --provider second --file none.toml",
            2,
            "cannot read none.toml",
        ),
        (
            "agents push ada --provider second --file bytes",
            2,
            "cannot read bytes",
        ),
        (
            "agents push ada --provider second --file bad.toml",
            2,
            "at line 1, column 8",
        ),
        (
            "agents diff ada --provider second --file bad.json",
            2,
            "bad.json is neither TOML nor JSON",
        ),
        (
            "agents push ada --provider second --file other.json",
            4,
            "must be \"ada\"",
        ),
        (
            "agents push taken --provider second --file other.json",
            4,
            "must be \"taken\"",
        ),
        (
            "agents show .. --provider second",
            2,
            "a name cannot be empty, `.` or `..`",
        ),
        (
            "agents file read ada ../x --provider second",
            2,
            "a name cannot be empty",
        ),
        ("agents remove", 2, "<ID>"),
        ("system", 2, "Usage"),
    ] {
        let (status, out, err) = shell.run_with(line, "");
        assert_eq!((status, out.as_str()), (code, ""), "{line}: {err}");
        assert!(err.contains(text), "{line}: {err}");
    }
    let (code, _, err) = shell.run_with("agents push ada --provider second", "[1, 2]");
    assert!(
        code == 2 && err.contains("standard input is neither"),
        "{err}"
    );
    assert_eq!(
        shell.json("agents list --provider second"),
        json!([]),
        "nothing was created"
    );
}
