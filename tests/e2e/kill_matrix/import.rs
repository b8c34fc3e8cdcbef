//! Import of a manifest, killed between each two of its steps: the registry is the old or the new one, and the next
//! import works.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use forge_base::failpoint::{POINTS, VARIABLE};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::external::{manifest, register};
use crate::harness::process::Home;

/// True for the points that an import passes.
pub(super) fn is_of_import(point: &str) -> bool {
    point.starts_with("import.") || point.starts_with("file.")
}

fn service(name: &str, entry: &str) -> Value {
    manifest(
        &json!({"name": name, "transport": "http", "baseUrl": "http://127.0.0.1:9"}),
        &json!([{"name": entry, "kind": "command"}]),
    )
}

fn registry(home: &Home) -> Option<String> {
    fs::read_to_string(home.dir.path().join(".forge/external-manifests.json")).ok()
}

/// Imports `new.json`, and is killed at the point. Returns the signal that ended it, and its exit code.
fn import(home: &Home, point: Option<&str>) -> (Option<i32>, Option<i32>) {
    let mut command = home.command();
    command.args(["forge", "manifest", "import", "new.json"]);
    command.envs(point.map(|point| (VARIABLE, point)));
    let output = command.output().unwrap();
    (output.status.signal(), output.status.code())
}

fn services(home: &Home) -> Vec<String> {
    let mut command = home.command();
    let output = command
        .args(["forge", "inspect", "external", "--json"])
        .output()
        .unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["diagnostics"], json!([]), "{found}");
    let services = found["data"]["services"].as_array().unwrap().iter();
    services
        .map(|one| one["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Home with a manifest to import and, if `known`, a registry with a former one of the same service.
fn home(known: bool) -> Home {
    let home = Home::new(&[]);
    let root: &Path = home.dir.path();
    fs::write(root.join("new.json"), service("probe", "new").to_string()).unwrap();
    if known {
        register(root, &[service("other", "run"), service("probe", "old")]);
    }
    home
}

#[test]
fn an_import_that_is_killed_leaves_the_old_or_the_new_registry() {
    for known in [false, true] {
        let whole = home(known);
        assert_eq!(import(&whole, None), (None, Some(0)));
        let new = registry(&whole);
        let names: &[&str] = if known {
            &["other", "probe"]
        } else {
            &["probe"]
        };
        let points: Vec<_> = POINTS.iter().filter(|point| is_of_import(point)).collect();
        assert_eq!(points.len(), 6);
        for point in points {
            let home = home(known);
            let old = registry(&home);
            assert_eq!(
                import(&home, Some(point)),
                (Some(Signal::KILL.as_raw()), None),
                "{point}"
            );
            let is_renamed = ["file.renamed", "file.replaced"].contains(point);
            let expected = if is_renamed { &new } else { &old };
            assert_eq!(registry(&home), *expected, "{point}");
            let before: &[&str] = if known || is_renamed { names } else { &[] };
            assert_eq!(services(&home), before, "{point}");
            assert_eq!(import(&home, None), (None, Some(0)), "{point}");
            assert_eq!(registry(&home), new, "{point}");
            assert_eq!(services(&home), names, "{point}");
        }
    }
}
