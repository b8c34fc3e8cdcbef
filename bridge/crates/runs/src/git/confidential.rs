//! Settings of git that are secrets: in a file without a name, which git inherits open. What is in the environment or in an
//! argument of a process, other processes can read.

use std::fs::File;
use std::io::{self, Write as _};

use rustix::fs::{MemfdFlags, memfd_create};
use secrecy::{ExposeSecret as _, SecretString};

use super::Error;

/// Beginning of a script: moves the input to the descriptor that [`include`] names. Every program of git inherits it, and
/// each opens it again, so that all read the whole file.
pub(super) const TAKE_INPUT: &str = "exec 9<&0 < /dev/null\n";

/// The setting that includes the file.
pub(super) fn include() -> (String, String) {
    ("include.path".to_owned(), "/proc/self/fd/9".to_owned())
}

/// File with these settings, in memory only.
pub(super) fn file(settings: &[(String, SecretString)]) -> Result<File, Error> {
    let failed = |error: io::Error| Error::file("settings of git".as_ref(), error);
    let file = memfd_create("settings", MemfdFlags::CLOEXEC);
    let mut file = File::from(file.map_err(|error| failed(error.into()))?);
    for (name, value) in settings {
        let text = entry(name, value.expose_secret()).ok_or_else(|| {
            let text = "a line break or a zero byte in a confidential setting";
            failed(io::Error::new(io::ErrorKind::InvalidInput, text))
        })?;
        file.write_all(text.as_bytes()).map_err(failed)?;
    }
    Ok(file)
}

/// One setting in the form of a settings file of git.
fn entry(name: &str, value: &str) -> Option<String> {
    let (section, key) = name.split_once('.')?;
    if value.contains(['\n', '\r', '\0']) {
        return None;
    }
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    Some(format!("[{section}]\n\t{key} = \"{value}\"\n"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};
    use std::process::Command;

    use super::*;

    #[test]
    fn git_reads_each_value_as_it_was() {
        let values = ["Basic a;b#c\"d\\e", " with blanks ", ""];
        let settings = values.map(|value| ("http.extraHeader".to_owned(), value.into()));
        let (name, path) = include();
        let read = Command::new("sh")
            .args(["-c", &format!("{TAKE_INPUT}exec \"$0\" \"$@\"")])
            .args(["git", "config", "-z", "--get-all", "http.extraHeader"])
            .envs([
                ("GIT_CONFIG_COUNT", "1"),
                ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ])
            .envs([("GIT_CONFIG_KEY_0", name), ("GIT_CONFIG_VALUE_0", path)])
            .stdin(file(&settings).unwrap())
            .output()
            .unwrap();
        let text = String::from_utf8(read.stdout).unwrap();
        let found: Vec<&str> = text.split_terminator('\0').collect();
        assert_eq!(found, values);
    }

    #[test]
    fn a_value_cannot_add_another_setting() {
        for value in ["a\n[core]\n\tsshCommand = x", "a\rb", "a\0b"] {
            assert!(file(&[("http.extraHeader".to_owned(), value.into())]).is_err());
        }
        let mut file = file(&[("http.proxy".to_owned(), "x".into())]).unwrap();
        let mut text = String::new();
        file.rewind().unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "[http]\n\tproxy = \"x\"\n");
    }
}
