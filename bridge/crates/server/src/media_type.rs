//! Media type of request bodies: JSON, named by the request. A page of another origin can send no such body without a
//! preflight; it can send one of three other types, or none.

use axum::http::{HeaderMap, HeaderValue, header};
use serde_json::json;

use super::error::{Code, Failure, problem};

/// Characters of a refused type that its error shows.
const SHOWN: usize = 100;

/// Refuses a body unless each `Content-Type` of the request is `application/json` or ends in `+json`.
pub(super) fn check(headers: &HeaderMap) -> Result<(), Failure> {
    let mut given = headers.get_all(header::CONTENT_TYPE).iter().peekable();
    let found = match given.peek() {
        None => "there is no Content-Type".to_owned(),
        Some(_) => match given.find(|kind| !is_json(kind)) {
            None => return Ok(()),
            Some(kind) => {
                let kind = String::from_utf8_lossy(kind.as_bytes());
                let kind: String = kind.chars().take(SHOWN).collect();
                format!("it is sent as {kind:?}")
            }
        },
    };
    let message = format!("a body must have Content-Type: application/json; {found}");
    let details = json!([problem("Content-Type", "must be application/json")]);
    Err(Failure::new(Code::UnsupportedMediaType, message).with_details(details))
}

fn is_json(kind: &HeaderValue) -> bool {
    let text = kind.to_str().unwrap_or_default();
    let essence = text.split(';').next().unwrap_or_default().trim();
    let Some((top, sub)) = essence.split_once('/') else {
        return false;
    };
    let is_token = |text: &str| {
        let inside = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte);
        !text.is_empty() && text.bytes().all(inside)
    };
    let sub = sub.to_ascii_lowercase();
    let named = top.eq_ignore_ascii_case("application") && sub == "json";
    is_token(top) && is_token(&sub) && (named || sub.ends_with("+json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_json_by_name() {
        for (given, wanted) in [
            (&["application/json"][..], None),
            (&["Application/JSON; charset=utf-8"], None),
            (&[" application/json ;charset=utf-8"], None),
            (&["application/cloudevents+json"], None),
            (&["application/json", "application/json"], None),
            (&[], Some("there is no Content-Type")),
            (&["text/plain"], Some("\"text/plain\"")),
            (
                &["text/plain;charset=UTF-8"],
                Some("\"text/plain;charset=UTF-8\""),
            ),
            (&["text/plain; application/json"], Some("text/plain")),
            (
                &["application/json, text/plain"],
                Some("application/json, text/plain"),
            ),
            (&["application/json", "text/plain"], Some("\"text/plain\"")),
            (
                &["application/x-www-form-urlencoded"],
                Some("x-www-form-urlencoded"),
            ),
            (
                &["multipart/form-data; boundary=+json"],
                Some("multipart/form-data"),
            ),
            (&["text/json"], Some("text/json")),
            (&["application/jsonp"], Some("application/jsonp")),
            (&["text/plain +json"], Some("text/plain +json")),
            (&["json"], Some("\"json\"")),
            (&[""], Some("\"\"")),
            (&["/+json"], Some("/+json")),
        ] {
            let mut headers = HeaderMap::new();
            for value in given {
                headers.append(header::CONTENT_TYPE, value.parse().unwrap());
            }
            let refused = check(&headers).err();
            let message = refused.as_ref().map(Failure::message);
            assert_eq!(
                message.is_some(),
                wanted.is_some(),
                "{given:?}: {message:?}"
            );
            if let (Some(message), Some(wanted)) = (message, wanted) {
                assert!(message.contains(wanted), "{message}");
            }
        }
        let mut headers = HeaderMap::new();
        headers.append(header::CONTENT_TYPE, "x".repeat(60_000).parse().unwrap());
        assert!(check(&headers).unwrap_err().message().len() < 250);
    }
}
