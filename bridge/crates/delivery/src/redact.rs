//! Redacts secret header values from a stored answer: a receiver might echo the request.

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, USER_AGENT};

const MARK: &str = "[REDACTED]";
/// Minimum length of a redacted value, in bytes: shorter ones are no secrets and would match everywhere.
const SHORTEST: usize = 6;

/// Values to redact, longest first.
pub(super) struct Confidential(Vec<String>);

impl Confidential {
    /// Collects the values of all headers that the bridge does not set itself.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let given = headers.iter().filter(|(name, _)| !is_ours(name));
        let mut values: Vec<String> = given
            .flat_map(|(name, value)| {
                let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
                let token = match text.split_once(' ') {
                    Some((_, token)) if name == AUTHORIZATION => Some(token.trim().to_owned()),
                    Some(_) | None => None,
                };
                [Some(text), token]
            })
            .flatten()
            .filter(|text| text.len() >= SHORTEST)
            .flat_map(|text| [text.replace('/', "\\/"), json_text(&text), text])
            .collect();
        values.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        values.dedup();
        Self(values)
    }

    pub(super) fn hide(&self, mut text: String) -> String {
        for value in &self.0 {
            if text.contains(value) {
                text = text.replace(value, MARK);
            }
        }
        // The stored answer can be cut off inside a value.
        for value in &self.0 {
            let beginnings = (SHORTEST..value.len()).rev();
            let mut ends = beginnings.filter_map(|end| value.get(..end));
            if let Some(part) = ends.find(|part| text.ends_with(part)) {
                text.truncate(text.len() - part.len());
                text.push_str(MARK);
            }
        }
        text
    }
}

/// JSON escape of the text, without the quotes.
fn json_text(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

fn is_ours(name: &HeaderName) -> bool {
    *name == CONTENT_TYPE
        || *name == USER_AGENT
        || matches!(
            name.as_str(),
            "webhook-id"
                | "webhook-timestamp"
                | "webhook-signature"
                | "idempotency-key"
                | "x-forge-delivery-attempt"
                | "traceparent"
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_in_confidence_is_not_shown() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", "Bearer s3cr3t/t0ken"),
            ("x-api-key", "key\"12345"),
            ("x-env", "prod"),
            ("webhook-id", "dlv_123456"),
            ("user-agent", "forge-bridge/1"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        let confidential = Confidential::of(&headers);
        for (answer, shown) in [
            ("fine", "fine"),
            (
                "authorization: Bearer s3cr3t/t0ken",
                "authorization: [REDACTED]",
            ),
            (
                "got s3cr3t/t0ken twice: s3cr3t/t0ken",
                "got [REDACTED] twice: [REDACTED]",
            ),
            (r#"{"token":"s3cr3t\/t0ken"}"#, r#"{"token":"[REDACTED]"}"#),
            (r#"{"key":"key\"12345"}"#, r#"{"key":"[REDACTED]"}"#),
            (
                "in prod dlv_123456 forge-bridge/1",
                "in prod dlv_123456 forge-bridge/1",
            ),
            ("cut off at s3cr3t/t", "cut off at [REDACTED]"),
            ("cut off at Bearer s3cr", "cut off at [REDACTED]"),
            ("s3c", "s3c"),
        ] {
            assert_eq!(confidential.hide(answer.to_owned()), shown);
        }
    }
}
