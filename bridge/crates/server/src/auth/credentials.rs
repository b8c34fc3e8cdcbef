//! Credentials in the value of a header, in all forms in which servers read them: after a scheme, in quotes, as a
//! parameter, in Base64 as the name or password of `Basic`, with percent signs.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use percent_encoding::percent_decode;

/// Encodings that are looked into, one in another.
const DEPTH: u8 = 3;
/// Parts that can be one token with separators in it, and the longest such token in bytes.
const PARTS: usize = 8;
const LONGEST: usize = 1024;

const FORGIVING: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const BASE64: [GeneralPurpose; 2] = [
    GeneralPurpose::new(&STANDARD, FORGIVING),
    GeneralPurpose::new(&URL_SAFE, FORGIVING),
];

/// True if any text that the value contains `is_one`.
pub(super) fn any(value: &[u8], is_one: &impl Fn(&[u8]) -> bool) -> bool {
    within(value, DEPTH, is_one)
}

fn within(value: &[u8], depth: u8, is_one: &impl Fn(&[u8]) -> bool) -> bool {
    let found = parts(value, |byte| byte != b'/' && is_sign(byte));
    let is_text = |start: usize, end: usize| {
        let padding = value[end..].iter().take_while(|byte| **byte == b'=');
        let padded = end + padding.count();
        is_one(&value[start..end]) || padded > end && is_one(&value[start..padded])
    };
    let runs = found.iter().enumerate().any(|(first, (start, end))| {
        let rest = found[first..].iter().take(PARTS).skip(1);
        let mut ends = rest
            .map(|(_, end)| *end)
            .filter(|end| end - start <= LONGEST);
        is_text(*start, *end) || ends.any(|end| is_text(*start, end))
    });
    if runs || is_one(value.trim_ascii()) {
        return true;
    }
    if depth == 0 {
        return false;
    }
    let is_within = |inner: &[u8]| within(inner, depth - 1, is_one);
    let decoded = percent_decode(value);
    if let Cow::Owned(plain) = Cow::from(decoded)
        && is_within(&plain)
    {
        return true;
    }
    parts(value, is_sign).iter().any(|(start, end)| {
        let word = &value[*start..*end];
        let mut read = BASE64.iter().filter_map(|base64| base64.decode(word).ok());
        read.any(|inner| !inner.is_empty() && is_within(&inner))
    })
}

/// True for the signs of Base64 and of most tokens, except for `=`.
fn is_sign(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'+' | b'/')
}

/// Start and end of each part of such signs.
fn parts(value: &[u8], is_sign: impl Fn(u8) -> bool) -> Vec<(usize, usize)> {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    let mut is_inside = false;
    for (at, byte) in value.iter().enumerate() {
        match (is_sign(*byte), parts.last_mut().filter(|_| is_inside)) {
            (true, Some((_, end))) => *end = at + 1,
            (true, None) => parts.push((at, at + 1)),
            (false, _) => {}
        }
        is_inside = is_sign(*byte);
    }
    parts
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn a_token_is_found_in_every_form() {
        let long = "x".repeat(2000);
        for token in [
            "fbt_Ap-Y3K.Q",
            "with space, and \"more\" x",
            "dG9rZW4=",
            &long,
            "a:b",
        ] {
            let basic = |text: String| STANDARD.encode(text);
            let percent: String = token.bytes().map(|byte| format!("%{byte:02x}")).collect();
            for value in [
                token.to_owned(),
                format!("Bearer {token}"),
                format!("bearer   {token}  "),
                format!("Bearer \"{token}\""),
                format!("Bearer '{token}'"),
                format!("Token token={token}; nonce=def"),
                format!("Token token=\"{token}\",nonce=def"),
                format!("Digest username=\"{token}\""),
                format!("GoogleLogin auth={token}"),
                format!("AWS4 Credential={token}/20260101, SignedHeaders=host"),
                format!("Basic {}", basic(format!("user:{token}"))),
                format!("Basic {}", basic(format!("{token}:"))),
                format!("Basic {}", basic(token.to_owned()).trim_end_matches('=')),
                format!(
                    "Basic {}",
                    basic(format!("{token}:x"))
                        .replace('+', "-")
                        .replace('/', "_")
                ),
                format!("Basic {}", basic(basic(token.to_owned()))),
                format!("Bearer {percent}"),
                format!("Bearer https://h/?access_token={token}&a=b"),
            ] {
                assert!(
                    any(value.as_bytes(), &|text| text == token.as_bytes()),
                    "{value}"
                );
            }
        }
        for value in [
            "",
            "Bearer other",
            "Basic dXNlcjpwYXNz",
            "Bearer fbt_Ap-Y3K.Qx",
        ] {
            assert!(
                !any(value.as_bytes(), &|text| text == b"fbt_Ap-Y3K.Q"),
                "{value}"
            );
        }
    }
}
