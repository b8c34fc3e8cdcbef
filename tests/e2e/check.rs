//! `forge-bridge check`: what it reads, what it runs, and what it reports at once.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::harness::plugins;

/// Runtimes that have an id of their own in the protocol.
pub(crate) const RUNTIMES: [&str; 8] = [
    "openclaw",
    "claude-agent-sdk",
    "vercel-ai",
    "langgraph",
    "convex-native",
    "gloo-ai",
    "hermes-agent",
    "custom",
];

/// A folder to start in, without any other variable than those of a test.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Runs the check; returns its exit code and its report.
    fn check(&self, variables: &[(&str, &str)], arguments: &[&str]) -> (i32, Report) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_forge-bridge"));
        command
            .env_clear()
            .current_dir(self.path())
            .env("HOME", self.path())
            .env("BRIDGE_PLUGIN_PATH", plugins())
            .envs(variables.iter().copied())
            .args(["check", "--json"])
            .args(arguments);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_slice(&output.stdout);
        let report = report.unwrap_or_else(|_| panic!("no report: {error}"));
        (output.status.code().unwrap(), Report(report))
    }

    /// A program that leaves a file behind when it runs.
    fn traitor(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        let program = folder.join("forge-adapter-traitor");
        let mark = self.path().join("ran");
        fs::write(&program, format!("#!/bin/sh\ntouch {}\n", mark.display())).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    }

    fn ran(&self) -> bool {
        self.path().join("ran").exists()
    }
}

struct Report(Value);

impl Report {
    /// All lines of a list, joined.
    fn lines(&self, list: &str) -> String {
        let lines = self.0[list].as_array().unwrap().iter();
        lines
            .map(|line| line.as_str().unwrap().to_owned() + "\n")
            .collect()
    }
}

#[test]
fn no_code_of_an_adapter_runs_without_load() {
    let place = Place::new();
    let folder = place.path().join("folder");
    place.traitor(&folder);
    let folder = folder.to_str().unwrap();
    let variables = [
        ("BRIDGE_ADAPTERS", "traitor"),
        ("BRIDGE_PLUGIN_PATH", folder),
    ];
    let (code, report) = place.check(&variables, &[]);
    assert_eq!((code, report.0["loaded"].as_bool()), (0, Some(false)));
    assert!(!place.ran(), "the program was run");
    let (code, report) = place.check(&variables, &["--load"]);
    assert_eq!(code, 1);
    assert!(place.ran());
    assert!(report.lines("problems").contains("adapter traitor: "));
}

#[test]
fn files_are_checked_without_load_and_health_with_it() {
    let place = Place::new();
    for (adapters, expected) in [
        ("echo", ""),
        ("echo,ehco", "did you mean echo?"),
        ("echo,absent", "libforge_adapter_absent"),
    ] {
        let (code, report) = place.check(&[("BRIDGE_ADAPTERS", adapters)], &[]);
        let problems = report.lines("problems");
        assert_eq!(code, i32::from(!expected.is_empty()), "{problems}");
        assert!(problems.contains(expected), "{problems}");
    }

    // Without a server the adapter is degraded.
    let unusable = [("BRIDGE_ADAPTERS", "echo,http")];
    let (code, report) = place.check(&unusable, &[]);
    assert_eq!((code, report.lines("warnings").as_str()), (0, ""));
    let (code, report) = place.check(&unusable, &["--load"]);
    let warnings = report.lines("warnings");
    assert_eq!(code, 0, "{}", report.lines("problems"));
    assert!(
        warnings.contains("adapter http is degraded: "),
        "{warnings}"
    );
    assert!(!warnings.contains("echo"), "{warnings}");
    // The environment has no PATH.
    assert!(
        warnings.contains("runs are not available: git 2.38 or newer is needed"),
        "{warnings}"
    );
    let path = std::env::var("PATH").unwrap();
    let (_, report) = place.check(&[unusable[0], ("PATH", &path)], &["--load"]);
    let warnings = report.lines("warnings");
    assert!(!warnings.contains("runs are"), "{warnings}");
    let rule = [unusable[0], ("BRIDGE_RUNS_REPOSITORIES", "ftp://a")];
    let (code, report) = place.check(&rule, &[]);
    let problems = report.lines("problems");
    assert_eq!(code, 1);
    assert!(problems.contains("runs.repositories"), "{problems}");
    let strict = [unusable[0], ("BRIDGE_STRICT", "true")];
    let (code, report) = place.check(&strict, &["--load"]);
    assert_eq!(code, 1);
    assert!(
        report
            .lines("problems")
            .contains("adapter http is degraded: ")
    );
}

#[test]
fn each_runtime_without_its_settings_has_one_line_with_what_is_missing_and_how_to_get_it() {
    let place = Place::new();
    let variables = [("BRIDGE_ADAPTERS", &*RUNTIMES.join(","))];
    let (code, report) = place.check(&variables, &["--load"]);
    assert_eq!((code, report.lines("problems").as_str()), (0, ""));
    let warnings = report.lines("warnings");
    let cures = [
        &[
            "`npm install -g openclaw`",
            "OPENCLAW_URL",
            "OPENCLAW_TOKEN",
        ][..],
        &[
            "`npm install -g @anthropic-ai/claude-code`",
            "CLAUDE_AGENT_SDK_PROGRAM",
        ],
        &["ANTHROPIC_API_KEY, OPENAI_API_KEY or GOOGLE_GENERATIVE_AI_API_KEY"],
        &["`pip install 'langgraph-cli[inmem]'`", "LANGGRAPH_URL"],
        &["set adapters.convex-native.url, or CONVEX_NATIVE_URL"],
        &[
            "GLOO_API_KEY, or GLOO_CLIENT_ID and GLOO_CLIENT_SECRET",
            "studio.ai.gloo.com",
        ],
        &[
            "`pip install 'hermes-agent[acp,mcp]'`",
            "adapters.hermes-agent.program",
        ],
        &["set adapters.custom.url, or CUSTOM_URL"],
    ];
    for (id, cures) in RUNTIMES.into_iter().zip(cures) {
        let begin = format!("adapter {id} is degraded: ");
        let mut about = warnings
            .lines()
            .filter_map(|line| line.strip_prefix(&begin));
        let (Some(line), None) = (about.next(), about.next()) else {
            panic!("{id} has not one line: {warnings}");
        };
        for cure in cures {
            assert!(line.contains(cure), "{cure} is not in {line}");
        }
    }
}

#[test]
fn no_bad_setting_hides_another() {
    let place = Place::new();
    fs::write(
        place.path().join("forge-bridge.toml"),
        "lisen = 1\n[retention]\nrecords = \"soon\"\n[callback]\nallow = [\"a b\", \"c d\"]\n\
         [mcp.servers.one]\n[mcp.servers.two]\n[plugin]\ndefault_provider = \"ehco\"\n\
         adapters = [\"echo\", \"Wrong\"]\n[auth]\ntokens = [\"\", \" \"]\n[[auth.token]]\nhash = \"abc\"\n\
         [[auth.token]]\nhash = \"sha256:g\"\n",
    )
    .unwrap();
    let variables = [("BRIDGE_ADAPTER", "echo"), ("BRIDGE_TLS_CERT", "/cert")];
    let (code, report) = place.check(&variables, &[]);
    assert_eq!(code, 1);
    let problems = report.lines("problems");
    for wanted in [
        "lisen (file forge-bridge.toml): no such key; did you mean listen?",
        "retention.records (file forge-bridge.toml)",
        "\"a b\"",
        "\"c d\"",
        "one",
        "two",
        "tls.key is not set",
        "\"ehco\" is not among the adapters; did you mean echo?",
        "invalid adapter name \"Wrong\"",
        "token 1 of auth.tokens is empty\n",
        "token 2 of auth.tokens is empty\n",
        "auth.token[0].hash is not",
        "auth.token[1].hash is not",
    ] {
        assert!(
            problems.contains(wanted),
            "{wanted:?} is not in\n{problems}"
        );
    }
    let warnings = report.lines("warnings");
    assert!(
        warnings.contains("did you mean BRIDGE_ADAPTERS?"),
        "{warnings}"
    );
}

/// Anything in the current folder, which others can write, and the same in one of our own.
#[test]
fn code_and_settings_of_the_current_folder_count_only_if_no_other_user_can_write_there() {
    let place = Place::new();
    place.traitor(&place.path().join("plugins"));
    let file = place.path().join("forge-bridge.toml");
    fs::write(&file, "[plugin]\nadapters = [\"traitor\"]\n").unwrap();
    let mode = |mode| fs::set_permissions(place.path(), Permissions::from_mode(mode)).unwrap();
    let relative = [("BRIDGE_PLUGIN_PATH", "plugins")];

    for open in [0o777, 0o1777] {
        mode(open);
        let (code, report) = place.check(&relative, &["--load"]);
        let problems = report.lines("problems");
        assert_eq!(code, 1);
        assert!(problems.contains("it is writable by others"), "{problems}");
        assert!(problems.contains("--config"), "{problems}");

        let named = ["--load", "--config", "forge-bridge.toml"];
        let lowered = [relative[0], ("BRIDGE_PLUGIN_TRUST", "warn")];
        let (code, report) = place.check(&lowered, &named);
        assert_eq!(code, 1);
        let problems = report.lines("problems");
        assert!(problems.contains("plugin.path: not searched"), "{problems}");
        assert!(!place.ran(), "mode {open:o}: the program was run");
    }

    mode(0o700);
    let (_, report) = place.check(&relative, &["--load"]);
    assert!(place.ran(), "{}", report.lines("problems"));
}

#[test]
fn manifests_of_external_services_are_checked() {
    let place = Place::new();
    let root = place.path().join("root");
    fs::create_dir_all(root.join(".forge")).unwrap();
    fs::write(
        place.path().join("forge-bridge.toml"),
        "[external]\nroot = \"root\"\n[external.services.allowed]\nprogram = true\n",
    )
    .unwrap();
    let manifest = |name: &str, policy: &str| {
        json!({
            "forgeProtocol": "1.0", "language": "sh",
            "service": { "name": name, "transport": "stdio", "command": "./serve 'a b'" },
            "entries": [{ "name": "one", "kind": "command", "policy": policy }],
        })
    };
    let registry = |manifests: &[Value]| {
        let content = json!({ "manifests": manifests, "schemaVersion": "0.1.0" }).to_string();
        fs::write(root.join(".forge/external-manifests.json"), content).unwrap();
    };
    let single = |content: &str| fs::write(root.join("forge.manifest.json"), content).unwrap();
    let variables = [("BRIDGE_ADAPTERS", "echo")];
    let check = || place.check(&variables, &[]);

    registry(&[manifest("allowed", "user"), manifest("other", "lost")]);
    single(&manifest("allowed", "user").to_string());
    let (code, report) = check();
    assert_eq!((code, report.lines("problems").as_str()), (0, ""));
    assert_eq!(
        report.lines("warnings"),
        "root/forge.manifest.json: the service \"allowed\" is also in the registry, which wins. Import the file again \
         after each change, or remove the service from the registry.\n\
         other.one names the policy \"lost\", which is not defined: every call of it is denied. Define \
         [external.policies.\"lost\"] in the bridge's configuration, or name its file with --config.\n\
         external service \"other\" cannot be called: to start its program [\"./serve\", \"a b\"], set program = true in \
         [external.services.\"other\"]\n"
    );

    let mut broken = manifest("other", "user");
    broken["entries"][0]["kind"] = json!("commando");
    registry(&[manifest("allowed", "user"), broken]);
    single("{");
    let (code, report) = check();
    let problems = report.lines("problems");
    assert_eq!(code, 1, "{problems}");
    for wanted in [
        "root/.forge/external-manifests.json#manifests/1: entries[0].kind must be ",
        "root/forge.manifest.json: ",
        "Write one JSON object in UTF-8, each key once.",
    ] {
        assert!(
            problems.contains(wanted),
            "{wanted:?} is not in\n{problems}"
        );
    }
}

#[test]
fn a_key_that_names_no_repositories_is_a_problem() {
    let checks = |keys: &[&str]| {
        let lines = keys.iter().map(|key| format!("{key:?} = [[\"true\"]]\n"));
        format!("[runs.checks]\n{}", lines.collect::<String>())
    };
    for (settings, problem) in [
        (checks(&["git.example.com/team"]), "runs.checks"),
        (checks(&["https://git.*"]), "runs.checks"),
        (checks(&["https://a/b", "https://A:443/b/"]), "two keys"),
        (
            "[runs.authorization]\n\"file:///srv\" = \"Basic x\"\n".to_owned(),
            "runs.authorization",
        ),
        (
            checks(&["https://a/b", "https://a/c*", "/srv/git", "file://"]),
            "",
        ),
    ] {
        let place = Place::new();
        fs::write(place.path().join("forge-bridge.toml"), &settings).unwrap();
        let (code, report) = place.check(&[("BRIDGE_ADAPTERS", "echo")], &[]);
        let problems = report.lines("problems");
        assert_eq!(
            code,
            i32::from(!problem.is_empty()),
            "{settings}: {problems}"
        );
        assert!(problems.contains(problem), "{settings}: {problems}");
    }
}
