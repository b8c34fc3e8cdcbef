//! Callback settings: URL, retry policy and the secrets, which include the headers. Secrets are separated from the
//! dispatch here.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::SecretString;
use serde_json::Value;
use url::Url;

use crate::request::{Callback, Secrets};
use forge_base::text::is_unseen;
use forge_net as net;
use forge_net::backoff::Policy;

use super::fields::{Fields, describe};
use super::spelling;

const NO_CREDENTIALS: &str = "must not contain credentials; give a token as callback.bearer";
const URL_BYTES: usize = 4096;
const HEADER_COUNT: usize = 20;
const HEADER_BYTES: usize = 4096;
const BEARER_BYTES: usize = 4096;
/// Bytes of a symmetric key in Standard Webhooks.
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
const LONGEST_RETRY: Duration = Duration::from_secs(30 * 86_400);

/// Checks a callback address; the error is the reason why the bridge refuses it.
pub type Guard<'a> = &'a (dyn Fn(&Url) -> Result<(), String> + Sync);

/// Reads `callbackUrl` and `callback` of a dispatch. With a URL of `null` the settings are checked and dropped.
pub(super) fn read(dispatch: &Fields<'_>, guard: Guard<'_>) -> (Option<Callback>, Secrets) {
    let url = match dispatch.given("callbackUrl") {
        None => {
            let message = "is required; give null when no callback is wanted";
            dispatch.complain("callbackUrl", message);
            None
        }
        Some(Value::Null) => None,
        Some(Value::String(text)) => parse_url(text, guard, NO_CREDENTIALS)
            .map_err(|complaint| dispatch.complain("callbackUrl", complaint))
            .ok(),
        Some(other) => {
            let message = format!("must be a URL or null, not {}", describe(other));
            dispatch.complain("callbackUrl", message);
            None
        }
    };
    let settings = dispatch.object("callback");
    if let Some(settings) = &settings {
        spelling::warn(settings, spelling::CALLBACK);
    }
    let retry = settings.as_ref().map(read_retry).unwrap_or_default();
    let secrets = settings.as_ref().map(read_secrets).unwrap_or_default();
    match url {
        Some(url) => {
            let callback = Callback {
                origin: net::origin(&url),
                url: url.into(),
                retry,
            };
            (Some(callback), secrets)
        }
        None => (None, Secrets::default()),
    }
}

/// Parses an address that the bridge will connect to. `credentials` is the complaint about a user name or password in it.
pub(super) fn parse_url(text: &str, guard: Guard<'_>, credentials: &str) -> Result<Url, String> {
    if text.len() > URL_BYTES {
        return Err(format!("must have at most {URL_BYTES} bytes"));
    }
    // The parser would silently drop tabs and line ends, and trim.
    if text.contains(|c: char| is_unseen(c) || c.is_whitespace()) {
        return Err("must not contain spaces or characters that cannot be seen".into());
    }
    let mut url = Url::parse(text)
        .map_err(|error| format!("is not a URL such as https://host/path: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("must begin with http:// or https://".into());
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("must name a host".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(credentials.into());
    }
    url.set_fragment(None);
    guard(&url)?;
    Ok(url)
}

fn read_headers(settings: &Fields<'_>) -> BTreeMap<String, SecretString> {
    let Some(given) = settings.map("headers") else {
        return BTreeMap::new();
    };
    let complaints = settings.complaints();
    let path = settings.path("headers");
    if given.len() > HEADER_COUNT {
        complaints.add(&path, format!("must hold at most {HEADER_COUNT} headers"));
        return BTreeMap::new();
    }
    let mut headers = BTreeMap::new();
    for (name, value) in given {
        let field = format!("{path}.{name}");
        let Some(text) = value.as_str() else {
            complaints.add(field, format!("must be a string, not {}", describe(value)));
            continue;
        };
        let lower = name.to_ascii_lowercase();
        if let Some(complaint) = name_complaint(&lower).or_else(|| value_complaint(text)) {
            complaints.add(field, complaint);
        } else if headers.insert(lower, text.into()).is_some() {
            complaints.add(field, "is given twice");
        }
    }
    let bytes: usize = given
        .iter()
        .map(|(name, value)| name.len() + value.as_str().map_or(0, str::len))
        .sum();
    if bytes > HEADER_BYTES {
        complaints.add(&path, format!("must have at most {HEADER_BYTES} bytes"));
    }
    headers
}

/// Complaint about a lower-case header name; `None` if it is allowed.
fn name_complaint(name: &str) -> Option<&'static str> {
    const HOP_BY_HOP: [&str; 10] = [
        "connection",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    ];
    const OURS: [&str; 5] = [
        "expect",
        "host",
        "idempotency-key",
        "traceparent",
        "user-agent",
    ];
    const OUR_PREFIXES: [&str; 3] = ["content-", "webhook-", "x-forge-"];
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(token) {
        Some("is not a header name")
    } else if HOP_BY_HOP.contains(&name) {
        Some("is a hop-by-hop header and cannot be set")
    } else if OURS.contains(&name) || OUR_PREFIXES.iter().any(|p| name.starts_with(p)) {
        Some("is set by the bridge")
    } else if name == "authorization" {
        Some("is set from callback.bearer; give the token there")
    } else {
        None
    }
}

fn value_complaint(value: &str) -> Option<&'static str> {
    if value.contains(['\r', '\n']) {
        Some("must not contain line ends")
    } else if !value
        .bytes()
        .all(|b| b == b'\t' || (0x20..0x7f).contains(&b))
    {
        Some("must be visible ASCII")
    } else {
        None
    }
}

fn read_retry(settings: &Fields<'_>) -> Policy {
    match settings.value("retry") {
        None => Policy::Default,
        Some(Value::Object(_)) => {
            let Some(fields) = settings.object("retry") else {
                return Policy::Default;
            };
            spelling::warn(&fields, spelling::RETRY);
            if fields.required("maxElapsedSeconds").is_none() {
                return Policy::Default;
            }
            match fields.seconds("maxElapsedSeconds", LONGEST_RETRY) {
                Some(max_elapsed) => Policy::MaxElapsed(max_elapsed),
                // A complaint was added.
                None => Policy::Default,
            }
        }
        Some(Value::String(word)) if word == "default" => Policy::Default,
        Some(Value::String(word)) if word == "compat" => Policy::Compat,
        Some(_) => {
            let message = r#"must be "default", "compat" or {"maxElapsedSeconds": number}"#;
            settings.complain("retry", message);
            Policy::Default
        }
    }
}

fn read_secrets(settings: &Fields<'_>) -> Secrets {
    let bearer = settings.text("bearer").filter(|bearer| {
        let visible = bearer.bytes().all(|b| b.is_ascii_graphic());
        let good = visible && (1..=BEARER_BYTES).contains(&bearer.len());
        if !good {
            let message = format!("must be 1 to {BEARER_BYTES} visible ASCII characters");
            settings.complain("bearer", message);
        }
        good
    });
    let secret = settings.text("secret").filter(|secret| {
        let key = secret
            .strip_prefix("whsec_")
            .and_then(|key| STANDARD.decode(key).ok());
        let good = key.is_some_and(|key| SECRET_BYTES.contains(&key.len()));
        if !good {
            let message = format!(
                "must be whsec_ followed by the base64 of {} to {} bytes",
                SECRET_BYTES.start(),
                SECRET_BYTES.end()
            );
            settings.complain("secret", message);
        }
        good
    });
    Secrets {
        bearer: bearer.map(|bearer| bearer.to_owned().into()),
        secret: secret.map(|secret| secret.to_owned().into()),
        headers: read_headers(settings),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fields::Complaints;
    use super::*;

    fn read_body(body: &Value) -> (Option<Callback>, Secrets, Vec<String>) {
        let complaints = Complaints::default();
        let fields = Fields::read(body, "", &complaints).unwrap();
        let guard = |url: &Url| match url.host_str() {
            Some("10.0.0.1") => Err("is a private address".to_owned()),
            _ => Ok(()),
        };
        let (callback, secrets) = read(&fields, &guard);
        let fields = complaints.into_vec().into_iter().map(|e| e.field).collect();
        (callback, secrets, fields)
    }

    #[test]
    fn addresses_are_absolute_and_allowed() {
        for (url, origin) in [
            (
                "https://a.example/cb?x=1#frag",
                Some("https://a.example:443"),
            ),
            ("HTTP://A.example:8080", Some("http://a.example:8080")),
            ("http://[2001:db8::1]/", Some("http://[2001:db8::1]:80")),
            ("http://10.0.0.1/", None),
            ("http://0x0a000001/", None),
            ("ftp://a.example/", None),
            ("file:///etc/passwd", None),
            ("/relative", None),
            ("https://", None),
            ("https://user:pass@a.example/", None),
            ("https://a.example/\n", None),
            (" https://a.example/", None),
            ("", None),
        ] {
            let (callback, _, complaints) = read_body(&json!({"callbackUrl": url}));
            assert_eq!(callback.map(|c| c.origin).as_deref(), origin, "{url:?}");
            assert_eq!(complaints.is_empty(), origin.is_some(), "{url:?}");
        }
    }

    #[test]
    fn a_fragment_is_not_kept() {
        let (callback, _, _) = read_body(&json!({"callbackUrl": "https://a.example/cb#frag"}));
        assert_eq!(callback.unwrap().url, "https://a.example/cb");
    }

    #[test]
    fn a_callback_is_asked_for_or_declined() {
        for (body, complaints) in [
            (json!({"callbackUrl": null}), 0),
            (json!({"callback_url": null}), 0),
            (json!({"callback_url": "https://a.example"}), 0),
            (json!({}), 1),
            (json!({"callbackUrl": 5}), 1),
            (
                json!({"callbackUrl": "https://a.example", "callback_url": "https://b.example"}),
                1,
            ),
        ] {
            assert_eq!(read_body(&body).2.len(), complaints, "{body}");
        }
    }

    #[test]
    fn settings_are_checked() {
        let key = STANDARD.encode([7; 32]);
        let many: serde_json::Map<String, Value> =
            (0..21).map(|i| (format!("x-{i}"), json!("v"))).collect();
        for (settings, field) in [
            (json!({}), ""),
            (json!({"headers": {"X-Tenant": "a b"}}), ""),
            (
                json!({"headers": {"X-Tenant": "a\r\nb"}}),
                "headers.X-Tenant",
            ),
            (json!({"headers": {"X-Tenant": "ü"}}), "headers.X-Tenant"),
            (json!({"headers": {"X-Tenant": 5}}), "headers.X-Tenant"),
            (json!({"headers": {"X Tenant": "a"}}), "headers.X Tenant"),
            (json!({"headers": {"": "a"}}), "headers."),
            (json!({"headers": {"x-a": "1", "X-A": "1"}}), "headers.x-a"),
            (json!({"headers": {"Host": "a"}}), "headers.Host"),
            (
                json!({"headers": {"Connection": "a"}}),
                "headers.Connection",
            ),
            (
                json!({"headers": {"Transfer-Encoding": "a"}}),
                "headers.Transfer-Encoding",
            ),
            (
                json!({"headers": {"Content-Type": "a"}}),
                "headers.Content-Type",
            ),
            (
                json!({"headers": {"Webhook-Id": "a"}}),
                "headers.Webhook-Id",
            ),
            (
                json!({"headers": {"X-Forge-Any": "a"}}),
                "headers.X-Forge-Any",
            ),
            (
                json!({"headers": {"traceparent": "a"}}),
                "headers.traceparent",
            ),
            (
                json!({"headers": {"Authorization": "Basic a"}}),
                "headers.Authorization",
            ),
            (json!({"headers": many}), "headers"),
            (json!({"headers": {"x-a": "v".repeat(4096)}}), "headers"),
            (json!({"headers": []}), "headers"),
            (json!({"bearer": "token"}), ""),
            (json!({"bearer": ""}), "bearer"),
            (json!({"bearer": "two words"}), "bearer"),
            (json!({"bearer": 5}), "bearer"),
            (json!({"secret": format!("whsec_{key}")}), ""),
            (json!({"secret": key}), "secret"),
            (json!({"secret": "whsec_c2hvcnQ="}), "secret"),
            (json!({"secret": "whsec_?"}), "secret"),
            (json!({"retry": "default"}), ""),
            (json!({"retry": "compat"}), ""),
            (json!({"retry": {"maxElapsedSeconds": 60}}), ""),
            (json!({"retry": {"max_elapsed_seconds": 60}}), ""),
            (json!({"retry": {}}), "retry.maxElapsedSeconds"),
            (
                json!({"retry": {"maxElapsedSeconds": 0}}),
                "retry.maxElapsedSeconds",
            ),
            (json!({"retry": "never"}), "retry"),
            (json!({"retry": 3}), "retry"),
        ] {
            let body = json!({"callbackUrl": "https://a.example", "callback": settings});
            let (_, _, complaints) = read_body(&body);
            let expected: Vec<String> = match field {
                "" => Vec::new(),
                field => vec![format!("callback.{field}")],
            };
            assert_eq!(complaints, expected, "{settings}");
        }
    }

    #[test]
    fn the_settings_must_be_an_object() {
        let body = json!({"callbackUrl": "https://a.example", "callback": "fast"});
        assert_eq!(read_body(&body).2, ["callback"]);
    }

    #[test]
    fn secrets_are_not_part_of_the_callback() {
        let secret = format!("whsec_{}", STANDARD.encode([7; 32]));
        let body = json!({
            "callbackUrl": "https://a.example",
            "callback": {"bearer": "token-1", "secret": secret, "headers": {"X-A": "hush"}},
        });
        let (callback, secrets, _) = read_body(&body);
        let stored = serde_json::to_string(&callback).unwrap();
        for word in ["token-1", &secret, "hush"] {
            assert!(!stored.contains(word), "{stored}");
        }
        assert!(secrets.bearer.is_some() && secrets.secret.is_some());
        assert!(secrets.headers.contains_key("x-a"));
    }
}
