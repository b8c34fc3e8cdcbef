//! Tolerant parser of an adapter's answer: `null` counts as absent, an invalid count as unknown, and invalid UTF-8
//! is replaced. Anything that is not a result is a protocol violation.

use forge_adapter_api::ExecutionResult;
use forge_adapter_api::foreign_json;
use serde_json::{Map, Value};

use crate::budget::Spent;

/// Parses a result. The error describes the first problem.
pub(crate) fn parse(bytes: &[u8]) -> Result<ExecutionResult, String> {
    match foreign_json::from_slice::<ExecutionResult>(bytes) {
        // serde also reads a struct from an array.
        Ok(result) if bytes.trim_ascii_start().starts_with(b"{") => Ok(ExecutionResult {
            duration_ms: None,
            ..result
        }),
        Ok(_) | Err(_) => parse_tolerantly(bytes),
    }
}

fn parse_tolerantly(bytes: &[u8]) -> Result<ExecutionResult, String> {
    let mut members: Map<String, Value> =
        foreign_json::from_slice(bytes).map_err(|error| format!("not a JSON object: {error}"))?;
    members.retain(|_, member| !member.is_null());
    let spent = Spent::read(members.get("usage"), members.get("costUsd"));
    let retryable = members.get("retryable").and_then(Value::as_bool);
    let retry_after_ms = members.get("retryAfterMs").and_then(Value::as_u64);
    // Read above or measured by the bridge; a mistake in them must not lose the output.
    for name in [
        "usage",
        "costUsd",
        "durationMs",
        "retryable",
        "retryAfterMs",
    ] {
        members.remove(name);
    }
    let result: ExecutionResult =
        serde_json::from_value(Value::Object(members)).map_err(|error| error.to_string())?;
    Ok(ExecutionResult {
        usage: spent.usage,
        cost_usd: spent.cost_usd,
        retryable,
        retry_after_ms,
        ..result
    })
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::Status;

    use super::*;

    #[test]
    fn results_are_read_tolerantly() {
        let full = br#"{"status":"ok","output":"x","usage":{"inputTokens":3.0,"outputTokens":"?"},
            "error":null,"toolCalls":null,"durationMs":-1,"costUsd":"free","later":{},
            "retryable":"often","retryAfterMs":30}"#;
        let result = parse(full).unwrap();
        assert_eq!(result.status, Status::Ok);
        assert_eq!(result.output.as_deref(), Some("x"));
        assert_eq!(result.usage.input_tokens, Some(3));
        assert_eq!(result.usage.output_tokens, None);
        assert_eq!(result.cost_usd, None);
        assert_eq!((result.retryable, result.retry_after_ms), (None, Some(30)));
        assert!(parse(br#"{"status":"ok","usage":null}"#).is_ok());
    }

    #[test]
    fn invalid_bytes_are_replaced() {
        let result = parse(b"{\"status\":\"ok\",\"output\":\"a\xffb\"}").unwrap();
        assert_eq!(result.output.as_deref(), Some("a\u{fffd}b"));
    }

    #[test]
    fn garbage_is_no_result() {
        let deep = "[".repeat(100_000);
        for bytes in [
            &b""[..],
            b"\xff\xfe\x00",
            b"null",
            b"[]",
            b"\"ok\"",
            b"{}",
            br#"{"status":"done"}"#,
            br#"{"status":5}"#,
            br#"{"status":"ok","output":5}"#,
            br#"{"status":"ok","toolCalls":[{}]}"#,
            br#"{"status":"ok"} trailing"#,
            deep.as_bytes(),
        ] {
            assert!(parse(bytes).is_err(), "{}", String::from_utf8_lossy(bytes));
        }
    }
}
