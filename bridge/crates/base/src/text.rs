//! Text of others: characters that cannot be seen, and ids. An unseen character can be a command to a terminal, show a
//! text in another order than it is read in, or make two different ids look the same.

use std::fmt::{self, Write as _};

use unicode_general_category::{GeneralCategory, get_general_category};

/// Maximum size of an id that a caller chooses, in bytes.
pub const ID_BYTES: usize = 256;

/// True for control and format characters and for the separators of lines and paragraphs: Unicode's categories Cc, Cf,
/// Zl and Zp.
pub fn is_unseen(c: char) -> bool {
    c.is_control()
        || !c.is_ascii()
            && matches!(
                get_general_category(c),
                GeneralCategory::Format
                    | GeneralCategory::LineSeparator
                    | GeneralCategory::ParagraphSeparator
            )
}

/// As [`is_unseen`], without the two joiners, which names in some scripts and emoji need.
pub fn is_unseen_in_name(c: char) -> bool {
    is_unseen(c) && !matches!(c, '\u{200c}' | '\u{200d}')
}

/// Complaint about an id that a caller chooses; `None` if it is valid.
pub fn id_complaint(text: &str) -> Option<&'static str> {
    if text.is_empty() || text.len() > ID_BYTES {
        return Some("must have 1 to 256 bytes");
    }
    // Nearly all ids are ASCII, which is read by the byte.
    let unseen = match text.is_ascii() {
        true => text.bytes().find(u8::is_ascii_control).map(char::from),
        false => text.chars().find(|c| is_unseen(*c)),
    };
    unseen.map(|c| match c.is_control() {
        true => "must not contain control characters",
        false => {
            "must not contain characters that cannot be seen, such as U+200B, U+202E or U+FEFF (Unicode's categories Cf, Zl, Zp)"
        }
    })
}

/// Text for a terminal: unseen characters other than `kept` as Rust escapes them, `\r`, `\u{202e}`.
pub fn escaped(text: &str, kept: &[char]) -> String {
    let mut out = String::with_capacity(text.len());
    write_escaped(&mut out, text, kept).expect("a text can be written to");
    out
}

/// Writes text as [`escaped`] returns it.
pub fn write_escaped(out: &mut dyn fmt::Write, text: &str, kept: &[char]) -> fmt::Result {
    let hidden = |c: char| is_unseen(c) && !kept.contains(&c);
    let mut shown = 0;
    for (at, found) in text.match_indices(hidden) {
        out.write_str(&text[shown..at])?;
        for c in found.chars() {
            write!(out, "{}", c.escape_default())?;
        }
        shown = at + found.len();
    }
    out.write_str(&text[shown..])
}

/// JSON text for a terminal: unseen characters other than line feeds as JSON escapes them, so it is the same JSON.
pub fn escaped_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '\n' => out.push(c),
            c if is_unseen(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}").expect("a text can be written to");
                }
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One of each kind, with what it does to who reads it.
    const UNSEEN: [(&str, &str); 15] = [
        ("\u{1b}", r"\u{1b}"),
        ("\u{7f}", r"\u{7f}"),
        ("\u{9b}", r"\u{9b}"),
        ("\u{ad}", r"\u{ad}"),
        ("\u{61c}", r"\u{61c}"),
        ("\u{180e}", r"\u{180e}"),
        ("\u{200b}\u{200c}\u{200d}", r"\u{200b}\u{200c}\u{200d}"),
        ("\u{200e}\u{200f}", r"\u{200e}\u{200f}"),
        ("\u{2028}\u{2029}", r"\u{2028}\u{2029}"),
        (
            "\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}",
            r"\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}",
        ),
        ("\u{2060}\u{206f}", r"\u{2060}\u{206f}"),
        (
            "\u{2066}\u{2067}\u{2068}\u{2069}",
            r"\u{2066}\u{2067}\u{2068}\u{2069}",
        ),
        ("\u{feff}\u{fff9}", r"\u{feff}\u{fff9}"),
        (
            "\u{e0001}\u{e0041}\u{e007f}",
            r"\u{e0001}\u{e0041}\u{e007f}",
        ),
        ("\r\n\t", r"\r\n\t"),
    ];

    #[test]
    fn each_kind_of_unseen_character_is_escaped_and_refused_in_ids() {
        for (text, shown) in UNSEEN {
            assert_eq!(
                escaped(&format!("ä{text}b{text}"), &[]),
                format!("ä{shown}b{shown}")
            );
            for c in text.chars() {
                assert!(id_complaint(&format!("a{c}")).is_some(), "{c:?}");
                let joins = matches!(c, '\u{200c}' | '\u{200d}');
                assert_eq!(is_unseen_in_name(c), !joins, "{c:?}");
            }
            let json = serde_json::to_string(text).unwrap();
            let safe = escaped_json(&json);
            assert!(!safe.contains(is_unseen), "{safe:?}");
            assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
        }
        assert_eq!(
            escaped("a\n\t\r\u{2028}", &['\n', '\t']),
            "a\n\t\\r\\u{2028}"
        );
    }

    #[test]
    fn text_that_can_be_seen_stays_as_it_is() {
        for text in [
            "",
            "ü/#?% ",
            "שלום-مرحبا",
            "a\u{301}",
            "日本語 🚀",
            "\u{fffd}\u{e000}",
        ] {
            assert_eq!(escaped(text, &[]), text);
            assert_eq!(escaped_json(text), text);
            assert_eq!(id_complaint(text).is_none(), !text.is_empty(), "{text:?}");
        }
        assert_eq!(id_complaint(&"x".repeat(256)), None);
        assert!(id_complaint(&"x".repeat(257)).is_some());
    }
}
