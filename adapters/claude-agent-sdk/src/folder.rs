//! The folder that a run keeps its own files in, some of them secret. It goes with the run; what a killed
//! bridge left is removed when the next one on its store starts.

use std::fs;
use std::io;
use std::path::Path;

use forge_adapter_api::Host;
use tempfile::TempDir;

/// A folder of one run, for our user alone.
pub(crate) fn create(host: &Host) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix(&prefix(host.store_id()))
        .tempdir()
}

/// Removes the folders of runs that an earlier bridge did not end.
pub(crate) fn remove_leftovers(host: &Host) {
    // Without a store, as in tests, others may be running under the same prefix.
    if !host.store_id().is_empty() {
        remove(&std::env::temp_dir(), &prefix(host.store_id()));
    }
}

fn prefix(store: &str) -> String {
    format!("forge-claude-{store}-")
}

fn remove(parent: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        // `remove_dir_all` follows no link, and a folder of another user stays.
        if let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::warn!(
                "{} of an earlier run stays: {error}",
                entry.path().display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_the_same_store_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        for name in [
            "forge-claude-a-1",
            "forge-claude-a-2",
            "forge-claude-b-1",
            "other",
        ] {
            fs::create_dir(parent.path().join(name)).unwrap();
            fs::write(parent.path().join(name).join("mcp.json"), "{}").unwrap();
        }
        remove(parent.path(), &prefix("a"));
        let mut left: Vec<_> = fs::read_dir(parent.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["forge-claude-b-1", "other"]);
    }
}
