//! Client of the registry: `POST <url>` registers, `DELETE <url>/<gatewayId>?instanceId=<id>` removes the
//! registration made by that instance. The second is this project's own convention; no document defines it.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{
    AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER, USER_AGENT,
};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use forge_net::guard::Guard;
use forge_net::{self as net, Client, Outgoing, SendError, backoff};

use super::entry::Entry;
use super::{Config, Error};

const AGENT: &str = concat!("forge-bridge/", env!("CARGO_PKG_VERSION"));

/// Registry URL with its client and headers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Endpoint {
    url: Url,
    headers: HeaderMap,
    client: Client,
    timeout: Duration,
}

/// Answer of the registry to one request.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    Done,
    /// Rejected with this status; a retry will not help until a setting changes.
    Refused(u16),
    /// Temporarily unavailable; `retry_after` is from the `Retry-After` header.
    Away {
        why: String,
        retry_after: Option<Duration>,
    },
}

impl Endpoint {
    /// Returns `None` if no URL is configured. `listen` is the public address if `public_url` is absent.
    pub fn open(
        config: &Config,
        listen: SocketAddr,
        net: &net::Config,
    ) -> Result<Option<Self>, Error> {
        let Some(url) = &config.url else {
            return Ok(None);
        };
        let url = callable(url).ok_or(Error::MalformedUrl)?;
        match &config.public_url {
            Some(public) => drop(callable(public).ok_or(Error::MalformedPublicUrl)?),
            None if listen.ip().is_unspecified() => return Err(Error::PublicUrl(listen)),
            None => {}
        }
        let texts = [
            ("gateway_id", config.gateway_id.as_deref()),
            ("name", Some(config.name.as_str())),
            ("environment", Some(config.environment.as_str())),
        ];
        for (key, text) in texts {
            if text.is_some_and(|text| text.trim().is_empty()) {
                return Err(Error::Empty(key));
            }
        }
        for (key, time) in [("every", config.every), ("timeout", config.timeout)] {
            if time.is_zero() {
                return Err(Error::NoTime(key));
            }
        }
        let mut headers = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(AGENT))]);
        if let Some(token) = &config.token {
            headers.insert(AUTHORIZATION, bearer(token)?);
        }
        // The operator configured this host, so this client may call it. URLs in dispatches are still checked
        // against `callback.allow` alone.
        let guard = Guard::new(&[host_and_port(&url)]).map_err(Error::Host)?;
        Ok(Some(Self {
            client: Client::new(net, guard).map_err(Error::Client)?,
            timeout: config.timeout,
            headers,
            url,
        }))
    }

    /// Origin for logs: the rest of the URL might contain a token.
    pub(super) fn origin(&self) -> String {
        net::origin(&self.url)
    }

    pub(super) async fn register(&self, entry: &Entry) -> Reply {
        let body = serde_json::to_vec(entry).expect("an entry is plain data and serialises");
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = self.client.send(Outgoing {
            method: Method::POST,
            url: self.url.clone(),
            headers,
            body: body.into(),
            timeout: self.timeout,
            answer_bytes: net::ANSWER_BYTES,
        });
        match answer.await {
            Ok(answer) => reply(answer.status, retry_after(&answer.headers)),
            Err(error) => away(&error),
        }
    }

    /// Removes a registration. Returns `Done` also if this instance has none left.
    pub(super) async fn deregister(&self, gateway: &str, instance: &str, limit: Duration) -> Reply {
        let answer = self.client.send(Outgoing {
            method: Method::DELETE,
            url: registration(&self.url, gateway, instance),
            headers: self.headers.clone(),
            body: Bytes::new(),
            timeout: limit.min(self.timeout),
            answer_bytes: net::ANSWER_BYTES,
        });
        match answer.await {
            // Unknown, or owned by another instance by now.
            Ok(answer) if matches!(answer.status, 404 | 409 | 410 | 412) => Reply::Done,
            Ok(answer) => reply(answer.status, retry_after(&answer.headers)),
            Err(error) => away(&error),
        }
    }
}

fn callable(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let plain = url.username().is_empty() && url.password().is_none();
    (plain && matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
}

/// Host and port in the guard's syntax; an IPv6 address keeps its brackets.
fn host_and_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port_or_known_default().unwrap_or_default();
    format!("{host}:{port}")
}

fn bearer(token: &SecretString) -> Result<HeaderValue, Error> {
    let token = token.expose_secret().trim();
    if token.is_empty() {
        return Err(Error::MalformedToken);
    }
    let mut value =
        HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| Error::MalformedToken)?;
    value.set_sensitive(true);
    Ok(value)
}

fn registration(url: &Url, gateway: &str, instance: &str) -> Url {
    let mut url = url.clone();
    url.path_segments_mut()
        .expect("an http URL has a path")
        .pop_if_empty()
        .push(gateway);
    url.query_pairs_mut().append_pair("instanceId", instance);
    url
}

fn reply(status: u16, retry_after: Option<Duration>) -> Reply {
    match status {
        200..=299 => Reply::Done,
        408 | 425 | 429 | 500..=599 => Reply::Away {
            why: format!("it answered {status}"),
            retry_after,
        },
        _ => Reply::Refused(status),
    }
}

fn away(error: &SendError) -> Reply {
    Reply::Away {
        why: error.to_string(),
        retry_after: None,
    }
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    backoff::retry_after(value, jiff::Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTEN: &str = "127.0.0.1:7420";

    fn open(config: &Config, listen: &str) -> Result<Option<Endpoint>, Error> {
        Endpoint::open(config, listen.parse().unwrap(), &net::Config::default())
    }

    fn config(url: &str) -> Config {
        Config {
            url: Some(url.into()),
            ..Config::default()
        }
    }

    #[test]
    fn without_a_url_nothing_is_registered() {
        assert!(matches!(open(&Config::default(), "0.0.0.0:1"), Ok(None)));
    }

    #[test]
    fn the_registry_may_be_anywhere_and_nothing_else_with_it() {
        for (url, other) in [
            ("http://10.0.0.1/r", "http://10.0.0.2/r"),
            ("http://127.0.0.1:99/r", "http://127.0.0.1:98/r"),
            ("http://[::1]:99/r", "http://[::1]:98/r"),
            ("http://localhost:99/r", "http://localhost:98/r"),
        ] {
            let endpoint = open(&config(url), LISTEN).unwrap().unwrap();
            let guard = endpoint.client.guard();
            assert_eq!(guard.check_url(&endpoint.url), Ok(()), "{url}");
            assert!(
                guard.check_url(&Url::parse(other).unwrap()).is_err(),
                "{other}"
            );
        }
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_key() {
        let good = || config("https://registry.example/gateways");
        let table = [
            (config("registry.example"), LISTEN, "registration.url"),
            (config("ftp://registry.example"), LISTEN, "registration.url"),
            (
                config("http://a:b@registry.example"),
                LISTEN,
                "registration.url",
            ),
            (
                Config {
                    public_url: Some("bridge".into()),
                    ..good()
                },
                LISTEN,
                "registration.public_url",
            ),
            (good(), "0.0.0.0:7420", "set registration.public_url"),
            (
                Config {
                    token: Some("a\nb".into()),
                    ..good()
                },
                LISTEN,
                "registration.token",
            ),
            (
                Config {
                    gateway_id: Some(" ".into()),
                    ..good()
                },
                LISTEN,
                "registration.gateway_id",
            ),
            (
                Config {
                    every: Duration::ZERO,
                    ..good()
                },
                LISTEN,
                "registration.every",
            ),
        ];
        for (config, listen, wanted) in table {
            let error = open(&config, listen).unwrap_err().to_string();
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
    }

    #[test]
    fn a_registration_is_named_by_its_gateway_and_guarded_by_its_instance() {
        for (url, gateway, expected) in [
            (
                "http://r.example/g",
                "a",
                "http://r.example/g/a?instanceId=i",
            ),
            (
                "http://r.example/g/",
                "a",
                "http://r.example/g/a?instanceId=i",
            ),
            (
                "http://r.example",
                "a:echo",
                "http://r.example/a:echo?instanceId=i",
            ),
            (
                "http://r.example/g",
                "a/../b",
                "http://r.example/g/a%2F..%2Fb?instanceId=i",
            ),
            (
                "http://r.example/g?k=1",
                "a",
                "http://r.example/g/a?k=1&instanceId=i",
            ),
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!(registration(&url, gateway, "i").as_str(), expected);
        }
    }

    #[test]
    fn an_answer_is_done_refused_or_worth_another_try() {
        for (status, expected) in [
            (200, "done"),
            (204, "done"),
            (302, "refused"),
            (400, "refused"),
            (401, "refused"),
            (409, "refused"),
            (429, "away"),
            (500, "away"),
            (503, "away"),
        ] {
            let found = match reply(status, None) {
                Reply::Done => "done",
                Reply::Refused(_) => "refused",
                Reply::Away { .. } => "away",
            };
            assert_eq!(found, expected, "{status}");
        }
    }
}
