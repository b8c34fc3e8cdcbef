//! Host and origin checks against attacks through a browser: requests under a rebound host name and from foreign
//! pages are refused, those from allowed pages pass.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header};
use axum::response::{IntoResponse, Response};

use super::error::{Code, Failure};
use super::{Config, agent, external};

/// Probe routes, exempt from the host check: probes call by address, and the answers hold nothing sensitive.
const PROBES: [&str; 3] = ["/api/health", "/api/health/live", "/api/health/ready"];
const METHODS: &str = "GET, POST, PUT, DELETE";
const HEADERS: &str = "Content-Type, Authorization, Idempotency-Key, Last-Event-ID";
const EXPOSED: &str = "Location, Retry-After, X-Request-Id";
/// The same for calls of external services: identity and credentials of the caller, and its trace.
const CALL_HEADERS: &str = "Content-Type, Authorization, Idempotency-Key, Last-Event-ID, Traceparent, \
     X-Forge-Forward-Authorization, X-Forge-User-Id, X-Forge-Tenant-Id, X-Forge-Role, X-Forge-Roles, \
     X-Forge-Permissions, X-Forge-Claims, X-Forge-Organization-Id, X-Forge-Organization-Membership-Id";
const CALL_EXPOSED: &str = "Location, Retry-After, X-Request-Id, X-Forge-Trace-Id";

/// Host and origin rules of one listener.
#[derive(Debug)]
pub struct OriginRules {
    pub config: Arc<Config>,
    pub listen: SocketAddr,
    pub pages: Pages,
}

/// Pages that may call a listener without being named in `http.origins`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Pages of `localhost` and of the listener itself; none for the routes of the local agent.
    Local,
    /// None.
    Named,
}

/// Mark of a probe under a host name that is not served: a page of a rebound name can read the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForeignHost;

impl OriginRules {
    /// True if requests under this host are served; one without a host is no browser's.
    fn serves(&self, host: Option<&str>) -> bool {
        let Some(host) = host else {
            return true;
        };
        let mut names = self.config.hosts.iter();
        let named = names.any(|name| name.eq_ignore_ascii_case(host));
        if self.listen.ip().is_loopback() {
            named || is_local(host)
        } else {
            named || self.config.hosts.is_empty()
        }
    }

    fn check_origin(&self, origin: &str, headers: &HeaderMap, path: &str) -> Result<(), Failure> {
        let configured = self.config.origins.iter().any(|allowed| allowed == origin);
        let admits_local = self.pages == Pages::Local && !agent::ON_BOTH.contains(&path);
        let is_local = || is_localhost(origin) || is_own(origin, headers);
        if configured || (admits_local && is_local()) {
            return Ok(());
        }
        let message = format!("the origin {origin:?} is not allowed; add it to http.origins");
        Err(Failure::new(Code::Forbidden, message))
    }
}

/// Checks host and origin before the request is read, answers preflights, and adds CORS headers to the response.
pub(super) async fn guard<F: Future<Output = Response>>(
    rules: &OriginRules,
    mut request: Request,
    next: impl FnOnce(Request) -> F,
) -> Response {
    let host = match host(&request) {
        Ok(host) => host,
        Err(failure) => return failure.into_response(),
    };
    let host = host.as_ref().map(Authority::host);
    if !rules.serves(host) {
        if !PROBES.contains(&request.uri().path()) {
            let host = host.unwrap_or_default();
            let message = format!("the host {host:?} is not served here; add it to http.hosts");
            return Failure::new(Code::Forbidden, message).into_response();
        }
        request.extensions_mut().insert(ForeignHost);
    }
    let headers = request.headers();
    let Some(origin) = headers.get(header::ORIGIN).cloned() else {
        return next(request).await;
    };
    let text = String::from_utf8_lossy(origin.as_bytes());
    if let Err(failure) = rules.check_origin(&text, headers, request.uri().path()) {
        return failure.into_response();
    }
    let preflight = request.method() == Method::OPTIONS
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let (accepted, exposed) = match external::is_call(&request) {
        true => (CALL_HEADERS, CALL_EXPOSED),
        false => (HEADERS, EXPOSED),
    };
    let mut response = if preflight {
        preflight_answer(accepted)
    } else {
        next(request).await
    };
    let answer = response.headers_mut();
    answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    answer.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(exposed),
    );
    answer.append(header::VARY, HeaderValue::from_static("Origin"));
    response
}

fn preflight_answer(accepted: &'static str) -> Response {
    let headers = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, METHODS),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, accepted),
        (header::ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// Host that the request addresses, with its port; `None` only for HTTP/1.0. Fails unless it is given exactly once and
/// without credentials, because programs in front of the bridge would disagree on which one counts.
fn host<B>(request: &hyper::Request<B>) -> Result<Option<Authority>, Failure> {
    let wrong = |message| Failure::field("Host", message);
    let mut given = request.headers().get_all(header::HOST).iter();
    let header = match (given.next(), given.next()) {
        (None, _) if request.version() == Version::HTTP_10 => None,
        (None, _) => return Err(wrong("the header is required")),
        (Some(_), Some(_)) => return Err(wrong("the header must be given once")),
        (Some(host), None) => {
            let read = Authority::try_from(host.as_bytes());
            Some(read.map_err(|_| wrong("the header must be a host or host:port"))?)
        }
    };
    let target = request.uri().authority();
    if [header.as_ref(), target]
        .into_iter()
        .flatten()
        .any(|host| host.as_str().contains('@'))
    {
        return Err(wrong("the host must not contain credentials"));
    }
    Ok(target.cloned().or(header))
}

/// True for a request to a local name or address; also without a host.
pub(super) fn is_for_this_machine<B>(request: &hyper::Request<B>) -> bool {
    let host = host(request).ok().flatten();
    host.is_none_or(|host| is_local(host.host()))
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
            pages: Pages::Local,
        }
    }

    fn with(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn a_rebound_name_is_not_served_on_loopback() {
        let local = rules("127.0.0.1:7420", &["bridge.test"]);
        let open = rules("0.0.0.0:7420", &[]);
        let named = rules("0.0.0.0:7420", &["bridge.test"]);
        for (host, on_local, on_open, on_named) in [
            (Some("localhost"), true, true, false),
            (Some("LOCALHOST"), true, true, false),
            (Some("127.0.0.1"), true, true, false),
            (Some("[::1]"), true, true, false),
            (Some("bridge.test"), true, true, true),
            (Some("evil.example"), false, true, false),
            (Some("localhost.evil.example"), false, true, false),
            (Some("192.168.0.1"), false, true, false),
            (None, true, true, true),
        ] {
            for (rules, expected) in [(&local, on_local), (&open, on_open), (&named, on_named)] {
                assert_eq!(rules.serves(host), expected, "{host:?} on {}", rules.listen);
            }
        }
    }

    #[test]
    fn a_host_is_given_once_and_without_credentials() {
        for (version, target, hosts, expected) in [
            (
                Version::HTTP_11,
                "/",
                vec!["localhost:7420"],
                Ok(Some("localhost")),
            ),
            (Version::HTTP_11, "/", vec!["[::1]:7420"], Ok(Some("[::1]"))),
            (Version::HTTP_11, "/", vec![], Err(())),
            (Version::HTTP_10, "/", vec![], Ok(None)),
            (
                Version::HTTP_11,
                "/",
                vec!["localhost", "localhost"],
                Err(()),
            ),
            (
                Version::HTTP_10,
                "/",
                vec!["localhost", "evil.example"],
                Err(()),
            ),
            (Version::HTTP_11, "/", vec!["user@localhost"], Err(())),
            (
                Version::HTTP_11,
                "/",
                vec!["evil.example:80@localhost"],
                Err(()),
            ),
            (Version::HTTP_11, "/", vec!["a b"], Err(())),
            (Version::HTTP_11, "/", vec![""], Err(())),
            (
                Version::HTTP_11,
                "http://evil.example/",
                vec!["localhost"],
                Ok(Some("evil.example")),
            ),
            (Version::HTTP_11, "http://evil.example/", vec![], Err(())),
            (
                Version::HTTP_11,
                "http://user@localhost/",
                vec!["localhost"],
                Err(()),
            ),
        ] {
            let mut request = Request::builder().version(version).uri(target);
            for host in &hosts {
                request = request.header(header::HOST, *host);
            }
            let request = request.body(axum::body::Body::empty()).unwrap();
            let read = host(&request);
            let read = read.as_ref().map(|host| host.as_ref().map(Authority::host));
            assert_eq!(read.map_err(drop), expected, "{target} {hosts:?}");
        }
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
            let answer = rules.check_origin(origin, &headers, "/api/v2/dispatch");
            assert_eq!(answer.is_ok(), allowed, "{origin}");
            let of_agent = rules.check_origin(origin, &headers, "/emit");
            let is_named = origin == "https://app.example";
            assert_eq!(
                of_agent.is_ok(),
                is_named,
                "{origin} on a route of the agent"
            );
        }
    }
}
