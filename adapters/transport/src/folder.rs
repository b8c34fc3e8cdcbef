//! Folders of runs: one that goes with its run, and whether a path is really below one.

use std::fs;
use std::io;
use std::path::{Component, Path};

use forge_adapter_api::Host;
use tempfile::TempDir;

/// A folder of one run, for our user alone. It goes when it is dropped.
pub fn create(host: &Host) -> io::Result<TempDir> {
    let prefix = format!("{}{}.", prefix(host), host.epoch());
    tempfile::Builder::new().prefix(&prefix).tempdir()
}

/// Removes the folders of runs of this adapter that an earlier bridge on the same store did not end. Those of
/// this one stay: an edition of the adapter that has been replaced may be using them yet.
pub fn remove_leftovers(host: &Host) {
    // Without a store that lasts, others may be running under the same prefix.
    if host.epoch() > 0 {
        remove(&std::env::temp_dir(), &prefix(host), host.epoch());
    }
}

/// Whether writing to `path` writes below `root`, links followed as far as there is something to follow.
/// A relative path is one below `root`.
pub fn is_below(root: &Path, path: &Path) -> bool {
    let Ok(root) = root.canonicalize() else {
        return false;
    };
    let path = root.join(path);
    if path.components().any(|part| part == Component::ParentDir) {
        return false;
    }
    // What does not exist yet is made where its nearest existing ancestor really is. A link that leads
    // nowhere does not count as existing for `canonicalize`, but writing would follow it.
    path.ancestors()
        .find(|ancestor| ancestor.symlink_metadata().is_ok())
        .and_then(|existing| existing.canonicalize().ok())
        .is_some_and(|existing| existing.starts_with(&root))
}

fn prefix(host: &Host) -> String {
    // The dot is in no instance's name, so none is the beginning of another.
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
