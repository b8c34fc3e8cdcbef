//! Reading of JSON that others wrote: runtimes, models, tools, services.
//!
//! The readers take all that `JSON.parse` of Node takes, up to the depth of 128 that `serde_json` allows:
//!
//! - half a surrogate pair (`"\ud83d"`), which Node and Python write when a text is cut within a character, becomes
//!   U+FFFD, and so do bytes that are not UTF-8;
//! - a number too large for a double, which is Infinity to Node, becomes `null`, as `JSON.stringify` writes it.
//!
//! [`count`] and [`amount`] read numbers as runtimes write them. What is not a number of that kind is not known, which
//! is `None` and never 0.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeOwned, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// Reads a value from bytes.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> serde_json::Result<T> {
    from_str(&String::from_utf8_lossy(bytes))
}

/// Reads a value from text.
pub fn from_str<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    let text = readable(text);
    serde_json::from_str(&text).or_else(|error| match finite(&text) {
        Some(finite) => serde_json::from_str(&finite),
        None => Err(error),
    })
}

/// The same JSON with U+FFFD in place of each half of a surrogate pair. For readers that borrow from the text or keep
/// parts of it unread; all others use [`from_str`].
pub fn readable(text: &str) -> Cow<'_, str> {
    let mut mended: Option<String> = None;
    let mut at = 0;
    while let Some(escape) = memchr::memchr(b'\\', &text.as_bytes()[at..]).map(|next| at + next) {
        let rest = &text.as_bytes()[escape..];
        at = escape
            + match (unit(rest), rest.get(6..).and_then(unit)) {
                (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
                (Some(0xD800..=0xDFFF), _) => {
                    let mended = mended.get_or_insert_with(|| text.to_owned());
                    mended.replace_range(escape..escape + 6, "\\ufffd");
                    6
                }
                // The escaped character can be longer than one byte only in text that is not JSON.
                _ => 2.min(rest.len()),
            };
    }
    mended.map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Largest count: JavaScript and every parser that reads numbers as doubles know the whole numbers up to it.
const MAX_COUNT: f64 = 9_007_199_254_740_991.0;

/// A count: a whole number from 0 to 2^53 - 1, also written as `12.0` or `"12"`.
pub fn count(value: &Value) -> Option<u64> {
    read_count(value).unwrap_or_default()
}

/// An amount of money: a finite number that is not negative, also written as `"0.25"`.
pub fn amount(value: &Value) -> Option<f64> {
    read_amount(value).unwrap_or_default()
}

/// [`count`] for `#[serde(default, deserialize_with = "…")]`; never fails on a JSON value.
pub fn read_count<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let number = from.deserialize_any(Number)?;
    Ok(number
        .filter(|number| number.fract() == 0.0 && *number <= MAX_COUNT)
        .map(whole))
}

/// [`amount`] for `#[serde(default, deserialize_with = "…")]`; never fails on a JSON value.
pub fn read_amount<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    from.deserialize_any(Number)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number is whole and from 0 to 2^53 - 1"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

/// Reads a finite number that is not negative, or a text that is one; all other values are `None`.
struct Number;

impl<'de> Visitor<'de> for Number {
    type Value = Option<f64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number")
    }

    fn visit_f64<E>(self, number: f64) -> Result<Option<f64>, E> {
        Ok(Some(number).filter(|number| number.is_finite() && *number >= 0.0))
    }

    #[expect(clippy::cast_precision_loss, reason = "above 2^53 it is no count")]
    fn visit_u64<E>(self, number: u64) -> Result<Option<f64>, E> {
        Ok(Some(number as f64))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Option<f64>, E> {
        u64::try_from(number).map_or(Ok(None), |number| self.visit_u64(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Option<f64>, E> {
        let is_plain = text
            .bytes()
            .all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
        match text.parse() {
            Ok(number) if is_plain => self.visit_f64(number),
            Ok(_) | Err(_) => Ok(None),
        }
    }

    fn visit_bool<E>(self, _: bool) -> Result<Option<f64>, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Option<f64>, E> {
        Ok(None)
    }

    fn visit_none<E>(self) -> Result<Option<f64>, E> {
        Ok(None)
    }

    fn visit_some<D: Deserializer<'de>>(self, from: D) -> Result<Option<f64>, D::Error> {
        from.deserialize_any(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<f64>, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Option<f64>, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

/// The code unit of an escape `\uXXXX` at the beginning of `text`.
fn unit(text: &[u8]) -> Option<u16> {
    let digits = text.strip_prefix(b"\\u")?.get(..4)?;
    if !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The same JSON with `null` in place of numbers that are infinite as doubles; `None` if there are none.
fn finite(text: &str) -> Option<String> {
    let mut finite = String::with_capacity(text.len());
    let mut rest = text;
    let mut found = false;
    while let Some(start) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        finite.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = if rest.starts_with('"') {
            string_end(rest)
        } else {
            rest.find(|c: char| !c.is_ascii_digit() && !"+-.eE".contains(c))
                .unwrap_or(rest.len())
        };
        let token = &rest[..end];
        let is_infinite = token.parse().is_ok_and(f64::is_infinite);
        finite.push_str(if is_infinite { "null" } else { token });
        found |= is_infinite;
        rest = &rest[end..];
    }
    finite.push_str(rest);
    found.then_some(finite)
}

/// The position after the string at the beginning of `text`.
fn string_end(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_node_takes_is_taken() {
        let cases = [
            (r#""\ud83d""#, json!("\u{fffd}")),
            (r#""\uDE00""#, json!("\u{fffd}")),
            (r#""\ud83d\ude00""#, json!("\u{1f600}")),
            (
                r#""\ud83d\ud83d\ude00\ude00""#,
                json!("\u{fffd}\u{1f600}\u{fffd}"),
            ),
            (r#""\ud83d\n""#, json!("\u{fffd}\n")),
            (r#""\\ud83d""#, json!("\\ud83d")),
            (r#""\\\ud83dé""#, json!("\\\u{fffd}é")),
            (
                r#"{"\udc00a": ["\u00e9", "\udbff"]}"#,
                json!({"\u{fffd}a": ["é", "\u{fffd}"]}),
            ),
            (
                r#"[1e999, -1e999, "1e999", 1.5, "\"1e999"]"#,
                json!([null, null, "1e999", 1.5, "\"1e999"]),
            ),
            ("1e999", Value::Null),
            (
                "12345678901234567890123",
                json!(12_345_678_901_234_567_890_123_f64),
            ),
        ];
        for (text, wanted) in cases {
            assert_eq!(from_str::<Value>(text).ok(), Some(wanted.clone()), "{text}");
            assert_eq!(
                from_slice::<Value>(text.as_bytes()).ok(),
                Some(wanted),
                "{text}"
            );
        }
        assert_eq!(
            from_slice::<Value>(b"\"a\xff\xe2\x82\"").ok(),
            Some(json!("a\u{fffd}\u{fffd}"))
        );
    }

    #[test]
    fn what_node_refuses_is_refused() {
        for text in [
            "",
            "{",
            "NaN",
            "[1e999",
            r#""\u12""#,
            r#""\ud83""#,
            r#""\"#,
            "\"\\é",
            "\u{feff}1",
            "1 2",
            "+1",
            "01",
        ] {
            assert!(from_str::<Value>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_and_amounts_are_read_as_they_are_written() {
        let cases = [
            (json!(12), Some(12), Some(12.0)),
            (json!(12.0), Some(12), Some(12.0)),
            (json!("12"), Some(12), Some(12.0)),
            (json!("12.0"), Some(12), Some(12.0)),
            (json!(1.2e3), Some(1200), Some(1200.0)),
            (json!(0), Some(0), Some(0.0)),
            (json!(0.25), None, Some(0.25)),
            (json!("0.25"), None, Some(0.25)),
            (
                json!(9_007_199_254_740_991_u64),
                Some(9_007_199_254_740_991),
                Some(9_007_199_254_740_991.0),
            ),
            (
                json!(9_007_199_254_740_992_u64),
                None,
                Some(9_007_199_254_740_992.0),
            ),
            (json!(u64::MAX), None, Some(18_446_744_073_709_551_615.0)),
            (json!(1e300), None, Some(1e300)),
            (json!(-1), None, None),
            (json!(-0.5), None, None),
            (json!("-1"), None, None),
            (json!("inf"), None, None),
            (json!("NaN"), None, None),
            (json!(""), None, None),
            (json!(" 12"), None, None),
            (json!("twelve"), None, None),
            (json!(null), None, None),
            (json!(true), None, None),
            (json!([12]), None, None),
            (json!({"a": [12]}), None, None),
        ];
        for (value, wanted_count, wanted_amount) in cases {
            assert_eq!(
                (count(&value), amount(&value)),
                (wanted_count, wanted_amount),
                "{value}"
            );
            let text = value.to_string();
            let mut source = serde_json::Deserializer::from_str(&text);
            assert_eq!(read_count(&mut source).ok(), Some(wanted_count), "{text}");
            assert!(source.end().is_ok(), "{text}");
        }
    }

    #[test]
    fn text_without_halves_is_not_copied() {
        for text in ["{}", r#""\ud83d\ude00 \\ \n \u00e9""#] {
            assert!(matches!(readable(text), Cow::Borrowed(_)), "{text}");
        }
    }
}
