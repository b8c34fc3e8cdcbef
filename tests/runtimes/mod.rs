//! Real runtimes for the tests, at pinned versions, installed from their registries when a test first needs
//! them: into a cache outside of the checkout, under a lock, checked against the lock file beside this. They
//! are other people's programs: nothing of them is in this repository or in what it ships.
//!
//! The cache is `FORGE_RUNTIME_CACHE`, else `forge-bridge/runtimes` in the user's cache folder. If an
//! installation is impossible the test fails and says so.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The `claude` program. It is proprietary; see its own licence.
pub(crate) fn claude() -> PathBuf {
    let package = "node_modules/@anthropic-ai/claude-code-linux-x64";
    npm(
        "claude",
        include_str!("claude/package.json"),
        include_str!("claude/package-lock.json"),
    )
    .join(package)
    .join("claude")
}

/// The folder into which this lock file is installed.
fn npm(name: &str, manifest: &str, lock: &str) -> PathBuf {
    let version = version(manifest);
    let cache = cache();
    fs::create_dir_all(&cache)
        .unwrap_or_else(|error| panic!("cannot make {}: {error}", cache.display()));
    let folder = cache.join(format!("{name}-{version}"));
    if folder.exists() {
        return folder;
    }
    // Tests run at the same time, also in several processes: one installs, the others wait.
    let guard = File::create(cache.join(format!("{name}.lock"))).expect("the cache can be written");
    guard
        .lock()
        .expect("the cache is on a file system with locks");
    if !folder.exists() {
        let unfinished = cache.join(format!("{name}-{version}.unfinished"));
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).expect("an earlier attempt can be removed");
        }
        fs::create_dir(&unfinished).expect("the cache can be written");
        fs::write(unfinished.join("package.json"), manifest).expect("the cache can be written");
        fs::write(unfinished.join("package-lock.json"), lock).expect("the cache can be written");
        install(name, &unfinished);
        fs::rename(&unfinished, &folder).expect("a rename inside one folder");
    }
    folder
}

fn install(name: &str, folder: &Path) {
    let output = Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(folder)
        .output()
        .unwrap_or_else(|error| {
            panic!("the runtime {name} cannot be installed: npm does not start: {error}")
        });
    assert!(
        output.status.success(),
        "the runtime {name} cannot be installed from its registry, and the tests do not skip it:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The one pinned version in a manifest.
fn version(manifest: &str) -> String {
    let manifest: serde_json::Value =
        serde_json::from_str(manifest).expect("the manifest is in the tree");
    manifest["dependencies"]
        .as_object()
        .and_then(|pins| pins.values().next()?.as_str())
        .expect("a manifest pins a version")
        .to_owned()
}

fn cache() -> PathBuf {
    env::var_os("FORGE_RUNTIME_CACHE").map_or_else(
        || {
            env::var_os("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))
                .expect("FORGE_RUNTIME_CACHE, XDG_CACHE_HOME or HOME says where runtimes are kept")
                .join("forge-bridge/runtimes")
        },
        PathBuf::from,
    )
}
