//! Reads the workspace's sources against the conventions that neither the compiler nor clippy checks: length and name of
//! files, the opening of doc comments, retired words, and the walls of `walls.rs`. Walls between components are the manifests
//! of `bridge/crates`.

use std::fs;
use std::path::{Path, PathBuf};

use super::walls::ONLY_IN;

const LONGEST_FILE: usize = 500;
const LONGEST_MAIN: usize = 40;
const REFUSED_NAMES: [&str; 6] = ["utils", "util", "helpers", "common", "types", "manager"];

/// Words that open a clause where a noun phrase or a verb is expected.
const REFUSED_OPENINGS: [&str; 7] = ["What", "Who", "Whose", "Whom", "Whether", "Those", "So"];

/// Names from before the field's terms were taken over, and words that hide the actor. Only words that mean nothing else in
/// this workspace.
const RETIRED: [&str; 12] = [
    "agenda",
    "anew",
    "attendant",
    "glance",
    "haste",
    "herald",
    "newcomer",
    "nobody",
    "parcel",
    "somebody",
    "whoever",
    "whom",
];

/// Functions that look a path up again, in code that works where agents can write: what they change or list can be
/// something else by then. `fchown`, `File::set_permissions`, `rustix::fs::Dir` and `forge_adapter_api::folder` take
/// descriptors.
const BY_PATH: [&str; 6] = [
    "chown",
    "lchown",
    "read_dir",
    "remove_dir_all",
    "rename",
    "set_permissions",
];
const WHERE_AGENTS_WRITE: [&str; 6] = [
    "adapter-api/src/",
    "adapters/",
    "bridge/crates/dispatch/src/",
    "bridge/crates/plugin-host/src/",
    "bridge/crates/process/src/",
    "bridge/crates/runs/src/",
];
/// Files that may use them, and the reason.
const BY_PATH_IN: [(&str, &str); 20] = [
    ("adapter-api/src/child/memory.rs", "reads /proc"),
    (
        "adapter-api/src/folder/temporary.rs",
        "in a folder that agents cannot write",
    ),
    (
        "adapters/acp-client/src/tool_server.rs",
        "before the folder is given",
    ),
    ("adapters/echo/src/conflict.rs", "is the agent itself"),
    (
        "adapters/echo/src/suspended.rs",
        "in the folder of the adapter",
    ),
    ("adapters/hermes-agent/src/profiles.rs", "lists names only"),
    (
        "bridge/crates/plugin-host/src/boundary/staging.rs",
        "in a folder of the bridge",
    ),
    (
        "bridge/crates/plugin-host/src/boundary/trust.rs",
        "in a folder of the bridge",
    ),
    (
        "bridge/crates/plugin-host/src/registry/pause.rs",
        "in a folder of the bridge",
    ),
    (
        "bridge/crates/plugin-host/src/registry/resolve.rs",
        "lists folders of libraries",
    ),
    (
        "bridge/crates/plugin-host/src/registry/spec.rs",
        "in a folder of the bridge",
    ),
    ("bridge/crates/process/src/proc.rs", "reads /proc"),
    (
        "bridge/crates/runs/src/git/checkout.rs",
        "before the checkout is given",
    ),
    (
        "bridge/crates/runs/src/git/lock.rs",
        "in the repository of the bridge",
    ),
    ("bridge/crates/runs/src/git/made.rs", "beside the checkout"),
    (
        "bridge/crates/runs/src/git/private.rs",
        "in a folder of the bridge",
    ),
    (
        "bridge/crates/runs/src/git/program.rs",
        "folders above the checkouts",
    ),
    (
        "bridge/crates/runs/src/git/repository.rs",
        "in the repository of the bridge",
    ),
    (
        "bridge/crates/runs/src/git/shared.rs",
        "before agents can see the objects",
    ),
    (
        "bridge/crates/runs/src/git/trash.rs",
        "folders above the checkouts",
    ),
];
/// Counts blocks of checkouts, whose paths can lead elsewhere meanwhile; it opens and changes nothing.
const COUNTS: &str = "bridge/crates/runs/src/git/space.rs";

/// The first use of such a function, outside of tests.
fn by_path(path: &str, text: &str) -> Option<(usize, &'static str)> {
    let is_test = path.contains("/tests") || path.ends_with("/fuzzing.rs");
    let is_allowed = path == COUNTS || BY_PATH_IN.iter().any(|(file, _)| *file == path);
    if is_test
        || is_allowed
        || !WHERE_AGENTS_WRITE
            .iter()
            .any(|above| path.starts_with(above))
    {
        return None;
    }
    let lines = (1..).zip(text.lines());
    let lines = lines.take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    lines
        .filter(|(_, line)| !line.contains("serde("))
        .find_map(|(number, line)| {
            let found = BY_PATH.into_iter().find(|name| calls(code(line), name));
            found.map(|name| (number, name))
        })
}

/// True if the line has the function by its name; a method of that name has a descriptor, but for `Path::read_dir`.
fn calls(line: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + name.len()..].chars().next();
        let is_whole = !before.is_some_and(is_word) && !after.is_some_and(is_word);
        let is_used = after == Some('(') || before == Some(':') || line.starts_with("use ");
        is_whole && is_used && (before != Some('.') || name == "read_dir")
    })
}

/// Code that reads what runtimes, models and adapters wrote; `forge_adapter_api::foreign_json` takes all that they write.
const READS_FOREIGN_JSON: [&str; 4] = [
    "adapters/",
    "bridge/crates/dispatch/src/normalise/",
    "bridge/crates/plugin-host/src/",
    "bridge/crates/signals/src/forward/",
];
/// Files that read JSON otherwise, and the reason.
const OWN_JSON_IN: [(&str, &str); 6] = [
    (
        "adapters/openai-client/src/sessions.rs",
        "a file of its own",
    ),
    ("adapters/openclaw/src/identity.rs", "a file of its own"),
    (
        "bridge/crates/plugin-host/src/boundary/truncated_answer.rs",
        "finds where the cut is",
    ),
    (
        "bridge/crates/plugin-host/src/instance/process/child.rs",
        "an order of the bridge",
    ),
    (
        "bridge/crates/plugin-host/src/instance/process/lines.rs",
        "borrows from text that is readable",
    ),
    (
        "bridge/crates/plugin-host/src/instance/process/probe.rs",
        "a note of the bridge",
    ),
];
/// The adapter for tests, which is the agent itself.
const ECHO: &str = "adapters/echo/";
/// Reads what was read already.
const REDACTION: &str = "bridge/crates/plugin-host/src/instance/redaction.rs";

/// The first line that parses JSON of others with `serde_json`, outside of tests.
fn strict_json(path: &str, text: &str) -> Option<usize> {
    let is_test =
        path.contains("/tests") || path.ends_with("/fuzzing.rs") || path.ends_with("/cases.rs");
    let is_allowed = path == REDACTION
        || path.starts_with(ECHO)
        || OWN_JSON_IN.iter().any(|(file, _)| *file == path);
    let reads = READS_FOREIGN_JSON
        .iter()
        .any(|above| path.starts_with(above));
    if is_test || is_allowed || !reads {
        return None;
    }
    let lines = (1..).zip(text.lines());
    let mut lines = lines.take_while(|(_, line)| line.trim() != "#[cfg(test)]");
    let strict = ["from_str", "from_slice", "from_reader", "Deserializer"];
    lines
        .find(|(_, line)| {
            let line = code(line);
            strict
                .iter()
                .any(|name| line.contains(&format!("serde_json::{name}")))
        })
        .map(|(number, _)| number)
}

#[test]
fn sources_keep_the_conventions() {
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
        let skipped = ["target", "node_modules"].map(Some);
        if path.is_dir() && !skipped.contains(&path.file_name().and_then(|name| name.to_str())) {
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
    let mut parts = path.split('/').map(|part| part.trim_end_matches(".rs"));
    if let Some(name) = parts.find(|part| REFUSED_NAMES.contains(part)) {
        refuse(format!("{name} says nothing; name the file by its noun"));
    }
    if !text.trim_start().starts_with("//!") {
        refuse("does not begin with //! and its purpose".to_owned());
    }
    for (number, opening) in doc_openings(text) {
        if REFUSED_OPENINGS.contains(&opening) {
            refuse(format!(
                "line {number}: a doc comment opens with {opening}; begin with a noun phrase or a verb"
            ));
        }
    }
    if path != "tests/e2e/tidy.rs" {
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(word) = words(line).find(|word| RETIRED.contains(&&*word.to_lowercase())) {
                refuse(format!("line {number}: {word} is a retired word"));
            }
        }
    }
    if let Some((number, name)) = by_path(path, text) {
        refuse(format!(
            "line {number}: {name} takes a path where agents can write; use a descriptor, or give a reason in BY_PATH_IN"
        ));
    }
    if let Some(number) = strict_json(path, text) {
        refuse(format!(
            "line {number}: JSON of others is read with foreign_json; give a reason in OWN_JSON_IN if it is not theirs"
        ));
    }
    for (word, below, places) in ONLY_IN {
        let outside = path.starts_with(below) && !places.contains(&path);
        if outside
            && text
                .lines()
                .any(|line| words(code(line)).any(|found| found == word))
        {
            match places {
                [] => refuse(format!("{word} must not occur below {below}")),
                _ => refuse(format!("{word} may occur only in {}", places.join(", "))),
            }
        }
    }
    broken
}

/// First word of each doc comment with its line.
fn doc_openings(text: &str) -> impl Iterator<Item = (usize, &str)> {
    fn is_doc(line: &str) -> bool {
        line.starts_with("///") || line.starts_with("//!")
    }
    let lines = text.lines().map(str::trim_start);
    let before = [""].into_iter().chain(lines.clone());
    (1..)
        .zip(before.zip(lines))
        .filter_map(|(number, (before, line))| {
            let begins = is_doc(line) && !is_doc(before);
            begins
                .then(|| words(line).next().map(|word| (number, word)))
                .flatten()
        })
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    line.split(move |c| !inside(c))
        .filter(|word| !word.is_empty())
}

fn code(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

#[test]
fn each_rule_can_fail() {
    let long = "//! a\n".repeat(LONGEST_FILE + 1);
    let table = [
        ("bridge/src/app/a.rs", long.as_str(), "501 lines"),
        ("bridge/src/main.rs", &long[..6 * 41], "41 lines"),
        ("adapters/echo/src/utils.rs", "//! a", "utils says nothing"),
        ("bridge/src/common/mod.rs", "//! a", "common says nothing"),
        ("tests/e2e/a.rs", "fn a() {}", "does not begin with //!"),
        ("tests/e2e/a.rs", "//! What is tested.", "opens with What"),
        (
            "tests/e2e/a.rs",
            "//! a\nfn a() {}\n    /// Whether it is.\n    fn b() {}",
            "line 3: a doc comment opens with Whether",
        ),
        (
            "tests/e2e/a.rs",
            "//! a\n// Nobody reads it.",
            "retired word",
        ),
        (
            "bridge/crates/store-sqlite/src/a.rs",
            "//! a\nuse std::fs::File;",
            "File may occur only in",
        ),
        (
            "bridge/crates/dispatch/src/a.rs",
            "//! a\nlet took = end.duration_since(start);",
            "duration_since may occur only in",
        ),
        (
            "bridge/crates/dispatch/src/a.rs",
            "//! a\nlet took = time::wall_age(start, end);",
            "wall_age may occur only in",
        ),
        (
            "bridge/crates/store-sqlite/src/tables/a.rs",
            "//! a\nuse std::thread;",
            "thread must not occur",
        ),
        (
            "bridge/crates/store-sqlite/src/engine/a.rs",
            "//! a\nconst SQL: &str = \"SELECT 1 FROM dispatch\";",
            "dispatch must not occur",
        ),
        (
            "adapters/a/src/lib.rs",
            "//! a\nfn a() { std::fs::remove_dir_all(a); }",
            "line 2: remove_dir_all takes a path",
        ),
        (
            "bridge/crates/runs/src/a.rs",
            "//! a\nuse std::os::unix::fs::{chown, symlink};",
            "line 2: chown takes a path",
        ),
        (
            "adapter-api/src/a.rs",
            "//! a\nfn a() { folder.read_dir() }",
            "line 2: read_dir takes a path",
        ),
        (
            "bridge/src/cli/a.rs",
            "//! a\nuse std::io::stdout;",
            "stdout may occur only in",
        ),
        (
            "bridge/crates/dispatch/src/a.rs",
            "//! a\nfn a(c: char) { c.is_control() }",
            "is_control may occur only in",
        ),
        (
            "bridge/src/cli/forg/connect/a.rs",
            "//! a\nfn a() { std::fs::write(a, b); }",
            "fs may occur only in",
        ),
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
fn allowed_sources_pass() {
    let table = [
        (
            "bridge/crates/store-sqlite/src/engine/a.rs",
            "//! a\nfn a() {} // of a dispatch",
        ),
        (
            "bridge/crates/store-sqlite/src/engine/wal.rs",
            "//! a\nuse std::fs::File;",
        ),
        (
            "adapters/a/src/lib.rs",
            "//! a\nfn a() { fchown(a); file.set_permissions(a); }\n#[cfg(test)]\nfn b() { fs::rename(a, b); }",
        ),
        (
            "bridge/src/a.rs",
            "//! A file.\n//! What follows is a second line.\n/// Some parts.\nfn so_long() {}",
        ),
    ];
    for (path, text) in table {
        assert_eq!(check(path, text), Vec::<String>::new());
    }
}
