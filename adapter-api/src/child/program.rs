//! Specification of a program before it runs: its arguments and environment, and its location.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::User;
use crate::folder::{Folder, TempFolder};

/// The only variables of the adapter's own environment that a program inherits; others must be named in
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

/// The variables that a program inherits, with those that name a user and its home replaced by this user's.
pub fn inherited(user: Option<&User>) -> impl Iterator<Item = (&'static str, OsString)> {
    INHERITED.into_iter().filter_map(move |name| {
        let value = match (name, user) {
            ("HOME", Some(user)) => Some(user.home.clone().into_os_string()),
            ("USER" | "LOGNAME", Some(user)) => Some(OsString::from(&user.name)),
            // These folders belong to the bridge's user.
            ("TMPDIR" | "XDG_RUNTIME_DIR", Some(_)) => None,
            (_, _) => std::env::var_os(name),
        };
        Some((name, value?))
    })
}

/// A program to start.
#[derive(Clone)]
pub struct Program {
    /// A path, or a name to look for in `PATH`.
    pub path: PathBuf,
    /// Arguments, without the program's name.
    pub args: Vec<OsString>,
    /// Working directory; default: that of the bridge, or `/` if the program runs as another user.
    pub dir: Option<PathBuf>,
    /// Working directory that is open already; wins over `dir`. The program starts in this folder, whatever
    /// its path names by then.
    pub workspace: Option<Folder>,
    /// Folder made for this program alone. If the program runs as another user, the folder and everything in it belong
    /// to that user from the first start on; put nothing into it afterwards. It exists at least as long as this.
    pub folder: Option<TempFolder>,
    /// Variables besides [`INHERITED`]; these win over inherited ones of the same name.
    pub env: BTreeMap<String, String>,
    /// Line limit; a longer line of output is reported as [`Line::TooLong`](super::Line::TooLong).
    pub line_bytes: usize,
    /// Number of bytes kept from the end of stderr.
    pub stderr_bytes: usize,
}

impl Program {
    /// A program without arguments; lines up to 16 MiB, 16 KiB of stderr.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            args: Vec::new(),
            dir: None,
            workspace: None,
            folder: None,
            env: BTreeMap::new(),
            line_bytes: 16 << 20,
            stderr_bytes: 16 << 10,
        }
    }

    /// The program's path, if it exists and is executable.
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

/// Names only: the values of variables can be secret.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program")
            .field("path", &self.path)
            .field("args", &self.args)
            .field("dir", &self.dir)
            .field("workspace", &self.workspace)
            .field("folder", &self.folder)
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
