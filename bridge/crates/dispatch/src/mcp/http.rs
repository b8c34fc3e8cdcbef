//! MCP server at a URL, called through the bridge's guarded client.

use std::collections::{BTreeMap, HashMap};

use reqwest::header::{HeaderName, HeaderValue};
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
};
use secrecy::{ExposeSecret, SecretString};
use url::Url;

use forge_net as net;
use forge_net::guard::Refused;

/// Headers that the protocol sets itself.
const RESERVED: [&str; 7] = [
    "accept",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-protocol-version",
    "mcp-session-id",
];

/// URL and headers of a server.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    url: Url,
    headers: HashMap<HeaderName, HeaderValue>,
}

impl Remote {
    pub(super) fn new(url: Url, headers: &BTreeMap<String, SecretString>) -> Result<Self, String> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!(
                "url: only http and https are supported, not {}",
                url.scheme()
            ));
        }
        let mut read = HashMap::new();
        for (name, value) in headers {
            let unfit = || format!("header {name:?} has an invalid name or value");
            let header: HeaderName = name.parse().map_err(|_| unfit())?;
            let mut value = HeaderValue::from_str(value.expose_secret()).map_err(|_| unfit())?;
            value.set_sensitive(true);
            if RESERVED.contains(&header.as_str()) {
                return Err(format!("header {name:?} is reserved by the protocol"));
            }
            read.insert(header, value);
        }
        Ok(Self { url, headers: read })
    }

    /// Creates the transport; sends nothing yet. The library sets no timeout, so the caller has to.
    pub(super) fn transport(
        &self,
        client: &net::Client,
        traceparent: Option<&str>,
    ) -> Result<StreamableHttpClientTransport<reqwest::Client>, Refused> {
        let client = client.for_streams(&self.url)?;
        let mut headers = self.headers.clone();
        let trace = traceparent.and_then(|trace| HeaderValue::from_str(trace).ok());
        if let Some(trace) = trace {
            let name = HeaderName::from_static("traceparent");
            headers.entry(name).or_insert(trace);
        }
        let config = StreamableHttpClientTransportConfig::with_uri(self.url.as_str())
            .custom_headers(headers);
        Ok(StreamableHttpClientTransport::with_client(client, config))
    }
}
