//! The check of advisories: what it says without a database, with an old one, and about an advisory that it has.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use super::harness::library::root;

/// Database of this age that has an advisory about every version of this package.
fn database(folder: &Path, days: u64, package: &str) {
    let advisory = format!(
        "```toml\n[advisory]\nid = \"RUSTSEC-2026-9999\"\npackage = \"{package}\"\ndate = \"2026-01-01\"\n\
         url = \"https://example.org/\"\n\n[versions]\npatched = []\n```\n\n# Made up for a test\n"
    );
    let advisories = folder.join("crates").join(package);
    fs::create_dir_all(&advisories).unwrap();
    fs::write(advisories.join("RUSTSEC-2026-9999.md"), advisory).unwrap();
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    let date = format!("{} +0000", now - days * 24 * 60 * 60);
    for arguments in [
        ["init", "--quiet", "--initial-branch", "main"].as_slice(),
        &["add", "."],
        &["commit", "--quiet", "--message", "advisories"],
    ] {
        let mut git = Command::new("git");
        git.args(["-c", "user.name=a", "-c", "user.email=a@example.org"]);
        let done = git.current_dir(folder).args(arguments);
        let done = done
            .env("GIT_COMMITTER_DATE", &date)
            .env("GIT_AUTHOR_DATE", &date);
        assert!(done.status().unwrap().success(), "{arguments:?}");
    }
}

/// Runs the check with an `npm` that prints this report; returns its exit code and what it says.
fn checked(database: Option<&Path>, npm: &str) -> (Option<i32>, String) {
    let programs = tempfile::tempdir().unwrap();
    let fake = programs.path().join("npm");
    fs::write(&fake, format!("#!/bin/sh\ncat <<'E'\n{npm}\nE\nexit 1\n")).unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mut check = Command::new(root().join(".ci/advisories"));
    check.env("PATH", format!("{}:{path}", programs.path().display()));
    check.env_remove("ADVISORY_DB");
    check.envs(database.map(|folder| ("ADVISORY_DB", folder)));
    let Output {
        status,
        stdout,
        stderr,
    } = check.output().unwrap();
    let said = String::from_utf8([stdout, stderr].concat()).unwrap();
    (status.code(), said)
}

const CLEAN: &str = r#"{"auditReportVersion": 2, "vulnerabilities": {}}"#;

#[test]
fn what_is_not_checked_is_said_and_is_no_failure() {
    let (code, said) = checked(None, r#"{"message": "405 Method Not Allowed"}"#);
    assert_eq!(code, Some(77), "{said}");
    for wanted in [
        "advisories: Rust: not checked, no database: set ADVISORY_DB",
        "advisories: sdk/typescript: not checked, the registry has no audit: 405",
        "advisories: bridge/console: not checked",
    ] {
        assert!(said.contains(wanted), "{wanted:?} is not in {said}");
    }
    let (code, said) = checked(None, CLEAN);
    assert_eq!(code, Some(77), "{said}");
    assert!(said.contains("advisories: bridge/console: ok"), "{said}");
    let found = r#"{"auditReportVersion": 2, "vulnerabilities": {"vite": {"severity": "high"}}}"#;
    let (code, said) = checked(None, found);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("sdk/typescript: vite (high)"), "{said}");
}

#[test]
fn an_old_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (code, said) = checked(Some(folder.path()), CLEAN);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("is not a clone of the database"), "{said}");
    database(folder.path(), 61, "axum");
    let (code, said) = checked(Some(folder.path()), CLEAN);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("61 days old, at most 60"), "{said}");
}

#[test]
fn an_advisory_of_the_database_fails_the_check() {
    let (clean, bad) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    database(clean.path(), 59, "of-no-lock-file");
    let (code, said) = checked(Some(clean.path()), CLEAN);
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("advisories: Rust: ok, with the database of"),
        "{said}"
    );
    database(bad.path(), 0, "axum");
    let (code, said) = checked(Some(bad.path()), CLEAN);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("RUSTSEC-2026-9999"), "{said}");
    assert!(
        said.contains("Cargo.lock fails with the database of"),
        "{said}"
    );
}
