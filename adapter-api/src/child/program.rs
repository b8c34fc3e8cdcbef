//! A program before it runs: what it is started with, and where it is.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Of the adapter's own environment only these reach a program; what else it needs is named in
/// [`Program::env`].
pub const INHERITED: [&str; 20] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "XDG_RUNTIME_DIR",
];

/// A program to start.
#[derive(Clone)]
pub struct Program {
    /// A path, or a name to look for in `PATH`.
    pub path: PathBuf,
    /// Its arguments, its own name not among them.
    pub args: Vec<OsString>,
    /// Where it runs; the bridge's own folder if not given.
    pub dir: Option<PathBuf>,
    /// Added to [`INHERITED`]; the same name here wins.
    pub env: BTreeMap<String, String>,
    /// A longer line of its output is reported as [`Line::TooLong`](super::Line::TooLong).
    pub line_bytes: usize,
    /// How much of the end of its stderr is kept.
    pub stderr_bytes: usize,
}

impl Program {
    /// A program without arguments; lines up to 16 MiB, 16 KiB of stderr.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            args: Vec::new(),
            dir: None,
            env: BTreeMap::new(),
            line_bytes: 16 << 20,
            stderr_bytes: 16 << 10,
        }
    }

    /// Where it is, when it is there and may be executed.
    pub fn locate(&self) -> Option<PathBuf> {
        if self.path.components().count() > 1 {
            return is_executable(&self.path).then(|| self.path.clone());
        }
        let search = match self.env.get("PATH") {
            Some(path) => OsString::from(path),
            None => std::env::var_os("PATH")?,
        };
        std::env::split_paths(&search)
            .map(|folder| folder.join(&self.path))
            .find(|path| is_executable(path))
    }
}

/// The values of variables may be secret.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("path", &self.path)
            .field("args", &self.args)
            .field("dir", &self.dir)
            .field("env", &self.env.keys())
            .finish_non_exhaustive()
    }
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_debug_text_holds_no_value_of_a_variable() {
        let mut program = Program::new("x");
        program.env.insert("KEY".to_owned(), "hidden".to_owned());
        let text = format!("{program:?}");
        assert!(text.contains("KEY") && !text.contains("hidden"), "{text}");
    }
}
