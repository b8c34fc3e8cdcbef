//! Each form of an answer, with what the caller is told of it.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const OK: Status = Status::Http(200);

fn reply(status: Status, body: &str) -> Reply {
    read(status, body.as_bytes(), "external command 's.e'", "")
}

/// Code and message of the last diagnostic of a failed call.
fn failure(status: Status, body: &str) -> (String, String) {
    let reply = reply(status, body);
    assert_eq!(reply.result, None, "{body}");
    let last = reply.diagnostics.last().unwrap();
    let text = |key: &str| last[key].as_str().unwrap().to_owned();
    (text("code"), text("message"))
}

#[test]
fn results_are_found_in_every_form_of_success() {
    for (status, body, result) in [
        (OK, r#"{"ok":true,"result":{"id":1}}"#, json!({"id": 1})),
        (OK, r#"{"result":null}"#, json!(null)),
        (OK, r#"{"ok":true,"result":null}"#, json!(null)),
        (OK, r#"{"ok":true}"#, json!({"ok": true})),
        (OK, r#"{"id":1}"#, json!({"id": 1})),
        (OK, "[1]", json!([1])),
        (OK, "5", json!(5)),
        (OK, "\"text\"", json!("text")),
        (OK, "null", json!(null)),
        (OK, "false", json!(false)),
        (OK, r#"{"ok":"false"}"#, json!({"ok": "false"})),
        (OK, r#"{"ok":null}"#, json!({"ok": null})),
        (OK, r#"{"ok":0}"#, json!({"ok": 0})),
        (
            OK,
            r#"{"error":{"code":"X"}}"#,
            json!({"error": {"code": "X"}}),
        ),
        (OK, "\u{feff}{\"result\":1}", json!(1)),
        (OK, " {\"result\":1}\n", json!(1)),
        (Status::Http(201), r#"{"result":1}"#, json!(1)),
        (Status::Exit(0), "", json!({})),
        (Status::Exit(0), " \n", json!({})),
        (Status::Exit(0), r#"{"result":1}"#, json!(1)),
    ] {
        assert_eq!(
            reply(status, body).result,
            Some(result),
            "{status:?} {body}"
        );
    }
}

#[test]
fn failures_name_a_code_and_a_reason() {
    let failed = |message: &str| (FAILED.to_owned(), message.to_owned());
    let other = |code: &str, message: &str| (code.to_owned(), message.to_owned());
    for (status, body, expected) in [
        (
            OK,
            r#"{"ok":false}"#,
            failed("external runtime returned HTTP 200"),
        ),
        (
            Status::Http(500),
            r#"{"ok":true}"#,
            failed("external runtime returned HTTP 500"),
        ),
        (
            Status::Http(404),
            "[]",
            failed("external runtime returned HTTP 404"),
        ),
        (
            OK,
            r#"{"ok":false,"error":"text"}"#,
            failed("external runtime returned HTTP 200"),
        ),
        (OK, r#"{"ok":false,"error":{"message":"m"}}"#, failed("m")),
        (
            OK,
            r#"{"ok":false,"error":{"code":"C"}}"#,
            other("C", "external runtime returned HTTP 200"),
        ),
        (
            OK,
            r#"{"ok":false,"error":{"code":5,"message":[]}}"#,
            failed("external runtime returned HTTP 200"),
        ),
        (
            OK,
            r#"{"ok":false,"diagnostics":[null,{"code":"D"},{"message":"d"}],"error":{"code":"C"}}"#,
            other("C", "d"),
        ),
        (
            OK,
            r#"{"ok":false,"error":{"code":"FORGE_POLICY_DENIED","message":"no"}}"#,
            other("FORGE_POLICY_DENIED", "no"),
        ),
        (
            OK,
            r#"{"ok":false,"diagnostics":"none"}"#,
            failed("external runtime returned HTTP 200"),
        ),
        (
            Status::Exit(3),
            "",
            failed("external runtime exited with code 3"),
        ),
        (
            Status::Exit(137),
            r#"{"result":1}"#,
            failed("external runtime exited with code 137"),
        ),
        (Status::Exit(1), r#"{"error":{"message":"m"}}"#, failed("m")),
    ] {
        assert_eq!(failure(status, body), expected, "{status:?} {body}");
    }
    let both = reply(
        OK,
        r#"{"ok":false,"diagnostics":[{"code":"D"}],"error":{"code":"D"}}"#,
    );
    assert_eq!(both.diagnostics.len(), 2, "{both:?}");
}

#[test]
fn an_answer_that_is_not_json_is_a_failure() {
    for (status, body) in [
        (OK, ""),
        (Status::Http(204), ""),
        (OK, "plain text"),
        (Status::Http(404), "<html></html>"),
        (OK, "{\"result\":1}{\"result\":2}"),
        (OK, "{\"result\":1,\"result\":2}"),
        (Status::Exit(0), "1\n2\n"),
        (Status::Exit(0), "text"),
        (Status::Exit(9), "text"),
    ] {
        assert_eq!(failure(status, body).0, BAD_RESPONSE, "{status:?} {body}");
    }
    assert!(
        read(OK, b"{\"result\": \"\\ud83d\xff\"}", "entry", "")
            .result
            .is_some()
    );
    let deep = "[".repeat(100_000);
    assert_eq!(failure(OK, &deep).0, BAD_RESPONSE);
    let binary = read(Status::Exit(0), b"\xff\xfe", "entry", "; stderr: help");
    let message = binary.diagnostics[0]["message"].as_str().unwrap();
    assert!(message.ends_with("; stderr: help"), "{message}");
}

#[test]
fn only_a_short_visible_trace_id_counts() {
    for (given, taken) in [
        (json!("trace_1"), true),
        (json!("x".repeat(64)), true),
        (json!("x".repeat(65)), false),
        (json!(""), false),
        (json!("a b"), false),
        (json!("a\r\nset-cookie: x"), false),
        (json!("é"), false),
        (json!(5), false),
        (json!({"id": "x"}), false),
    ] {
        let body = json!({"result": 1, "traceId": given}).to_string();
        assert_eq!(reply(OK, &body).trace_id.is_some(), taken, "{given}");
        let body = json!({"ok": false, "traceId": given}).to_string();
        assert_eq!(reply(OK, &body).trace_id.is_some(), taken, "{given}");
    }
}

#[test]
fn diagnostics_of_a_success_are_kept_and_bounded() {
    let warnings: Vec<_> = (0..500).map(|number| json!({"code": number})).collect();
    let body = json!({"result": 1, "diagnostics": warnings}).to_string();
    let reply = reply(OK, &body);
    assert_eq!(reply.result, Some(json!(1)));
    assert_eq!(reply.diagnostics.len(), MAX_DIAGNOSTICS);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(body: Vec<u8>, code: u16) {
        for status in [Status::Http(code), Status::Exit(i32::from(code))] {
            let reply = read(status, &body, "entry", "");
            prop_assert!(reply.result.is_some() || !reply.diagnostics.is_empty());
        }
    }
}
