//! Signatures of the checks: signing, and the reason why a received one does not match.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use forge_base::digest::MacKey;
use forge_signals::sign::Signature;
use serde_json::Value;

/// Value of the header `X-Forg-Signature` for a body.
pub(super) fn sign(key: &[u8], body: &[u8]) -> String {
    Signature::new(&MacKey::new(key), body).to_string()
}

/// Relation of a signature to a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    Right,
    /// Not `sha256=` and 64 hexadecimal digits.
    Malformed,
    /// Made with the base64 text of the key in place of its bytes.
    TextOfKey,
    /// Made over another serialisation of the same value.
    Reserialised,
    Wrong,
}

/// Compares a signature with the bytes that were received.
pub(super) fn compare(key: &[u8], body: &[u8], signature: &[u8]) -> Match {
    let Some(signature) = Signature::parse(signature) else {
        return Match::Malformed;
    };
    if signature.is_of(key, body) {
        return Match::Right;
    }
    if signature.is_of(BASE64_STANDARD.encode(key).as_bytes(), body) {
        return Match::TextOfKey;
    }
    let text = String::from_utf8_lossy(body);
    let sorted = serde_json::from_str::<Value>(&text).map(|value| value.to_string());
    let mut texts = [text.into_owned(), sorted.unwrap_or_default()].into_iter();
    let other = texts.any(|text| {
        let spellings = [spaced(&text, ""), spaced(&text, " ")];
        spellings
            .iter()
            .any(|text| signature.is_of(key, text.as_bytes()))
    });
    match other {
        true => Match::Reserialised,
        false => Match::Wrong,
    }
}

/// JSON text with this text after each comma and colon, and no other blanks.
fn spaced(json: &str, blank: &str) -> String {
    let (mut out, mut in_text, mut escaped) = (String::new(), false, false);
    for c in json.chars() {
        if !in_text && c.is_ascii_whitespace() {
            continue;
        }
        out.push(c);
        match c {
            _ if escaped => escaped = false,
            '\\' if in_text => escaped = true,
            '"' => in_text = !in_text,
            ',' | ':' if !in_text => out.push_str(blank),
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_signature_has_a_reason() {
        let key: Vec<u8> = (0..32).collect();
        let body = r#"{"b": "x, \"y\": z", "a":1}"#.as_bytes();
        let of = |text: &str| compare(&key, body, sign(&key, text.as_bytes()).as_bytes());
        assert_eq!(
            compare(&key, body, sign(&key, body).as_bytes()),
            Match::Right
        );
        let text_of_key = sign(BASE64_STANDARD.encode(&key).as_bytes(), body);
        assert_eq!(
            compare(&key, body, text_of_key.as_bytes()),
            Match::TextOfKey
        );
        for other in [
            r#"{"b":"x, \"y\": z","a":1}"#,
            r#"{"b": "x, \"y\": z", "a": 1}"#,
            r#"{"a": 1, "b": "x, \"y\": z"}"#,
        ] {
            assert_eq!(of(other), Match::Reserialised, "{other}");
        }
        assert_eq!(of("{}"), Match::Wrong);
        assert_eq!(compare(&key, body, b"sha256=00"), Match::Malformed);
    }
}
