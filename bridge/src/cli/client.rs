//! Small client of the bridge's HTTP API.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use url::Url;

const CONNECT: Duration = Duration::from_secs(5);
/// Time limit of a request; longer than the longest `?wait`.
const ANSWER: Duration = Duration::from_secs(90);
/// Read timeout: three heartbeats of a stream.
const SILENCE: Duration = Duration::from_secs(45);
/// Size limit of an answer that is not a stream.
const LONGEST_ANSWER_BYTES: usize = 64 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{url:?} is not an address such as http://127.0.0.1:7420")]
    Address { url: String },
    #[error("{} contains no usable PEM certificate", .0.display())]
    Authority(PathBuf),
    #[error(
        "the token (--token, BRIDGE_TOKEN) has a space, line end or other character that no token has, at place {place}"
    )]
    Token { place: usize },
    #[error("cannot set up an HTTP client")]
    Build(#[source] reqwest::Error),
    #[error("cannot reach the bridge at {url}; is it running? (`forge-bridge dev` starts one)")]
    Unreachable {
        url: Url,
        #[source]
        source: reqwest::Error,
    },
    #[error("the bridge answered {status}: {refusal}")]
    Refused {
        status: StatusCode,
        refusal: Refusal,
    },
    #[error("cannot read the answer of {url}; is it a forge-bridge?")]
    Unreadable { url: Url },
}

impl Error {
    /// Code with which the bridge refused a request, such as `NOT_FOUND`.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { refusal, .. } => refusal.body["code"].as_str(),
            _ => None,
        }
    }
}

/// Error envelope of the HTTP API.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) body: Value,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |name: &str| self.body.get(name).and_then(Value::as_str);
        write!(f, "{}", text("error").unwrap_or("no reason given"))?;
        if let Some(code) = text("code") {
            write!(f, " ({code})")?;
        }
        let details = self.body.get("details").and_then(Value::as_array);
        for detail in details.into_iter().flatten() {
            let part = |name: &str| detail.get(name).and_then(Value::as_str);
            if let (Some(field), Some(message)) = (part("field"), part("message")) {
                write!(f, "\n  {field}: {message}")?;
            }
        }
        match text("requestId") {
            Some(id) => write!(f, "\n  request {id}"),
            None => Ok(()),
        }
    }
}

/// HTTP client of one bridge. Cheap to clone.
#[derive(Clone)]
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<SecretString>,
}

/// Path and query of a request. The path is a list of segments, so that an id with a slash stays one segment.
pub(super) struct Target<'a> {
    pub(super) path: &'a [&'a str],
    pub(super) query: &'a [(&'a str, &'a str)],
}

impl<'a> Target<'a> {
    pub(super) fn path(path: &'a [&'a str]) -> Self {
        Self { path, query: &[] }
    }
}

impl Client {
    pub(super) fn new(url: &str, token: Option<String>) -> Result<Self, Error> {
        Self::trusting(url, token, None)
    }

    /// Creates a client that trusts the system's certificate authorities or, with a file, only those in it.
    pub(super) fn trusting(
        url: &str,
        token: Option<String>,
        authorities: Option<&Path>,
    ) -> Result<Self, Error> {
        let address = || Error::Address {
            url: url.to_owned(),
        };
        let base = Url::parse(url).map_err(|_| address())?;
        if !["http", "https"].contains(&base.scheme()) || base.host().is_none() {
            return Err(address());
        }
        let token = token.map(|text| bearer(&text)).transpose()?.flatten();
        let provider = rustls::crypto::ring::default_provider();
        let mut builder = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        // Plain HTTP: skips loading the system's certificates.
        let trusted = match (base.scheme(), authorities) {
            ("http", _) => Some(RootCertStore::empty()),
            (_, Some(file)) => Some(trusted(file)?),
            (_, None) => None,
        };
        if let Some(trusted) = trusted {
            let tls = rustls::ClientConfig::builder_with_provider(provider.into())
                .with_safe_default_protocol_versions()
                .expect("ring speaks the default protocol versions")
                .with_root_certificates(trusted)
                .with_no_client_auth();
            builder = builder.tls_backend_preconfigured(tls);
        } else {
            // An error means that a provider is already installed, which works as well.
            let _ = provider.install_default();
        }
        Ok(Self {
            http: builder.build().map_err(Error::Build)?,
            base,
            token,
        })
    }

    pub(super) async fn get(&self, target: Target<'_>) -> Result<Value, Error> {
        let request = self.request(Method::GET, &target).timeout(ANSWER);
        let request = request.header("accept", "application/json");
        self.read(self.send(request).await?).await
    }

    pub(super) async fn post(&self, target: Target<'_>, body: &Value) -> Result<Value, Error> {
        self.change(Method::POST, target, body).await
    }

    /// Sends a JSON body; an answer without content is `null`.
    pub(super) async fn change(
        &self,
        method: Method,
        target: Target<'_>,
        body: &Value,
    ) -> Result<Value, Error> {
        self.change_with(method, target, &[], body).await
    }

    pub(super) async fn post_with(
        &self,
        target: Target<'_>,
        headers: &[(&'static str, &str)],
        body: &Value,
    ) -> Result<Value, Error> {
        self.change_with(Method::POST, target, headers, body).await
    }

    async fn change_with(
        &self,
        method: Method,
        target: Target<'_>,
        headers: &[(&'static str, &str)],
        body: &Value,
    ) -> Result<Value, Error> {
        let request = self
            .request(method, &target)
            .timeout(ANSWER)
            .header("content-type", "application/json")
            .body(body.to_string());
        let request = headers.iter().fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        self.read(self.send(request).await?).await
    }

    /// Sends a body with exactly these headers and returns any answer; a body that is not JSON is `null`.
    pub(super) async fn exchange(
        &self,
        method: Method,
        target: &Target<'_>,
        headers: HeaderMap,
        body: Vec<u8>,
    ) -> Result<(StatusCode, HeaderMap, Value), Error> {
        let request = self.request(method, target).timeout(ANSWER);
        let mut response = self.send(request.headers(headers).body(body)).await?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        Ok((
            status,
            headers,
            self.json(response).await.unwrap_or_default(),
        ))
    }

    /// Posts the bytes of a JSON body as they are, with a signature of them; all has to end before the deadline.
    pub(super) async fn post_signed(
        &self,
        target: Target<'_>,
        body: Vec<u8>,
        signature: Option<&str>,
        deadline: Instant,
    ) -> Result<Value, Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        let request = self.request(Method::POST, &target).timeout(left);
        let mut request = request
            .header("content-type", "application/json")
            .body(body);
        if let Some(signature) = signature {
            request = request.header("x-forg-signature", signature);
        }
        self.read(self.send(request).await?).await
    }

    /// Opens an NDJSON stream; `None` if it has ended (204).
    pub(super) async fn stream(&self, target: Target<'_>) -> Result<Option<Response>, Error> {
        let request = self
            .request(Method::GET, &target)
            .header("accept", "application/x-ndjson");
        let response = self.send(request).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        Ok(Some(response))
    }

    fn request(&self, method: Method, target: &Target<'_>) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(target.path);
        }
        if !target.query.is_empty() {
            url.query_pairs_mut().extend_pairs(target.query);
        }
        let request = self.http.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        request.send().await.map_err(|source| Error::Unreachable {
            url: self.base.clone(),
            source: source.without_url(),
        })
    }

    async fn read(&self, response: Response) -> Result<Value, Error> {
        if !response.status().is_success() {
            return Err(self.refusal(response).await);
        }
        match response.status() {
            StatusCode::NO_CONTENT => Ok(Value::Null),
            _ => self.json(response).await,
        }
    }

    async fn refusal(&self, response: Response) -> Error {
        let status = response.status();
        let body = self.json(response).await.unwrap_or(Value::Null);
        Error::Refused {
            status,
            refusal: Refusal { body },
        }
    }

    async fn json(&self, mut response: Response) -> Result<Value, Error> {
        let unreadable = || Error::Unreadable {
            url: self.base.clone(),
        };
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|_| unreadable())? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() > LONGEST_ANSWER_BYTES {
                return Err(unreadable());
            }
        }
        serde_json::from_slice(&bytes).map_err(|_| unreadable())
    }
}

/// The token without the space around it, such as the line end of its file; `None` if nothing is left.
fn bearer(text: &str) -> Result<Option<SecretString>, Error> {
    let text = text.trim();
    match text.chars().position(|c| !c.is_ascii_graphic()) {
        Some(before) => Err(Error::Token { place: before + 1 }),
        None => Ok((!text.is_empty()).then(|| SecretString::from(text))),
    }
}

fn trusted(file: &Path) -> Result<RootCertStore, Error> {
    let unusable = || Error::Authority(file.to_owned());
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|_| unusable())? {
        store
            .add(certificate.map_err(|_| unusable())?)
            .map_err(|_| unusable())?;
    }
    match store.is_empty() {
        true => Err(unusable()),
        false => Ok(store),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_id_stays_one_segment() {
        let client = Client::new("http://127.0.0.1:7420/bridge/", None).unwrap();
        let path = ["api", "v2", "dispatch", "a/b c?"];
        let query = [("after", "x-1"), ("type", "a&b")];
        let target = Target {
            path: &path,
            query: &query,
        };
        let request = client.request(Method::GET, &target).build().unwrap();
        assert_eq!(
            request.url().as_str(),
            "http://127.0.0.1:7420/bridge/api/v2/dispatch/a%2Fb%20c%3F?after=x-1&type=a%26b"
        );
    }

    #[test]
    fn a_token_is_sent_without_the_line_end_of_its_file() {
        let sent = |token: &str| {
            let client = Client::new("http://127.0.0.1:7420", Some(token.to_owned()))?;
            let request = client.request(Method::GET, &Target::path(&["a"]));
            let request = request.build().unwrap();
            let header = request.headers().get("authorization");
            Ok::<_, Error>(header.map(|value| value.to_str().unwrap().to_owned()))
        };
        for token in ["abc", "abc\n", "abc\r\n", " abc\t\n\n"] {
            assert_eq!(
                sent(token).unwrap().as_deref(),
                Some("Bearer abc"),
                "{token:?}"
            );
        }
        assert_eq!(sent("\n").unwrap(), None);
        for (token, place) in [("ab\nc", 3), ("a c", 2), ("äbc", 1), ("ab\u{200b}", 3)] {
            let refused = sent(token).unwrap_err();
            assert!(
                matches!(refused, Error::Token { place: found } if found == place),
                "{token:?}: {refused}"
            );
            assert!(!refused.to_string().contains(token), "{refused}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for url in ["", "127.0.0.1:7420", "file:///a", "http://"] {
            assert!(
                matches!(Client::new(url, None), Err(Error::Address { .. })),
                "{url:?}"
            );
        }
    }

    #[test]
    fn an_authority_has_to_be_a_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        for text in [
            "",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            std::fs::write(&file, text).unwrap();
            let made = Client::trusting("https://localhost", None, Some(&file));
            assert!(matches!(made, Err(Error::Authority(_))), "{text:?}");
        }
    }

    #[test]
    fn a_refusal_names_every_field() {
        let refusal = Refusal {
            body: json!({
                "error": "the dispatch is not valid", "code": "INVALID_REQUEST",
                "details": [{"field": "taskId", "message": "is missing"}],
                "requestId": "req_1",
            }),
        };
        insta::assert_snapshot!(refusal, @r"
        the dispatch is not valid (INVALID_REQUEST)
          taskId: is missing
          request req_1
        ");
    }
}
