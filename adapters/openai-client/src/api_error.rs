//! Errors of OpenAI-compatible servers: `{"error": {message, type, code}}`, `{"error": text}` or
//! `{"message": text}`, in the body of an answer or within a stream.

use forge_adapter_api::AdapterError;
use forge_adapter_api::foreign_json;
use forge_adapter_transport::http::{Failure, named};
use forge_adapter_transport::retry::{Refusal, details};
use serde_json::Value;

/// The error in an answer or an event; `None` if it contains none.
pub fn said_in(answer: &Value) -> Option<&Value> {
    answer.get("error").filter(|error| !error.is_null())
}

/// Parses an error that has no HTTP status of its own; its `code`, `status` or `type` determines the code.
pub fn read(error: &Value) -> AdapterError {
    let message = message(error).unwrap_or_else(|| error.to_string());
    let status = status(error);
    let refusal = status.map_or_else(|| by_kind(&kind(error)), Refusal::of);
    let mut read = AdapterError::new(refusal.code, message);
    read.retryable = refusal.retryable && !is_spent(error);
    read.details = Some(details(refusal.reason, status));
    read
}

/// Converts a failed call into an error with the server's message.
pub fn refused(failure: Failure) -> AdapterError {
    of(failure, |_| None)
}

/// Converts a failed call; `own` parses errors specific to the dialect.
pub(crate) fn of(failure: Failure, own: fn(&Value) -> Option<AdapterError>) -> AdapterError {
    let said = match &failure {
        Failure::Refused { body, .. } => foreign_json::from_str::<Value>(body).ok(),
        Failure::Tls(_)
        | Failure::Client(_)
        | Failure::Connect(_)
        | Failure::Silent(_)
        | Failure::Broken(_)
        | Failure::TooLong(_)
        | Failure::NotJson(_) => None,
    };
    let head = match &failure {
        Failure::Refused { host, status, .. } => format!("{host} answered {}", named(*status)),
        failure => failure.to_string(),
    };
    let mut error = AdapterError::from(failure);
    let Some(said) = said else {
        return error;
    };
    let inner = said_in(&said).unwrap_or(&said);
    if let Some(own) = own(inner) {
        return AdapterError {
            retry_after_ms: own.retry_after_ms.or(error.retry_after_ms),
            ..own
        };
    }
    if let Some(message) = message(inner) {
        error.message = format!("{head}: {message}");
    }
    error.retryable &= !is_spent(inner);
    // A proxy can pass on the refusal of a key with a status of its own.
    if is_key_refused(inner) {
        error.code = "unauthenticated".to_owned();
        error.retryable = false;
    }
    error
}

fn message(error: &Value) -> Option<String> {
    let text = error.as_str().or_else(|| {
        ["message", "detail", "error"]
            .iter()
            .find_map(|name| error.get(*name)?.as_str())
    });
    text.filter(|text| !text.is_empty()).map(str::to_owned)
}

fn status(error: &Value) -> Option<u16> {
    ["code", "status"].iter().find_map(|name| {
        let value = error.get(*name)?;
        let number = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
        u16::try_from(number)
            .ok()
            .filter(|n| (400..600).contains(n))
    })
}

fn kind(error: &Value) -> String {
    let texts = ["code", "type"].map(|name| error.get(name).and_then(Value::as_str));
    texts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// The refusal with the HTTP status that belongs to this kind.
fn by_kind(kind: &str) -> Refusal {
    let has = |words: &[&str]| words.iter().any(|word| kind.contains(word));
    Refusal::of(if has(&["rate_limit", "quota"]) {
        429
    // LiteLLM without a database answers `no_db_connection` to every key but its master key.
    } else if has(&[
        "authentication",
        "api_key",
        "permission",
        "no_db_connection",
    ]) {
        401
    } else if has(&["invalid_request", "context_length", "not_found"]) {
        400
    } else if has(&["overloaded"]) {
        529
    } else {
        500
    })
}

fn is_key_refused(error: &Value) -> bool {
    let unauthenticated = Refusal::of(401);
    let by_status = status(error).map(Refusal::of);
    by_status == Some(unauthenticated) || by_kind(&kind(error)) == unauthenticated
}

/// True if the account's quota is exhausted, as opposed to a rate limit; not retryable.
fn is_spent(error: &Value) -> bool {
    kind(error).contains("insufficient_quota")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_error_has_the_code_of_its_status_or_its_kind() {
        for (error, code, retryable, message) in [
            (
                json!({"message": "m", "code": 429}),
                "rate_limited",
                true,
                "m",
            ),
            (
                json!({"message": "m", "code": "502"}),
                "upstream_error",
                true,
                "m",
            ),
            (
                json!({"message": "m", "type": "server_error", "code": null}),
                "upstream_error",
                true,
                "m",
            ),
            (
                json!({"message": "m", "type": "invalid_request_error"}),
                "invalid_request",
                false,
                "m",
            ),
            (
                json!({"message": "m", "code": "invalid_api_key"}),
                "unauthenticated",
                false,
                "m",
            ),
            (
                json!({"message": "m", "code": "insufficient_quota"}),
                "rate_limited",
                false,
                "m",
            ),
            (
                json!({"message": "m", "type": "overloaded_error"}),
                "upstream_error",
                true,
                "m",
            ),
            (json!("text"), "upstream_error", true, "text"),
            (json!({"odd": 1}), "upstream_error", true, "{\"odd\":1}"),
        ] {
            let read = read(&error);
            assert_eq!(
                (read.code.as_str(), read.retryable, read.message.as_str()),
                (code, retryable, message),
                "{error}"
            );
        }
    }

    #[test]
    fn a_wrong_key_behind_a_proxy_is_one_whatever_the_proxys_status() {
        for (status, body) in [
            (
                500,
                json!({"error": {"message": "AuthenticationError: wrong key", "code": "401"}}),
            ),
            (
                503,
                json!({"error": {"message": "wrong key", "type": "authentication_error"}}),
            ),
            (
                429,
                json!({"error": {"message": "wrong key", "code": "invalid_api_key"}}),
            ),
            (
                400,
                json!({"error": {"message": "No connected db.", "type": "no_db_connection", "code": "400"}}),
            ),
            (401, json!({"message": "wrong key"})),
        ] {
            let error = refused(Failure::Refused {
                host: "proxy".to_owned(),
                status: reqwest::StatusCode::from_u16(status).unwrap(),
                body: body.to_string(),
                retry_after: None,
                should_retry: None,
            });
            let read = (error.code.as_str(), error.retryable);
            assert_eq!(read, ("unauthenticated", false), "{status} {body}");
        }
    }
}
