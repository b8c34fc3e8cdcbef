//! Check that a path is below a folder, for decisions on what a runtime is going to do by itself. What an adapter
//! opens goes through `forge_adapter_api::folder`.

use std::path::{Component, Path};

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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

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
