//! `config/deploy`: each file against its linter or its schema; contents of a release archive.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

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
    ]));
    let said =
        passes(tool("kubernetes-validate").args(["--strict", "config/deploy/kubernetes.yaml"]));
    let resources = deployed("kubernetes.yaml").matches("\nkind: ").count();
    assert_eq!(
        said.matches(" passed for resource ").count(),
        resources,
        "{said}"
    );
    let image = format!("image: forge-bridge:{}\n", env!("CARGO_PKG_VERSION"));
    assert!(
        deployed("kubernetes.yaml").contains(&image),
        "another version"
    );
}

/// Runs `tests/deploy`, which renders the chart.
#[test]
fn the_chart_is_what_its_values_say() {
    passes(
        tool("python")
            .args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"])
            .arg("tests/deploy")
            .env("FORGE_BRIDGE", env!("CARGO_BIN_EXE_forge-bridge"))
            .env("FORGE_HELM", forge_test_runtimes::helm())
            .env("FORGE_NODE", forge_test_runtimes::node())
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    );
}

#[test]
fn scripts_are_linted() {
    passes(tool("shellcheck").args(["config/deploy/release.sh", ".ci/run", ".ci/setup"]));
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

/// Runs the program from the layout of the archive, with the libraries of this build.
#[test]
fn a_release_finds_its_plugins_beside_it() {
    let (from, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let to = elsewhere.path().join("forge-bridge");
    let program = from.path().join("forge-bridge");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_forge-bridge"), &program).unwrap();
    let launchers = [
        ("forge", env!("CARGO_BIN_EXE_forge")),
        ("forg", env!("CARGO_BIN_EXE_forg")),
        ("forg-conformance", env!("CARGO_BIN_EXE_forg-conformance")),
    ];
    for (name, built) in launchers {
        std::os::unix::fs::symlink(built, from.path().join(name)).unwrap();
    }
    for entry in fs::read_dir(plugins()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if !name.starts_with("libforge_adapter_") || !name.ends_with(".so") {
            continue;
        }
        let copy = from.path().join(name);
        match name.contains("echo") {
            true => drop(fs::copy(&path, &copy).unwrap()),
            // The name is enough; libraries of an unoptimised build are large.
            false => fs::write(&copy, "").unwrap(),
        }
    }
    let script = root().join("config/deploy/release.sh");
    passes(Command::new(script).arg("--lay").args([from.path(), &to]));

    let libraries: BTreeSet<_> = files(&to.join("plugins"))
        .into_iter()
        .filter(|name| name.ends_with(".so"))
        .collect();
    let adapters = fs::read_dir(root().join("adapters")).unwrap();
    let adapters: BTreeSet<_> = adapters
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let manifest = fs::read_to_string(path.join("Cargo.toml"));
            manifest.is_ok_and(|manifest| manifest.contains("\"cdylib\""))
        })
        .map(|path| {
            let name = path
                .file_name()
                .unwrap()
                .to_str()
                .unwrap()
                .replace('-', "_");
            format!("libforge_adapter_{name}.so")
        })
        .collect();
    assert_eq!(libraries, adapters);
    for (folder, wanted) in [
        (
            "",
            "LICENSE-APACHE LICENSE-MIT README.md CHANGELOG.md forge forge-bridge",
        ),
        ("docs", "operate.md receive.md"),
        ("config", "forge-bridge.toml"),
        ("config/deploy", "forge-bridge.service"),
        ("config/grafana", "forge-bridge.json"),
        ("config/prometheus", "alerts.yml"),
        (
            "completions",
            "forge-bridge.bash forge-bridge.fish _forge-bridge",
        ),
        ("man", "forge-bridge.1 forge-bridge-dispatch.1"),
    ] {
        let found = files(&to.join(folder));
        for name in wanted.split(' ') {
            assert!(found.contains(name), "{folder}/{name} is not in {found:?}");
        }
    }
    passes(
        Command::new("bash")
            .arg("-n")
            .arg(to.join("completions/forge-bridge.bash")),
    );

    let mut demo = Command::new(to.join("forge-bridge"));
    demo.env_clear()
        .env("HOME", from.path())
        .current_dir("/")
        .arg("demo");
    let said = passes(&mut demo);
    assert!(said.contains("valid signature"), "{said}");
}

fn files(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
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
