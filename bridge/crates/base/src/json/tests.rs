//! Tests of `json`.

use super::*;

fn nested(depth: usize) -> Vec<u8> {
    [vec![b'['; depth], vec![b']'; depth]].concat()
}

#[test]
fn what_is_well_formed_becomes_the_same_tree_as_serde_makes() {
    for text in [
        "null",
        "true",
        "-0.5e3",
        "9223372036854775807",
        "18446744073709551615",
        "-9223372036854775808",
        "1e30",
        r#""\ud83d\ude00 \u0000 ü""#,
        r#"{"a":{"b":[1,2,{"c":null}]},"":0}"#,
        " \r\n\t[1, \"99999999999999999999999\\\"9999999999999999999999\"] ",
    ] {
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(parse(text.as_bytes()).unwrap(), expected, "{text}");
    }
    assert!(parse(&nested(MAX_DEPTH)).is_ok());
}

#[test]
fn what_is_malformed_is_not_json() {
    let cases: [&[u8]; 30] = [
        b"{",
        b"}",
        b"[",
        b"[1",
        b"[1,]",
        b"[,1]",
        b"{\"a\"}",
        b"{\"a\":}",
        b"{\"a\":1,}",
        b"{a:1}",
        b"{'a':1}",
        b"{\"a\" 1}",
        b"{1:1}",
        b"\"open",
        b"\"\\x\"",
        b"\"\\ud800\"",
        b"\"\\udc00\"",
        b"\"\\ud800\\u0041\"",
        b"\"\\u12\"",
        b"\"line\nbreak\"",
        b"01",
        b"1.",
        b".5",
        b"+1",
        b"1e",
        b"1e999",
        b"NaN",
        b"nul",
        b"{} {}",
        b"/* no */ 1",
    ];
    for body in cases {
        let shown = String::from_utf8_lossy(body);
        match parse(body) {
            Err(BodyError::Syntax { .. }) => {}
            other => panic!("{shown}: {other:?}"),
        }
    }
}

#[test]
fn what_we_refuse_is_named() {
    use BodyError::{ByteOrderMark, DuplicateKey, Empty, IntegerOutOfRange, NotUtf8, TooDeep};
    let path = |path: &str| path.to_owned();
    let cases: [(&[u8], BodyError); 15] = [
        (b"", Empty),
        (b" \n\t ", Empty),
        (b"\xef\xbb\xbf{}", ByteOrderMark),
        (b"\xff\xfe{\x00}\x00", NotUtf8 { offset: 0 }),
        (b"{\"a\":\"\xc3\"}", NotUtf8 { offset: 6 }),
        (b"\"\xed\xa0\x80\"", NotUtf8 { offset: 1 }),
        (b"\"\xc0\xaf\"", NotUtf8 { offset: 1 }),
        (br#"{"a":1,"a":1}"#, DuplicateKey { path: path("a") }),
        (
            br#"{"a":[0,{"b":{"c":1,"\u0063":2}}]}"#,
            DuplicateKey {
                path: path("a[1].b.c"),
            },
        ),
        (br#"[{"":1,"":2}]"#, DuplicateKey { path: path("[0].") }),
        (
            br#"{"m":{"$serde_json::private::RawValue":"nonsense"}}"#,
            BodyError::ReservedKey {
                path: path("m.$serde_json::private::RawValue"),
            },
        ),
        (
            b"{\n \"timeout\": 99999999999999999999}",
            IntegerOutOfRange {
                line: 2,
                column: 13,
            },
        ),
        (
            b"-9223372036854775809",
            IntegerOutOfRange { line: 1, column: 1 },
        ),
        (&[b'['; 10_000], TooDeep),
        (&[b"{\"a\":".as_slice(); 10_000].concat(), TooDeep),
    ];
    for (body, expected) in cases {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        assert_eq!(parse(body), Err(expected), "{shown}");
    }
    assert_eq!(parse(&nested(MAX_DEPTH + 1)), Err(TooDeep));
}

#[test]
fn a_tree_of_very_many_small_values_is_refused() {
    for (value, count) in [("0,", MAX_VALUES), ("{},", MAX_VALUES / OBJECT_VALUES)] {
        let fits = format!("[{}0]", value.repeat(count - 2));
        assert!(parse(fits.as_bytes()).is_ok(), "{value}");
        let body = format!("[{}0]", value.repeat(count));
        assert_eq!(parse(body.as_bytes()), Err(BodyError::TooManyValues));
    }
}
