//! Owners and modes as a table, and paths below real folders.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

fn groups() -> Groups {
    Groups {
        passwd: "root:x:0:0:::\nann:x:1000:1001:::\nbob:x:1002:100:::\n".into(),
        group: "root:x:0:\nann:x:1001:\nusers:x:100:bob\nshared:x:1000:bob\n".into(),
    }
}

#[test]
fn only_what_no_other_user_can_write_is_trusted() {
    let table = [
        ("own", 0o755, 1000, 1001, None),
        ("root's", 0o644, 0, 0, None),
        ("another user's", 0o755, 1002, 100, Some("another user")),
        ("writable by others", 0o777, 1000, 1001, Some("others")),
        ("its private group", 0o775, 1000, 1001, None),
        ("a shared group", 0o775, 1000, 100, Some("a group")),
        (
            "the same number, members",
            0o775,
            1000,
            1000,
            Some("a group"),
        ),
    ];
    for (name, mode, uid, gid, expected) in table {
        let found = objection(&Owner { mode, uid, gid }, 1000, &groups());
        assert_eq!(found.is_some(), expected.is_some(), "{name}: {found:?}");
        assert!(
            found
                .unwrap_or_default()
                .contains(expected.unwrap_or_default())
        );
    }
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Paths below `home` that are objected to.
fn objections(home: &Path, file: &str, last_link: LastLink) -> BTreeSet<PathBuf> {
    let checked = open(&home.join(file), last_link).unwrap();
    let paths = checked.objections.into_iter().map(|found| found.path);
    paths
        .filter_map(|path| path.strip_prefix(home).ok().map(Path::to_owned))
        .collect()
}

#[test]
fn every_folder_on_the_way_counts_and_a_sticky_one_only_around_the_file() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path().canonicalize().unwrap();
    fs::create_dir_all(home.join("a/b/c")).unwrap();
    for folder in ["a", "a/b", "a/b/c"] {
        mode(&home.join(folder), 0o755);
    }
    fs::write(home.join("a/b/c/file"), "").unwrap();
    symlink(home.join("a/b/c"), home.join("link")).unwrap();
    symlink("../c/file", home.join("a/b/c/last")).unwrap();
    let table: [(&str, u32, &[&str]); 5] = [
        ("a", 0o757, &["a"]),
        ("a/b", 0o777, &["a/b"]),
        ("a/b", 0o1777, &[]),
        ("a/b/c", 0o1777, &["a/b/c"]),
        ("a/b/c/file", 0o666, &["a/b/c/file"]),
    ];
    for (changed, to, expected) in table {
        let path = home.join(changed);
        let before = fs::metadata(&path).unwrap().permissions();
        mode(&path, to);
        let expected: BTreeSet<PathBuf> = expected.iter().map(PathBuf::from).collect();
        for file in ["a/b/c/file", "link/file", "a/../link/file"] {
            let found = objections(&home, file, LastLink::Refuse);
            assert_eq!(found, expected, "{changed} {to:o}: {file}");
        }
        let found = objections(&home, "a/b/c/last", LastLink::Follow);
        for path in &expected {
            assert!(found.contains(path), "{changed} {to:o}: {found:?}");
        }
        fs::set_permissions(&path, before).unwrap();
    }
    for (file, last_link) in [
        ("a/b/c/last", LastLink::Refuse),
        ("a/b/c/file/x", LastLink::Follow),
    ] {
        assert!(open(&home.join(file), last_link).is_err(), "{file}");
    }
    symlink("loop", home.join("loop")).unwrap();
    assert!(open(&home.join("loop/file"), LastLink::Follow).is_err());
}
