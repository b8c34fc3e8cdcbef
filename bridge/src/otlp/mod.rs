//! Exports traces to a collector: OTLP over HTTP as protobuf, in batches. While the collector is unavailable spans
//! are dropped and counted; dispatches neither wait nor use more memory. Independent of the meaning of the spans.

mod encode;
mod worker;

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

use forge_base::trace::{QueuedSpans, Spans};
use forge_net::guard::{BadRule, Guard};
use forge_net::{self as net, Client};

use encode::Source;

/// Path of the trace endpoint below the collector's address.
const PATH: &str = "/v1/traces";

/// Export of traces. The OpenTelemetry variables named with the keys apply where neither the file nor a variable of
/// the bridge sets a value.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Address of the collector; `/v1/traces` is appended unless present. `None` disables tracing.
    pub endpoint: Option<String>,
    /// `name=value` each, sent with every request.
    #[serde(with = "forge_base::secret::list")]
    pub headers: Vec<SecretString>,
    pub service_name: String,
    /// Further resource attributes, `name=value` each.
    pub resource: Vec<String>,
    /// Share, from 0 to 1, of the traces that begin here to record. A trace continued from a caller is recorded if
    /// the caller set its sampled flag.
    pub sample_ratio: f64,
    /// Limit for one request.
    #[serde(with = "forge_base::duration")]
    pub timeout: Duration,
    /// Longest wait of a span for others to share a request with.
    #[serde(with = "forge_base::duration")]
    pub every: Duration,
    /// Bound of the queue; spans beyond it are dropped and counted.
    pub queue_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            endpoint: None,
            headers: Vec::new(),
            service_name: "forge-bridge".to_owned(),
            resource: Vec::new(),
            sample_ratio: 1.0,
            timeout: Duration::from_secs(10),
            every: Duration::from_secs(1),
            queue_bytes: 4 << 20,
        }
    }
}

/// Reason why traces cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "otlp.endpoint is not an http(s) URL without credentials, such as http://127.0.0.1:4318"
    )]
    MalformedEndpoint,
    #[error("otlp.headers[{0}] is not name=value")]
    MalformedHeader(usize),
    #[error("otlp.resource[{0}] is not name=value")]
    MalformedAttribute(usize),
    #[error("otlp.sample_ratio is not a number from 0 to 1")]
    NoRatio,
    #[error("otlp.timeout and otlp.every must be greater than zero")]
    NoTime,
    #[error("otlp.endpoint has a host that cannot be called")]
    Host(#[source] BadRule),
    #[error("the HTTP client for otlp.endpoint could not be built")]
    Client(#[source] net::Error),
}

/// Sends the spans that are put into its `Spans`.
#[derive(Debug)]
pub struct Exporter {
    url: Url,
    headers: HeaderMap,
    client: Client,
    timeout: Duration,
    every: Duration,
    source: Source,
    waiting: QueuedSpans,
}

impl Exporter {
    /// Returns the handle for recording spans, and the exporter if an endpoint is configured.
    pub fn open(
        config: &Config,
        net: &net::Config,
        instance: &str,
    ) -> Result<(Spans, Option<Self>), Error> {
        let Some(endpoint) = &config.endpoint else {
            return Ok((Spans::default(), None));
        };
        let url = address(endpoint).ok_or(Error::MalformedEndpoint)?;
        if config.timeout.is_zero() || config.every.is_zero() {
            return Err(Error::NoTime);
        }
        if !(0.0..=1.0).contains(&config.sample_ratio) {
            return Err(Error::NoRatio);
        }
        let resource = config.resource.iter().enumerate();
        let resource = resource
            .map(|(at, text)| pair(text).ok_or(Error::MalformedAttribute(at)))
            .collect::<Result<_, _>>()?;
        // By configuring this host the operator allows it; this client calls no other.
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        let guard = Guard::new(&[format!("{host}:{port}")]).map_err(Error::Host)?;
        let (spans, waiting) = Spans::bounded(config.queue_bytes, config.sample_ratio);
        let exporter = Self {
            client: Client::new(net, guard).map_err(Error::Client)?,
            headers: headers(&config.headers)?,
            timeout: config.timeout,
            every: config.every,
            source: Source {
                service: config.service_name.clone(),
                instance: instance.to_owned(),
                resource,
            },
            waiting,
            url,
        };
        Ok((spans, Some(exporter)))
    }
}

fn address(text: &str) -> Option<Url> {
    let mut url = Url::parse(text.trim()).ok()?;
    let plain = url.username().is_empty() && url.password().is_none();
    let usable = plain && matches!(url.scheme(), "http" | "https") && url.has_host();
    let path = url.path().trim_end_matches('/').to_owned();
    if !path.ends_with(PATH) {
        url.set_path(&format!("{path}{PATH}"));
    }
    usable.then_some(url)
}

fn pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    let (name, value) = (name.trim(), value.trim());
    (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
}

fn headers(texts: &[SecretString]) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    for (at, text) in texts.iter().enumerate() {
        let malformed = || Error::MalformedHeader(at);
        let (name, value) = pair(text.expose_secret()).ok_or_else(malformed)?;
        let name = HeaderName::try_from(name).map_err(|_| malformed())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| malformed())?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(config: &Config) -> Result<(Spans, Option<Exporter>), Error> {
        Exporter::open(config, &net::Config::default(), "instance")
    }

    #[test]
    fn the_path_is_added_where_it_is_missing() {
        for (endpoint, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("https://c.example/otlp", "https://c.example/otlp/v1/traces"),
            ("https://c.example/v1/traces", "https://c.example/v1/traces"),
        ] {
            let config = Config {
                endpoint: Some(endpoint.to_owned()),
                ..Config::default()
            };
            let (_, exporter) = open(&config).unwrap();
            assert_eq!(exporter.unwrap().url.as_str(), expected);
        }
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_key() {
        let good = || Config {
            endpoint: Some("http://127.0.0.1:4318".to_owned()),
            ..Config::default()
        };
        let cases = [
            Config {
                endpoint: Some("localhost:4318".to_owned()),
                ..good()
            },
            Config {
                endpoint: Some("http://user:hush@host".to_owned()),
                ..good()
            },
            Config {
                headers: vec!["hush".to_owned().into()],
                ..good()
            },
            Config {
                resource: vec!["=a".to_owned()],
                ..good()
            },
            Config {
                every: Duration::ZERO,
                ..good()
            },
            Config {
                sample_ratio: 1.5,
                ..good()
            },
        ];
        for config in cases {
            let error = open(&config).unwrap_err().to_string();
            assert!(
                error.contains("otlp.") && !error.contains("hush"),
                "{error}"
            );
        }
        assert!(open(&Config::default()).unwrap().1.is_none());
    }
}
