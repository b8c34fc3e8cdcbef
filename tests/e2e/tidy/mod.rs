//! Reads the workspace's sources against the rules of the house: who may import whom, how long a
//! file may be, how it may be called, and where the sharp tools may be used.

mod text;

use std::fs;
use std::path::{Path, PathBuf};

use text::Text;

const LONGEST_FILE: usize = 500;
const LONGEST_MAIN: usize = 40;
const REFUSED_NAMES: [&str; 6] = ["utils", "util", "helpers", "common", "types", "manager"];

/// What everything may import.
const GROUND: [&str; 10] = [
    "id",
    "time",
    "reloadable",
    "tasks",
    "digest",
    "event",
    "vault",
    "failpoint",
    "metrics",
    "trace",
];

/// Who may import whom inside `bridge/src`, besides `GROUND` and itself.
const IMPORTS: [(&str, &[&str]); 24] = [
    ("failpoint", &[]),
    ("id", &[]),
    ("time", &[]),
    ("reloadable", &[]),
    ("tasks", &[]),
    ("digest", &[]),
    ("event", &[]),
    ("vault", &["digest", "reloadable"]),
    ("metrics", &[]),
    ("trace", &["digest"]),
    ("telemetry", &[]),
    ("store", &[]),
    ("net", &[]),
    ("process", &[]),
    ("delivery", &["store", "net", "process"]),
    ("plugin", &["store", "net", "process"]),
    ("mcp", &["store", "net", "process"]),
    ("registration", &["store", "net", "process"]),
    ("otlp", &["net"]),
    ("dispatch", BELOW_DISPATCH),
    (
        "http",
        &[
            "dispatch", "plugin", "delivery", "mcp", "store", "net", "process",
        ],
    ),
    (
        "config",
        &[
            "telemetry",
            "http",
            "dispatch",
            "plugin",
            "delivery",
            "mcp",
            "store",
            "net",
            "process",
            "registration",
            "otlp",
        ],
    ),
    ("app", ALL),
    ("cli", &["app", "config", "telemetry"]),
];
const BELOW_DISPATCH: &[&str] = &["plugin", "delivery", "mcp", "store", "net", "process"];
/// Parts without a component's handle in them, and who may import them besides; nobody named: all.
const PURE: [(&str, &str); 3] = [
    ("", "config::duration"),
    ("cli", "delivery::sign"),
    ("cli", "delivery::verdict"),
];
const ALL: &[&str] = &[
    "cli",
    "config",
    "telemetry",
    "http",
    "dispatch",
    "plugin",
    "delivery",
    "mcp",
    "store",
    "net",
    "process",
    "registration",
    "otlp",
];

/// A word, where in the workspace it is looked for, and the only places where it may stand.
const ONLY_IN: [(&str, &str, &[&str]); 12] = [
    (
        "axum",
        "bridge/src/",
        &["bridge/src/http/", "bridge/src/app"],
    ),
    ("rusqlite", "bridge/src/", &["bridge/src/store/"]),
    // Closing any descriptor of the database file drops the locks that SQLite holds on it.
    ("File", "bridge/src/store/", OPEN_FILES),
    ("OpenOptions", "bridge/src/store/", OPEN_FILES),
    // The engine knows no dispatch, and the tables know no thread.
    ("dispatch", "bridge/src/store/sqlite/engine/", &[]),
    ("thread", "bridge/src/store/sqlite/tables/", &[]),
    (
        "anyhow",
        "bridge/src/",
        &["bridge/src/cli/", "bridge/src/app", "bridge/src/main.rs"],
    ),
    ("forge_adapter_abi", "bridge/src/", BOUNDARY),
    ("abi_stable", "bridge/src/", BOUNDARY),
    ("libloading", "bridge/src/", BOUNDARY),
    (
        "abi_stable",
        "adapter",
        &["adapter-api/abi/", "adapter-api/src/export"],
    ),
    (
        "unsafe",
        "",
        &[
            "bridge/src/plugin/load.rs",
            "bridge/src/plugin/call.rs",
            "adapter-api/abi/",
            "adapter-api/src/export",
        ],
    ),
];
const OPEN_FILES: &[&str] = &[
    "bridge/src/store/sqlite/engine/connection.rs",
    "bridge/src/store/sqlite/engine/folder_lock.rs",
    "bridge/src/store/sqlite/engine/wal.rs",
    "bridge/src/store/sqlite/maintenance.rs",
];
const BOUNDARY: &[&str] = &["bridge/src/plugin/load.rs", "bridge/src/plugin/call.rs"];

const SQL: [&str; 5] = [
    "SELECT ",
    "INSERT INTO ",
    "DELETE FROM ",
    "CREATE TABLE ",
    "PRAGMA ",
];

#[test]
fn the_sources_keep_the_rules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for folder in ["bridge", "adapter-api", "adapters", "plugins", "tests"] {
        rust_files(&root.join(folder), &mut files);
    }
    assert!(files.len() > 20, "only {} sources found", files.len());
    let mut broken = Vec::new();
    for file in files {
        let path = file.strip_prefix(&root).unwrap().to_str().unwrap();
        broken.extend(check(path, &fs::read_to_string(&file).unwrap()));
    }
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

#[test]
fn every_adapter_has_a_row_in_the_table() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../adapters");
    let table = fs::read_to_string(folder.join("README.md")).unwrap();
    let lacks_row = |path: &Path| {
        let manifest = fs::read_to_string(path.join("Cargo.toml")).unwrap_or_default();
        let name = path.file_name().unwrap().to_str().unwrap();
        manifest.contains("cdylib") && !table.contains(&format!("\n| [`{name}`]({name}/) |"))
    };
    let folders = fs::read_dir(&folder).unwrap();
    let without: Vec<PathBuf> = folders
        .map(|entry| entry.unwrap().path())
        .filter(|path| lacks_row(path))
        .collect();
    assert!(without.is_empty(), "{without:?}");
}

fn rust_files(folder: &Path, into: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            rust_files(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

fn check(path: &str, text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let mut refuse = |why: String| broken.push(format!("{path}: {why}"));
    let lines = text.lines().count();
    if lines > LONGEST_FILE {
        refuse(format!(
            "{lines} lines, at most {LONGEST_FILE}: split it by stage or noun"
        ));
    }
    if path.ends_with("src/main.rs") && lines > LONGEST_MAIN {
        refuse(format!(
            "{lines} lines, at most {LONGEST_MAIN}: main parses, matches, returns"
        ));
    }
    if let Some(name) = path
        .split('/')
        .map(|part| part.trim_end_matches(".rs"))
        .find(|part| REFUSED_NAMES.contains(part))
    {
        refuse(format!("{name} says nothing; name the file by its noun"));
    }
    if !text.trim_start().starts_with("//!") {
        refuse("does not begin with //! and what it is for".to_owned());
    }
    let text = Text::read(text);
    for (word, below, places) in ONLY_IN {
        let allowed = places.iter().any(|place| path.starts_with(place));
        if path.starts_with(below) && !allowed && text.has_word(word) {
            match places {
                [] => refuse(format!("{word} may not stand in {below}")),
                _ => refuse(format!("{word} may stand only in {}", places.join(", "))),
            }
        }
    }
    if let Some(inside) = path.strip_prefix("bridge/src/") {
        if !inside.starts_with("store/") && SQL.iter().any(|sql| text.literals.contains(sql)) {
            refuse("SQL may stand only in bridge/src/store/".to_owned());
        }
        if !inside.ends_with("tests.rs") && !inside.contains("/tests/") {
            for why in forbidden_imports(inside, &text) {
                refuse(why);
            }
        }
    }
    broken
}

fn forbidden_imports(inside: &str, text: &Text) -> Vec<String> {
    let component = inside
        .split('/')
        .next()
        .unwrap_or_default()
        .trim_end_matches(".rs");
    if ["lib", "main"].contains(&component) {
        return Vec::new();
    }
    let Some((_, allowed)) = IMPORTS.iter().find(|(name, _)| *name == component) else {
        return vec![format!("{component} has no row in the import table")];
    };
    let mut refused = Vec::new();
    for path in text.before_tests().crate_paths() {
        let target = path.split("::").next().unwrap_or_default();
        let known = IMPORTS.iter().any(|(name, _)| *name == target);
        let database = path.starts_with("store::sqlite") && !["store", "app"].contains(&component);
        let allowed = target == component
            || GROUND.contains(&target) && !GROUND.contains(&component)
            || GROUND.contains(&component)
                && ["id", "time", "failpoint", "metrics"].contains(&target)
            || allowed.contains(&target)
            || PURE
                .iter()
                .any(|(who, what)| (who.is_empty() || *who == component) && path.starts_with(what));
        if known && (!allowed || database) {
            refused.push(format!("{component} may not import crate::{path}"));
        }
    }
    refused
}

#[test]
fn each_rule_can_fail() {
    let long = "//! a\n".repeat(LONGEST_FILE + 1);
    let table = [
        ("bridge/src/http/a.rs", long.as_str(), "501 lines"),
        ("bridge/src/main.rs", &long[..6 * 41], "41 lines"),
        ("adapters/echo/src/utils.rs", "//! a", "utils says nothing"),
        ("bridge/src/common/mod.rs", "//! a", "common says nothing"),
        ("tests/e2e/a.rs", "fn a() {}", "does not begin with //!"),
        (
            "bridge/src/dispatch/a.rs",
            "//! a\nuse axum::Json;",
            "axum may stand only",
        ),
        (
            "bridge/src/http/a.rs",
            "//! a\nuse rusqlite::Row;",
            "rusqlite may stand only",
        ),
        (
            "bridge/src/http/a.rs",
            "//! a\nfn a() { q(\"SELECT 1\") }",
            "SQL may stand only",
        ),
        (
            "bridge/src/net/a.rs",
            "//! a\nfn a() -> anyhow::Result<()> {}",
            "anyhow may stand",
        ),
        (
            "bridge/src/plugin/health.rs",
            "//! a\nuse libloading::Library;",
            "libloading may",
        ),
        ("adapters/a.rs", "//! a\nunsafe fn a() {}", "unsafe may"),
        (
            "bridge/src/store/a.rs",
            "//! a\nuse crate::http::State;",
            "may not import crate::http",
        ),
        (
            "bridge/src/plugin/a.rs",
            "//! a\nuse crate::{id, delivery::Deliverer};",
            "crate::delivery",
        ),
        (
            "bridge/src/net/a.rs",
            "//! a\nuse crate::{\n  id::{A, B},\n  store,\n};",
            "crate::store",
        ),
        (
            "bridge/src/delivery/a.rs",
            "//! a\nfn a(x: &crate::plugin::Registry) {}",
            "crate::plugin",
        ),
        (
            "bridge/src/http/a.rs",
            "//! a\nuse crate::store::sqlite::Sqlite;",
            "store::sqlite",
        ),
        (
            "bridge/src/event/mod.rs",
            "//! a\nuse crate::vault::Vault;",
            "crate::vault",
        ),
        (
            "bridge/src/store/sqlite/a.rs",
            "//! a\nuse std::fs::File;",
            "File may stand only in",
        ),
        (
            "bridge/src/store/sqlite/tables/a.rs",
            "//! a\nuse std::thread;",
            "thread may not stand in",
        ),
        ("bridge/src/shelf.rs", "//! a", "no row in the import table"),
    ];
    for (path, text, wanted) in table {
        let found = check(path, text).join("\n");
        assert!(
            found.contains(wanted),
            "{path}: {wanted:?} not in {found:?}"
        );
    }
}

#[test]
fn what_is_allowed_passes() {
    let table = [
        (
            "bridge/src/http/a.rs",
            "//! a\nuse axum::Json;\nuse crate::{dispatch, store::Store};",
        ),
        (
            "bridge/src/store/sqlite/a.rs",
            "//! a\nconst A: &str = \"SELECT 1\";",
        ),
        (
            "bridge/src/plugin/load.rs",
            "//! a\nuse libloading::Library;\nunsafe fn a() {}",
        ),
        (
            "bridge/src/net/a.rs",
            "//! a\n// use crate::http\nconst A: &str = \"crate::http unsafe\";",
        ),
        (
            "bridge/src/net/a.rs",
            "//! a\n#[expect(unsafe_code)]\nconst A: char = '\"';",
        ),
        (
            "bridge/src/net/a.rs",
            "//! a\n#[cfg(test)]\nmod tests { use crate::store; }",
        ),
        (
            "bridge/src/app.rs",
            "//! a\nuse crate::{http, store::sqlite::Sqlite};\nuse axum::Router;",
        ),
        ("bridge/src/main.rs", "//! a\nuse forge_bridge::cli;"),
        (
            "bridge/src/dispatch/a.rs",
            "//! a\nfn a<'a>(x: &'a str) { r#\"axum \" \"#; }",
        ),
    ];
    for (path, text) in table {
        assert_eq!(check(path, text), Vec::<String>::new());
    }
}
