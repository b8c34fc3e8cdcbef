//! Adapter libraries built for one test, outside the workspace.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Folder of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// File name of the library of this adapter.
pub(crate) fn file_name(name: &str) -> String {
    let name = name.replace('-', "_");
    format!(
        "libforge_adapter_{name}.{}",
        std::env::consts::DLL_EXTENSION
    )
}

/// Compiles a C adapter of `tests/fixtures`.
pub(crate) fn compile(library: &Path, source: &str, defines: &[&str]) {
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-pthread"])
        .args(defines.iter().map(|define| format!("-D{define}")))
        .arg("-I")
        .arg(root().join("adapter-api/abi"))
        .arg("-o")
        .args([library, &root().join("tests/fixtures").join(source)])
        .output()
        .unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{complaints}");
    make_safe(library);
}

/// Makes a library writable by its owner only; the bridge loads no other.
pub(crate) fn make_safe(library: &Path) {
    fs::set_permissions(library, Permissions::from_mode(0o755)).unwrap();
}
