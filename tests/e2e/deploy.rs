//! `config/deploy`: each file against its linter or its schema, and `tests/deploy`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::harness::image::Image;
use super::harness::plugins;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn tool(name: &str) -> Command {
    let mut command = Command::new(forge_test_runtimes::deploy().join("bin").join(name));
    command.current_dir(root());
    command
}

/// Runs a linter, which must succeed; returns its output.
fn passes(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{command:?}:\n{said}");
    said
}

fn deployed(file: &str) -> String {
    fs::read_to_string(root().join("config/deploy").join(file)).unwrap()
}

#[test]
fn image_compose_and_manifests_are_well_formed() {
    passes(tool("hadolint").arg("config/deploy/Dockerfile"));
    passes(tool("check-jsonschema").args([
        "--builtin-schema",
        "vendor.compose-spec",
        "config/deploy/compose.yaml",
        "config/deploy/compose.postgres.yaml",
    ]));
    for file in ["kubernetes.yaml", "kubernetes.postgres.yaml"] {
        let path = format!("config/deploy/{file}");
        let said = passes(tool("kubernetes-validate").args(["--strict", &path]));
        let resources = deployed(file).matches("\nkind: ").count();
        assert_eq!(
            said.matches(" passed for resource ").count(),
            resources,
            "{said}"
        );
        let image = format!("image: forge-bridge:{}\n", env!("CARGO_PKG_VERSION"));
        assert!(deployed(file).contains(&image), "{file}: another version");
    }
}

#[test]
fn the_address_of_a_database_sets_the_limits_of_its_connections() {
    for file in ["compose.postgres.yaml", "kubernetes.postgres.yaml"] {
        let text = deployed(file);
        let (_, rest) = text.split_once("postgres://").unwrap();
        let url = format!("postgres://{}", rest.lines().next().unwrap());
        forge_store_postgres::Target::new(&url, Some("secret")).unwrap();
        for name in [
            "connect_timeout",
            "tcp_user_timeout",
            "keepalives_idle",
            "keepalives_interval",
            "keepalives_count",
        ] {
            assert!(url.contains(&format!("{name}=")), "{file}: {name}");
        }
    }
}

/// Runs `tests/deploy`: the chart, the proxy, and the archive and the packages for npm with the programs and libraries of
/// this build.
#[test]
fn the_packages_hold_and_do_what_they_say() {
    passes(
        tool("python")
            .args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"])
            .arg("tests/deploy")
            .env("FORGE_BRIDGE", env!("CARGO_BIN_EXE_forge-bridge"))
            .env("FORGE_HELM", forge_test_runtimes::helm())
            .env("FORGE_NODE", forge_test_runtimes::node())
            .env("FORGE_PLUGINS", plugins())
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    );
}

#[test]
fn scripts_are_linted() {
    passes(tool("shellcheck").args([
        "config/deploy/release.sh",
        "config/deploy/npm/launch.sh",
        ".ci/run",
        ".ci/setup",
    ]));
}

#[test]
fn the_unit_is_understood_and_hardened() {
    let folder = tempfile::tempdir().unwrap();
    let unit = folder.path().join("forge-bridge.service");
    // Test machines have nothing installed in /opt.
    let text = deployed("forge-bridge.service");
    let installed = "/opt/forge-bridge/forge-bridge serve";
    assert!(text.contains(installed));
    fs::write(&unit, text.replace(installed, "/bin/true serve")).unwrap();
    let said = passes(
        Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&unit),
    );
    assert_eq!(said, "", "a unit without any remark");
    passes(
        Command::new("systemd-analyze")
            // 1.5 without the rights to start agents as another user.
            .args(["security", "--no-pager", "--offline=yes", "--threshold=25"])
            .arg(&unit),
    );
}

/// Rights that a bridge needs to start agents as another user.
const CAPABILITIES: [&str; 5] = ["CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID"];

/// Rights of the containers, as the README of the folder says. The campaigns run with those of the first file.
#[test]
fn containers_have_no_more_rights_than_agents_of_another_user_need() {
    for file in ["compose.yaml", "compose.postgres.yaml"] {
        let image = Image::of(file);
        let mut capabilities = image.capabilities.clone();
        capabilities.sort();
        assert_eq!(capabilities, CAPABILITIES, "{file}");
        assert!(image.is_read_only, "{file}");
        assert_eq!(image.security, ["no-new-privileges:true"], "{file}");
        let temporary = ["/tmp", "/var/cache/forge-bridge:mode=0711"];
        assert_eq!(image.temporary, temporary, "{file}");
        let agents = &image.variables["BRIDGE_PROCESS_USER"];
        let user = image.users.iter().find(|(name, _, _)| name == agents);
        assert!(user.is_some_and(|(_, id, _)| *id != 0), "{file}");
        let mode = |path: &str| {
            let mut folders = image.folders.iter();
            folders
                .find(|(folder, _)| folder == path)
                .map(|(_, mode)| *mode)
        };
        assert_eq!(mode(&image.variables["HOME"]), Some(0o700), "{file}");
        assert_eq!(mode("/var/cache/forge-bridge"), Some(0o711), "{file}");
        for name in ["BRIDGE_DATA_DIR", "BRIDGE_SECRET_KEY_FILE"] {
            let is_closed = image.variables[name].starts_with(&image.variables["HOME"]);
            assert!(is_closed, "{file}: {name}");
        }
    }
    for file in [
        "kubernetes.yaml",
        "kubernetes.postgres.yaml",
        "helm/forge-bridge/templates/workload.yaml",
    ] {
        let text = deployed(file);
        for line in [
            "automountServiceAccountToken: false",
            "runAsNonRoot: true",
            "seccompProfile: {type: RuntimeDefault}",
            "allowPrivilegeEscalation: false",
            "readOnlyRootFilesystem: true",
            "capabilities: {drop: [ALL]}",
        ] {
            let is_there = text.lines().any(|found| found.trim() == line);
            assert!(is_there, "{file}: {line}");
        }
        assert!(
            !text.contains("privileged: true") && !text.contains("hostPath"),
            "{file}"
        );
    }
}

#[test]
fn the_unit_has_the_rights_of_the_container_and_its_paths() {
    let (text, image) = (deployed("forge-bridge.service"), Image::read());
    let values = |name: &str| -> Vec<&str> {
        let lines = text.lines().filter_map(|line| line.split_once('='));
        let lines = lines.filter(|(found, _)| *found == name);
        lines.map(|(_, value)| value).collect()
    };
    let capabilities: BTreeSet<&str> = values("CapabilityBoundingSet")[0].split(' ').collect();
    let expected = CAPABILITIES.map(|name| format!("CAP_{name}"));
    assert_eq!(capabilities, expected.iter().map(String::as_str).collect());
    for (name, value) in [
        ("NoNewPrivileges", "yes"),
        ("PrivateDevices", "yes"),
        ("PrivateTmp", "yes"),
        ("ProtectHome", "yes"),
        ("ProtectProc", "invisible"),
        ("ProtectSystem", "strict"),
        ("RestrictNamespaces", "yes"),
        ("RestrictSUIDSGID", "yes"),
        ("StateDirectoryMode", "0700"),
        ("CacheDirectoryMode", "0711"),
        ("UMask", "0077"),
    ] {
        assert_eq!(values(name), [value], "{name}");
    }
    assert_eq!(values("AmbientCapabilities"), [""; 0]);
    let set: Vec<(&str, String)> = values("Environment")
        .into_iter()
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name, value.replace("%S", "/var/lib")))
        .collect();
    assert!(set.len() > 3, "{set:?}");
    for (name, value) in set {
        assert_eq!(image.variables[name], value, "{name}");
    }
}

/// The working folder can hold plug-ins and settings; agents run as the same user as the bridge.
#[test]
fn the_working_folder_belongs_to_root() {
    for (file, begin) in [
        ("Dockerfile", "WORKDIR "),
        ("forge-bridge.service", "WorkingDirectory="),
    ] {
        let text = deployed(file);
        let folder = text.lines().rev().find_map(|line| line.strip_prefix(begin));
        assert_eq!(folder, Some("/opt/forge-bridge"), "{file}");
    }
}

/// Checks that the bridge knows every `BRIDGE_…` variable in these files.
#[test]
fn every_variable_is_a_setting() {
    let mut names = BTreeSet::new();
    for file in [
        "Dockerfile",
        "compose.yaml",
        "kubernetes.yaml",
        "forge-bridge.service",
    ] {
        let text = deployed(file);
        for (at, _) in text.match_indices("BRIDGE_") {
            let name = text[at..].chars();
            names.insert(
                name.take_while(|letter| letter.is_ascii_uppercase() || *letter == '_')
                    .collect::<String>(),
            );
        }
    }
    assert!(names.len() > 6, "{names:?}");
    let home = tempfile::tempdir().unwrap();
    let mut check = Command::new(env!("CARGO_BIN_EXE_forge-bridge"));
    check
        .env_clear()
        .current_dir(home.path())
        .args(["check", "--json"]);
    for name in names.iter().filter(|name| *name != "BRIDGE_CONFIG") {
        check.env(name, "1");
    }
    let output = check.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["warnings"], serde_json::json!([]), "{names:?}");
}

#[test]
fn a_program_alone_says_where_adapters_come_from() {
    let home = tempfile::tempdir().unwrap();
    let program = home.path().join("forge-bridge");
    // Layout of `cargo install`: the program alone.
    fs::copy(env!("CARGO_BIN_EXE_forge-bridge"), &program).unwrap();
    let mut serve = Command::new(program);
    let serve = serve
        .env_clear()
        .env("HOME", home.path())
        .current_dir(home.path());
    let output = serve.env("BRIDGE_LISTEN", "127.0.0.1:0").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    for wanted in [
        "libforge_adapter_echo.so",
        "BRIDGE_PLUGIN_PATH",
        "release archive",
        "cargo install",
    ] {
        assert!(said.contains(wanted), "{wanted:?} is not in {said}");
    }
}
