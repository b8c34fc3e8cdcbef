//! Paths of files as git and people read them.

use std::fmt::Write as _;

use forge_base::text::is_unseen;

/// Path for people, as git quotes it. Reversible: different paths never look the same, whatever their bytes are.
pub fn shown(path: &[u8]) -> String {
    match str::from_utf8(path) {
        Ok(text) if is_plain(text) => text.to_owned(),
        Ok(text) => {
            let mut quoted = String::from("\"");
            for c in text.chars() {
                match c {
                    c if c == '"' || c == '\\' || is_hidden(c) => {
                        let mut bytes = [0; 4];
                        escape(&mut quoted, c.encode_utf8(&mut bytes).as_bytes());
                    }
                    c => quoted.push(c),
                }
            }
            quoted + "\""
        }
        Err(_) => {
            let mut quoted = String::from("\"");
            for &byte in path {
                match byte {
                    b'"' | b'\\' | 0..b' ' | 0x7f.. => escape(&mut quoted, &[byte]),
                    _ => quoted.push(char::from(byte)),
                }
            }
            quoted + "\""
        }
    }
}

/// Path as `fast-import` reads it.
pub(super) fn quoted(path: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for &byte in path {
        match byte {
            b'"' | b'\\' | 0..b' ' | 0x7f => quoted.extend(format!("\\{byte:03o}").into_bytes()),
            _ => quoted.push(byte),
        }
    }
    quoted.push(b'"');
    quoted
}

/// Names that file systems of other machines take for `.git`: HFS+ leaves characters out, Windows endings, and a
/// backslash separates names there.
pub(super) fn is_git(name: &[u8]) -> bool {
    let name = String::from_utf8_lossy(name).to_lowercase();
    let name = name.replace(|c| matches!(c, '\u{200c}'..='\u{206f}' | '\u{feff}'), "");
    name.split('\\').any(|name| {
        let name = name.split(':').next().unwrap_or_default();
        matches!(name.trim_end_matches([' ', '.']), ".git" | "git~1")
    })
}

fn is_plain(text: &str) -> bool {
    let is_special = |c| c == '"' || c == '\\' || is_hidden(c);
    !text.contains(is_special) && text.trim() == text
}

/// Characters that cannot be seen, or look like a space.
fn is_hidden(c: char) -> bool {
    let is_space = c.is_whitespace() && c != ' ';
    is_unseen(c) || is_space
}

fn escape(to: &mut String, bytes: &[u8]) {
    for &byte in bytes {
        match byte {
            b'"' | b'\\' => to.extend(['\\', char::from(byte)]),
            b'\n' => to.push_str("\\n"),
            b'\t' => to.push_str("\\t"),
            b'\r' => to.push_str("\\r"),
            byte => drop(write!(to, "\\{byte:03o}")),
        }
    }
}

#[cfg(test)]
mod tests {
    //! Paths that are not plain text, and names like `.git`.

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_is_shown_as_it_is_or_quoted() {
        for (path, wanted) in [
            (&b"src/\xc3\xa4 b.rs"[..], "src/ä b.rs"),
            (b"latin-\xe4", r#""latin-\344""#),
            (b"a\nb", r#""a\nb""#),
            (b"a\"b\\c", r#""a\"b\\c""#),
            (b"\xc3\xa4\x1b", r#""ä\033""#),
            (b"end ", r#""end ""#),
            (b"end.", "end."),
            ("no\u{a0}break".as_bytes(), r#""no\302\240break""#),
            ("a\u{202e}b".as_bytes(), r#""a\342\200\256b""#),
        ] {
            assert_eq!(shown(path), wanted);
        }
    }

    /// Bytes of a path as git reads a quoted one.
    fn unquoted(text: &str) -> Vec<u8> {
        let Some(inner) = text.strip_prefix('"') else {
            return text.as_bytes().to_vec();
        };
        let mut bytes = inner.strip_suffix('"').unwrap().bytes();
        let mut path = Vec::new();
        while let Some(byte) = bytes.next() {
            path.push(match byte {
                b'\\' => match bytes.next().unwrap() {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    first @ b'0'..=b'3' => {
                        let digit = |byte: u8| byte - b'0';
                        let mut next = || digit(bytes.next().unwrap());
                        digit(first) * 64 + next() * 8 + next()
                    }
                    other => other,
                },
                other => other,
            });
        }
        path
    }

    proptest! {
        #[test]
        fn a_shown_path_is_reversible(path in prop::collection::vec(any::<u8>(), 1..40), text in "\\PC{1,20}") {
            prop_assert_eq!(unquoted(&shown(&path)), path);
            prop_assert_eq!(unquoted(&shown(text.as_bytes())), text.as_bytes());
        }
    }

    #[test]
    fn names_that_other_systems_read_as_git_are_known() {
        for name in [
            ".git",
            ".GIT",
            ".git. .",
            "git~1",
            ".g\u{200c}it",
            ".git::$INDEX_ALLOCATION",
            "a\\.git",
        ] {
            assert!(is_git(name.as_bytes()), "{name:?}");
        }
        for name in [".gitignore", "git", "a.git", ".gitx", "git~2", "a\\b"] {
            assert!(!is_git(name.as_bytes()), "{name:?}");
        }
    }
}
