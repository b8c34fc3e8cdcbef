//! `forg activate` and `forg token`: the token of a user.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Stands in for `secret-tool`: keeps what it reads, and the arguments of each call.
const SECRET_TOOL: &str = r#"#!/bin/sh
echo "$*" >> "$HOME/arguments"
case $1 in
  store) [ -z "$LOCKED" ] || { echo "Cannot unlock" >&2; exit 1; }; IFS= read -r secret; printf %s "$secret" > "$HOME/chain" ;;
  lookup) [ -e "$HOME/chain" ] && while IFS= read -r l || [ -n "$l" ]; do printf %s "$l"; done < "$HOME/chain" ;;
esac
"#;

/// Runs `forg`; a file `input` of the home is its standard input.
fn forg(home: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let input = fs::File::open(home.join("input")).map_or(Stdio::null(), Stdio::from);
    let mut command = Command::new(env!("CARGO_BIN_EXE_forg"));
    command
        .env_clear()
        .envs([("HOME", home), ("PATH", &home.join("bin"))])
        .envs(variables.iter().copied())
        .current_dir(home)
        .stdin(input)
        .args(arguments);
    command.output().unwrap()
}

fn home() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("bin")).unwrap();
    home
}

fn text(output: &[u8]) -> &str {
    std::str::from_utf8(output).unwrap().trim_end()
}

/// True if a file below the folder contains these bytes.
fn holds(folder: &Path, wanted: &str) -> bool {
    fs::read_dir(folder).unwrap().any(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => holds(&path, wanted),
            false => {
                let bytes = fs::read(&path).unwrap();
                bytes
                    .windows(wanted.len())
                    .any(|at| at == wanted.as_bytes())
            }
        }
    })
}

#[test]
fn a_token_is_kept_in_a_file_that_only_its_key_opens() {
    let home = home();
    let home = home.path();
    let key = [("FORG_KEYSTORE", "file"), ("FORG_KEYSTORE_KEY", KEY)];
    let absent = forg(home, &key, &["token", "--print"]);
    assert_eq!(absent.status.code(), Some(1), "{absent:?}");
    let made = forg(home, &key, &["activate"]);
    assert!(made.status.success(), "{made:?}");
    let printed = forg(home, &key, &["token", "--print"]);
    let token = text(&printed.stdout);
    let digits = token.strip_prefix("forg_live_").unwrap();
    assert!(digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
    // The line for the configuration has the hash of this token, and its only scope.
    let hash = forge_base::digest::hex(&forge_base::digest::sha256(token));
    let line = format!("  {{ hash = \"{hash}\", scopes = [\"signals\"] }}");
    assert!(
        text(&made.stdout).lines().any(|one| one == line),
        "{made:?}"
    );
    assert!(!text(&made.stdout).contains(digits));

    let file = home.join(".local/share/forg/token");
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(!holds(home, digits));
    let other = [("FORG_KEYSTORE_KEY", &*KEY.replace("00", "ff"))];
    for (variables, expected) in [
        (&other[..], "another key"),
        (&[], "FORG_KEYSTORE_KEY must be"),
    ] {
        let refused = forg(home, variables, &["token", "--print", "--keystore", "file"]);
        assert_eq!(refused.status.code(), Some(1));
        assert!(text(&refused.stderr).contains(expected), "{refused:?}");
    }
    let given = [&key[..], &[("FORG_TOKEN", "lic_1\n")]].concat();
    assert_eq!(
        text(&forg(home, &given, &["token", "--print"]).stdout),
        "lic_1"
    );
}

#[test]
fn a_token_is_kept_in_the_keychain_and_never_in_arguments() {
    let home = home();
    let home = home.path();
    let without = forg(home, &[], &["activate", "lic_0123456789"]);
    assert_eq!(without.status.code(), Some(1));
    assert!(
        text(&without.stderr).contains("--keystore file"),
        "{without:?}"
    );

    let tool = home.join("bin/secret-tool");
    fs::write(&tool, SECRET_TOOL).unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let absent = forg(home, &[], &["token", "--print"]);
    assert!(text(&absent.stderr).contains("forg activate"), "{absent:?}");
    let kept = forg(home, &[], &["activate", "lic_0123456789"]);
    assert!(kept.status.success(), "{kept:?}");
    assert_eq!(
        text(&forg(home, &[], &["token", "--print"]).stdout),
        "lic_0123456789"
    );
    let arguments = fs::read_to_string(home.join("arguments")).unwrap();
    assert!(!arguments.contains("lic_"), "{arguments}");
    fs::write(home.join("input"), "lic_from-input\n").unwrap();
    assert!(forg(home, &[], &["activate", "-"]).status.success());
    let printed = forg(home, &[], &["token", "--print"]);
    assert_eq!(text(&printed.stdout), "lic_from-input");
    let locked = forg(home, &[("LOCKED", "1")], &["activate", "other"]);
    assert!(text(&locked.stderr).contains("Cannot unlock"), "{locked:?}");
    for wrong in ["", "a b", "ü", "a\"b", &"x".repeat(513)] {
        let refused = forg(home, &[], &["activate", wrong]);
        assert_eq!(refused.status.code(), Some(1), "{wrong:?}");
    }
    assert_eq!(
        text(&forg(home, &[], &["token", "--print"]).stdout),
        "lic_from-input"
    );
}
