//! Host and origin checks against attacks through a browser: requests under a rebound host name and from foreign
//! pages are refused, those from allowed pages pass.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Config;
use super::error::{Code, Failure};

/// Probe routes, exempt from the host check: probes call by address, and the answers hold nothing sensitive.
const PROBES: [&str; 3] = ["/api/health", "/api/health/live", "/api/health/ready"];
const METHODS: &str = "GET, POST, PUT, DELETE";
const HEADERS: &str = "Content-Type, Authorization, Idempotency-Key, Last-Event-ID";
const EXPOSED: &str = "Location, Retry-After, X-Request-Id";

/// Host and origin rules of one listener.
#[derive(Debug)]
pub struct OriginRules {
    pub config: Arc<Config>,
    pub listen: SocketAddr,
}

impl OriginRules {
    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Failure> {
        let Some(host) = host(uri, headers) else {
            return Ok(());
        };
        let named = self
            .config
            .hosts
            .iter()
            .any(|name| name.eq_ignore_ascii_case(&host));
        let allowed = if self.listen.ip().is_loopback() {
            named || is_local(&host)
        } else {
            named || self.config.hosts.is_empty()
        };
        if allowed || PROBES.contains(&uri.path()) {
            return Ok(());
        }
        let message = format!("the host {host:?} is not served here; add it to http.hosts");
        Err(Failure::new(Code::Forbidden, message))
    }

    fn check_origin(&self, origin: &str, headers: &HeaderMap) -> Result<(), Failure> {
        let configured = self.config.origins.iter().any(|allowed| allowed == origin);
        if configured || is_localhost(origin) || is_own(origin, headers) {
            return Ok(());
        }
        let message = format!("the origin {origin:?} is not allowed; add it to http.origins");
        Err(Failure::new(Code::Forbidden, message))
    }
}

/// Checks host and origin before the request is read, answers preflights, and adds CORS headers to the response.
pub async fn guard(rules: &OriginRules, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if let Err(failure) = rules.check_host(request.uri(), headers) {
        return failure.into_response();
    }
    let Some(origin) = headers.get(header::ORIGIN).cloned() else {
        return next.run(request).await;
    };
    let text = String::from_utf8_lossy(origin.as_bytes());
    if let Err(failure) = rules.check_origin(&text, headers) {
        return failure.into_response();
    }
    let preflight = request.method() == Method::OPTIONS
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if preflight {
        preflight_answer()
    } else {
        next.run(request).await
    };
    let answer = response.headers_mut();
    answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    answer.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(EXPOSED),
    );
    answer.append(header::VARY, HeaderValue::from_static("Origin"));
    response
}

fn preflight_answer() -> Response {
    let headers = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// Host name that the request addresses, without the port.
fn host(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let authority = match uri.authority() {
        Some(authority) => Some(authority.clone()),
        None => {
            let header = headers.get(header::HOST)?;
            Authority::try_from(header.as_bytes()).ok()
        }
    };
    // An unreadable host must not match any served name.
    Some(authority.map_or_else(|| "?".to_owned(), |authority| authority.host().to_owned()))
}

fn is_local(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || bare
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// `^https?://localhost(:\d+)?$`
fn is_localhost(origin: &str) -> bool {
    let rest = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"))
        .and_then(|rest| rest.strip_prefix("localhost"));
    match rest {
        None => false,
        Some("") => true,
        Some(port) => port
            .strip_prefix(':')
            .is_some_and(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit())),
    }
}

/// True if the origin has the host and port that the request addresses.
fn is_own(origin: &str, headers: &HeaderMap) -> bool {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let called = origin.split_once("://").map(|(_, authority)| authority);
    host.is_some() && host == called
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(listen: &str, hosts: &[&str]) -> OriginRules {
        let config = Config {
            hosts: hosts.iter().map(ToString::to_string).collect(),
            origins: vec!["https://app.example".to_owned()],
            ..Config::default()
        };
        OriginRules {
            config: Arc::new(config),
            listen: listen.parse().unwrap(),
        }
    }

    fn with(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn a_rebound_name_is_refused_on_loopback() {
        let local = rules("127.0.0.1:7420", &["bridge.test"]);
        let open = rules("0.0.0.0:7420", &[]);
        let named = rules("0.0.0.0:7420", &["bridge.test"]);
        for (host, on_local, on_open, on_named) in [
            ("localhost", true, true, false),
            ("LOCALHOST:7420", true, true, false),
            ("127.0.0.1:7420", true, true, false),
            ("[::1]:7420", true, true, false),
            ("bridge.test:7420", true, true, true),
            ("evil.example", false, true, false),
            ("localhost.evil.example", false, true, false),
            ("192.168.0.1", false, true, false),
            ("a b", false, true, false),
        ] {
            let headers = with(header::HOST, host);
            let uri = Uri::from_static("/api/v2/dispatches");
            for (rules, expected) in [(&local, on_local), (&open, on_open), (&named, on_named)] {
                let allowed = rules.check_host(&uri, &headers).is_ok();
                assert_eq!(allowed, expected, "{host} on {}", rules.listen);
            }
            let probe = Uri::from_static("/api/health/live");
            assert!(local.check_host(&probe, &headers).is_ok(), "{host}");
        }
        let absolute = Uri::from_static("http://evil.example/api/v2/dispatches");
        let headers = with(header::HOST, "localhost");
        assert!(local.check_host(&absolute, &headers).is_err());
    }

    #[test]
    fn a_foreign_page_is_refused() {
        let rules = rules("127.0.0.1:7420", &[]);
        let headers = with(header::HOST, "127.0.0.1:7420");
        for (origin, allowed) in [
            ("http://localhost", true),
            ("https://localhost:3000", true),
            ("https://app.example", true),
            ("http://127.0.0.1:7420", true),
            ("http://127.0.0.1:3000", false),
            ("http://localhost:", false),
            ("http://localhost:3000.evil.example", false),
            ("http://localhost.evil.example", false),
            ("https://evil.example", false),
            ("ftp://localhost", false),
            ("null", false),
            ("", false),
        ] {
            let answer = rules.check_origin(origin, &headers).is_ok();
            assert_eq!(answer, allowed, "{origin}");
        }
    }
}
