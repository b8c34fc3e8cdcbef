//! Tests of `registry` and of the catalog that it is part of.

use std::os::unix::fs::PermissionsExt as _;
use std::thread;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::catalog::Catalog;
use crate::manifest::EntryKind;
use forge_base::ownership::Trust;

fn manifest(name: &str, entries: &[&str]) -> Manifest {
    let entries: Vec<_> = entries
        .iter()
        .map(|name| json!({"name": name, "kind": "query"}))
        .collect();
    let tree = json!({
        "forgeProtocol": "1.0",
        "language": "go",
        "service": {"name": name, "transport": "http", "baseUrl": "http://127.0.0.1:1"},
        "entries": entries,
    });
    manifest::check(&tree).manifest.unwrap()
}

fn content(root: &TempDir) -> String {
    fs::read_to_string(path(root.path())).unwrap()
}

fn load_catalog(root: &TempDir) -> Result<Catalog, Vec<Diagnostic>> {
    Catalog::load(root.path(), Trust::Enforce, [])
}

fn names(catalog: &Catalog) -> Vec<&str> {
    catalog
        .services()
        .map(|manifest| manifest.service.name.as_str())
        .collect()
}

/// The file has two more levels than a manifest, whose own depth is within the limit.
#[test]
fn a_manifest_that_would_make_the_file_unreadable_is_not_imported() {
    let root = TempDir::new().unwrap();
    import(root.path(), &manifest("a", &["x"])).unwrap();
    let before = content(&root);
    let mut deep = manifest("deep", &["x"]);
    let mut schema = json!({"type": "string"});
    for _ in 0..30 {
        schema = json!({"properties": {"a": schema}});
    }
    deep.entries[0].input_schema = Some(schema);
    let text = serde_json::to_string(&deep).unwrap();
    let read = manifest::read(text.as_bytes()).manifest.unwrap();
    let error = import(root.path(), &read).unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("nested deeper than 64 levels"), "{source}");
    assert_eq!(content(&root), before);
    assert_eq!(load(root.path()).unwrap().len(), 1);
}

#[test]
fn the_file_is_canonical_and_an_import_replaces_its_service() {
    let root = TempDir::new().unwrap();
    assert_eq!(
        import(root.path(), &manifest("b", &["x"])).unwrap().added,
        ["query:x"]
    );
    import(root.path(), &manifest("A", &[])).unwrap();
    let changes = import(root.path(), &manifest("b", &["y"])).unwrap();
    assert_eq!(
        (changes.added, changes.removed),
        (vec!["query:y".to_owned()], vec!["query:x".to_owned()])
    );
    let a = r#"{"entries":[],"forgeProtocol":"1.0","language":"go","service":{"baseUrl":"http://127.0.0.1:1","name":"A","transport":"http"}}"#;
    let b = r#"{"entries":[{"kind":"query","name":"y"}],"forgeProtocol":"1.0","language":"go","service":{"baseUrl":"http://127.0.0.1:1","name":"b","transport":"http"}}"#;
    assert_eq!(
        content(&root),
        format!("{{\"manifests\":[{a},{b}],\"schemaVersion\":\"0.1.0\"}}\n")
    );
    let before = content(&root);
    assert_eq!(
        import(root.path(), &manifest("b", &["y"])).unwrap(),
        Changes::default()
    );
    assert_eq!(content(&root), before);
    assert_eq!(
        remove(root.path(), "b").unwrap().unwrap().removed,
        ["query:y"]
    );
    assert_eq!(remove(root.path(), "b").unwrap(), None);
}

#[test]
fn a_registry_that_cannot_be_read_is_not_overwritten() {
    for (text, code) in [
        ("[]", "OBJECT"),
        ("{", "OBJECT"),
        (r#"{"manifests": []}"#, "VERSION"),
        (r#"{"manifests": [], "schemaVersion": "9"}"#, "VERSION"),
        (
            r#"{"manifests": {}, "schemaVersion": "0.1.0"}"#,
            "MANIFESTS",
        ),
    ] {
        let root = TempDir::new().unwrap();
        fs::create_dir(root.path().join(".forge")).unwrap();
        fs::write(path(root.path()), text).unwrap();
        let error = import(root.path(), &manifest("a", &[])).unwrap_err();
        let RegistryError::Invalid(found) = error else {
            panic!("{error}")
        };
        assert_eq!(
            found[0].code,
            format!("FORGE_EXTERNAL_REGISTRY_{code}"),
            "{text}"
        );
        assert_eq!(content(&root), text);
    }
}

#[test]
fn one_bad_manifest_makes_the_registry_invalid_and_is_named() {
    let bad = json!({"manifests": [manifest("a", &[]), {"language": "go"}, manifest("a", &[])], "schemaVersion": "0.1.0"});
    let found = parse(bad.to_string().as_bytes()).unwrap_err();
    assert!(
        found.iter().any(
            |found| found.file.as_deref() == Some(".forge/external-manifests.json#manifests/1")
        )
    );
    let last = found.last().unwrap();
    assert_eq!(
        (last.code.as_str(), last.file.as_deref()),
        (
            "FORGE_EXTERNAL_SERVICE_DUPLICATE",
            Some(".forge/external-manifests.json#manifests/2")
        )
    );
}

#[test]
fn the_root_manifest_is_read_and_yields_to_the_registry() {
    let root = TempDir::new().unwrap();
    let file = root.path().join(ROOT_MANIFEST);
    fs::write(
        &file,
        serde_json::to_string(&manifest("root", &["x"])).unwrap(),
    )
    .unwrap();
    let catalog = load_catalog(&root).unwrap();
    assert_eq!(
        (names(&catalog), catalog.diagnostics.len()),
        (vec!["root"], 0)
    );
    import(root.path(), &manifest("other", &[])).unwrap();
    assert!(
        !content(&root).contains("root"),
        "the root manifest is not imported with others"
    );
    import(root.path(), &manifest("root", &["y"])).unwrap();
    let catalog = load_catalog(&root).unwrap();
    assert_eq!(names(&catalog), ["other", "root"]);
    assert!(catalog.find(EntryKind::Query, "root.y").is_some());
    let found: Vec<_> = catalog
        .diagnostics
        .iter()
        .map(|found| found.code.as_str())
        .collect();
    assert_eq!(found, ["FORGE_EXTERNAL_SERVICE_DUPLICATE"]);
    fs::write(&file, "{").unwrap();
    let found = load_catalog(&root).unwrap_err();
    assert_eq!(found[0].file.as_deref(), Some(ROOT_MANIFEST));
}

#[test]
fn concurrent_imports_lose_nothing() {
    let root = TempDir::new().unwrap();
    thread::scope(|scope| {
        for index in 0..16 {
            let root = root.path();
            scope.spawn(move || import(root, &manifest(&format!("s{index}"), &["x"])).unwrap());
        }
    });
    assert_eq!(load(root.path()).unwrap().len(), 16);
}

#[test]
fn a_folder_that_is_closed_is_an_error_and_not_a_loss() {
    let root = TempDir::new().unwrap();
    import(root.path(), &manifest("a", &[])).unwrap();
    if rustix::process::geteuid().is_root() {
        // Nothing is closed to root; a file in the way of the folder is.
        let root = TempDir::new().unwrap();
        fs::write(root.path().join(".forge"), "").unwrap();
        assert!(matches!(
            import(root.path(), &manifest("b", &[])),
            Err(RegistryError::Write { .. })
        ));
        return;
    }
    let folder = root.path().join(".forge");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o500)).unwrap();
    assert!(matches!(
        import(root.path(), &manifest("b", &[])),
        Err(RegistryError::Write { .. })
    ));
    assert_eq!(load(root.path()).unwrap().len(), 1);
}

#[test]
fn a_fifo_in_the_place_of_a_file_does_not_hang() {
    let root = TempDir::new().unwrap();
    let fifo = root.path().join(ROOT_MANIFEST);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    assert!(load_catalog(&root).is_err());
}

#[test]
fn a_policy_that_is_not_defined_is_warned_of() {
    let root = TempDir::new().unwrap();
    let mut guarded = manifest("a", &["x", "y"]);
    guarded.entries[0].policy = Some("billing.read".to_owned());
    guarded.entries[1].policy = Some("user".to_owned());
    import(root.path(), &guarded).unwrap();
    let found = |policies: &[&'static str]| {
        Catalog::load(root.path(), Trust::Enforce, policies.iter().copied())
            .unwrap()
            .diagnostics
    };
    assert_eq!(found(&[])[0].code, "FORGE_POLICY_UNKNOWN");
    assert_eq!(found(&["billing.read"]), []);
}

/// Files that a bridge acts on and another user can change: in a folder of that user, or in one that all can write.
#[test]
fn files_that_another_user_can_change_are_refused_or_warned_of() {
    const CODE: &str = "FORGE_EXTERNAL_FILE_UNTRUSTED";
    let text = serde_json::to_vec(&manifest("a", &[])).unwrap();
    for file in [REGISTRY, ROOT_MANIFEST] {
        let held = TempDir::new().unwrap();
        let root = held.path().join("root");
        fs::create_dir(&root).unwrap();
        match file {
            REGISTRY => drop(import(&root, &manifest("a", &[])).unwrap()),
            _ => fs::write(root.join(file), &text).unwrap(),
        }
        let load = |trust| Catalog::load(&root, trust, []);
        assert_eq!(names(&load(Trust::Enforce).unwrap()), ["a"]);
        let is_root = rustix::process::geteuid().is_root();
        for (why, is_foreign) in [
            ("belongs to another user", true),
            ("is writable by others", false),
        ] {
            // Only root can give a folder away.
            match is_foreign {
                true if !is_root => continue,
                true => std::os::unix::fs::chown(&root, Some(65534), None).unwrap(),
                false => fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap(),
            }
            let refused = load(Trust::Enforce).unwrap_err();
            assert_eq!((refused.len(), &*refused[0].code), (1, CODE), "{refused:?}");
            assert!(refused[0].message.contains(why), "{refused:?}");
            assert!(refused[0].message.contains("/root "), "{refused:?}");
            let warned = load(Trust::Warn).unwrap();
            assert_eq!(names(&warned), ["a"]);
            assert_eq!(warned.diagnostics[0].code, CODE);
            if is_root {
                std::os::unix::fs::chown(&root, Some(0), None).unwrap();
            }
        }
    }
}

#[test]
fn files_above_their_bounds_are_not_read() {
    for (file, bound) in [(REGISTRY, REGISTRY_BYTES), (ROOT_MANIFEST, 1024 * 1024)] {
        let root = TempDir::new().unwrap();
        let path = root.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let large = fs::File::create(&path).unwrap();
        large.set_len(bound as u64 + 1).unwrap();
        let refused = load_catalog(&root).unwrap_err();
        let wanted = format!("larger than {bound} bytes");
        assert!(refused[0].message.contains(&wanted), "{refused:?}");
        // One that fits is read, and is no JSON.
        large.set_len(bound as u64).unwrap();
        let refused = load_catalog(&root).unwrap_err();
        assert!(!refused[0].message.contains("larger"), "{refused:?}");
    }
}
