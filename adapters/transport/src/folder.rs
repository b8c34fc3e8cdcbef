//! Temporary folders of runs, and a check that a path is below a folder.

use std::fs;
use std::io;
use std::path::{Component, Path};

use forge_adapter_api::Host;
use tempfile::TempDir;

/// Creates a folder for one run, accessible only to the bridge's user. Removed on drop.
pub fn create(host: &Host) -> io::Result<TempDir> {
    let prefix = format!("{}{}.", prefix(host), host.epoch());
    tempfile::Builder::new().prefix(&prefix).tempdir()
}

/// Removes run folders of this adapter that earlier boots of the bridge left behind on the same store.
/// Folders of the current boot stay: a replaced generation of the adapter can still be using them.
pub fn remove_leftovers(host: &Host) {
    // Without a persistent store, other bridges can run with the same prefix.
    if host.epoch() > 0 {
        remove(&std::env::temp_dir(), &prefix(host), host.epoch());
    }
}

/// True if a write to `path` stays below `root`, following links as far as the path exists. A relative path
/// is resolved against `root`.
pub fn is_below(root: &Path, path: &Path) -> bool {
    let Ok(root) = root.canonicalize() else {
        return false;
    };
    let path = root.join(path);
    if path.components().any(|part| part == Component::ParentDir) {
        return false;
    }
    // A missing part is created in the resolved nearest existing ancestor. A dangling link does not exist
    // for `canonicalize`, but a write would follow it.
    path.ancestors()
        .find(|ancestor| ancestor.symlink_metadata().is_ok())
        .and_then(|existing| existing.canonicalize().ok())
        .is_some_and(|existing| existing.starts_with(&root))
}

fn prefix(host: &Host) -> String {
    // Instance names contain no dot, so no prefix is the beginning of another one.
    format!("forge-{}.{}.", host.instance(), host.store_id())
}

fn remove(parent: &Path, prefix: &str, epoch: u64) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    let own = format!("{prefix}{epoch}.");
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with(prefix) || name.starts_with(&own) {
            continue;
        }
        // `remove_dir_all` does not follow links, and fails on folders of other users.
        if let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::warn!(
                "cannot remove {} of an earlier run: {error}",
                entry.path().display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_folders_of_the_same_adapter_on_earlier_boots_of_the_store_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        for name in [
            "forge-x.a.1.r",
            "forge-x.a.12.r",
            "forge-x.a.2.r",
            "forge-x.a.r",
            "forge-x.b.1.r",
            "forge-x-y.a.1.r",
            "other",
        ] {
            fs::create_dir(parent.path().join(name)).unwrap();
            fs::write(parent.path().join(name).join("file"), "").unwrap();
        }
        remove(parent.path(), "forge-x.a.", 2);
        let mut left: Vec<_> = fs::read_dir(parent.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        let kept = ["forge-x-y.a.1.r", "forge-x.a.2.r", "forge-x.b.1.r", "other"];
        assert_eq!(left, kept);
    }

    #[test]
    fn links_and_parents_do_not_lead_out() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("sub")).unwrap();
        symlink(outside.path(), root.path().join("out")).unwrap();
        symlink(outside.path().join("new"), root.path().join("dangling")).unwrap();
        let cases = [
            ("a.txt", true),
            ("sub/new/deep.txt", true),
            ("../a.txt", false),
            ("sub/../a.txt", false),
            ("out/a.txt", false),
            ("dangling", false),
            ("/etc/passwd", false),
        ];
        for (path, below) in cases {
            assert_eq!(is_below(root.path(), Path::new(path)), below, "{path}");
        }
        assert!(is_below(root.path(), &root.path().join("x")));
    }
}
