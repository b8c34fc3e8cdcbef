//! Preparation of an output for the store and the callback: cleans the text and cuts it if it is too long.

use serde::Serialize;

use crate::Config;
use forge_base::digest::{hex, sha256};
use forge_base::id::DispatchId;

/// Description of the whole output in a result that contains only its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Truncated {
    /// Bytes of the whole output.
    pub(super) bytes: usize,
    /// Hash of the whole output, in hexadecimal.
    pub(super) sha256: String,
    /// Path of the whole output in the HTTP interface.
    pub(super) href: String,
}

/// An output fitted to the limits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fitted {
    /// Short enough for the result.
    Whole(String),
    /// The beginning for the result; the whole is stored separately.
    Cut {
        beginning: String,
        truncated: Truncated,
        whole: String,
    },
    /// Above the hard limit: only the beginning is kept.
    TooLarge { beginning: String, bytes: usize },
}

pub(super) fn fit(text: String, id: DispatchId, config: &Config) -> Fitted {
    let bytes = text.len();
    if bytes <= config.output_inline_bytes.min(config.output_limit_bytes) {
        return Fitted::Whole(text);
    }
    let end = text.floor_char_boundary(config.output_inline_bytes);
    if bytes > config.output_limit_bytes {
        let mut beginning = text;
        beginning.truncate(end);
        beginning.shrink_to_fit();
        return Fitted::TooLarge { beginning, bytes };
    }
    Fitted::Cut {
        beginning: text[..end].to_owned(),
        truncated: Truncated {
            bytes,
            sha256: hex(&sha256(text.as_bytes())),
            href: format!("/api/v2/dispatch/{id}/output"),
        },
        whole: text,
    }
}

/// Removes NUL characters.
pub(super) fn clean(mut text: String) -> String {
    if text.contains('\0') {
        text.retain(|c| c != '\0');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            output_inline_bytes: 5,
            output_limit_bytes: 10,
            ..Config::default()
        }
    }

    #[test]
    fn an_output_is_cut_at_a_character_and_kept_whole_beside() {
        let id = DispatchId::new();
        assert_eq!(
            fit("12345".into(), id, &config()),
            Fitted::Whole("12345".into())
        );
        let Fitted::Cut {
            beginning,
            truncated,
            whole,
        } = fit("1234ü".into(), id, &config())
        else {
            panic!("six bytes do not fit into five");
        };
        assert_eq!((beginning.as_str(), whole.as_str()), ("1234", "1234ü"));
        assert_eq!(truncated.bytes, 6);
        assert_eq!(truncated.sha256, hex(&sha256("1234ü")));
        assert_eq!(truncated.href, format!("/api/v2/dispatch/{id}/output"));
    }

    #[test]
    fn above_the_cap_only_the_beginning_stays() {
        let fitted = fit("x".repeat(11), DispatchId::new(), &config());
        let beginning = "xxxxx".to_owned();
        assert_eq!(
            fitted,
            Fitted::TooLarge {
                beginning,
                bytes: 11
            }
        );
        let at_cap = fit("x".repeat(10), DispatchId::new(), &config());
        assert!(matches!(at_cap, Fitted::Cut { .. }));
    }

    #[test]
    fn only_nul_is_removed() {
        assert_eq!(clean("a\0b\r\n\u{1b}c ".into()), "ab\r\n\u{1b}c ");
    }
}
