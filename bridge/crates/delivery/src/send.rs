//! Builds the POST of one attempt from stored data: headers, signature, body. Reads only the part of the
//! dispatch that concerns its callback.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use reqwest::Method;
use reqwest::header::{
    AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, InvalidHeaderName,
    InvalidHeaderValue, USER_AGENT,
};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use url::Url;

use forge_base::id::DispatchId;
use forge_base::trace::TraceContext;
use forge_base::vault::{self, Vault};
use forge_net::Outgoing;
use forge_net::backoff::Policy;
use forge_store::record::{DeliveryPayload, DueDelivery};
use forge_store::sealed;

use super::sign::{Message, Signer, SigningSecret};

const AGENT: &str = concat!("forge-bridge/", env!("CARGO_PKG_VERSION"));

/// Errors of building a request.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the callback URL cannot be parsed: {0}")]
    Url(url::ParseError),
    #[error("the stored request cannot be parsed: {0}")]
    Request(serde_json::Error),
    #[error("{0}")]
    Unseal(vault::Error),
    #[error("the decrypted secrets of the dispatch are malformed")]
    Secrets,
    #[error("a callback header has an invalid name: {0}")]
    HeaderName(InvalidHeaderName),
    #[error("a callback header has an invalid value: {0}")]
    HeaderValue(InvalidHeaderValue),
}

/// Callback options of a dispatch.
#[derive(Clone, Copy, Debug, Default)]
pub struct CallbackOptions {
    pub policy: Policy,
    /// Span of the dispatch.
    pub context: Option<TraceContext>,
}

/// Stored form of `CallbackOptions`.
#[derive(Deserialize)]
struct Stored {
    #[serde(default)]
    callback: Option<Callback>,
    #[serde(default, rename = "traceparent", deserialize_with = "context")]
    context: Option<TraceContext>,
}

fn context<'de, D: Deserializer<'de>>(text: D) -> Result<Option<TraceContext>, D::Error> {
    let text = Option::<Cow<'_, str>>::deserialize(text)?;
    Ok(text.as_deref().and_then(TraceContext::parse))
}

#[derive(Deserialize)]
struct Callback {
    #[serde(default)]
    retry: Policy,
}

impl CallbackOptions {
    pub fn read(request: &RawValue) -> Result<Self, Error> {
        let Stored { callback, context } =
            serde_json::from_str(request.get()).map_err(Error::Request)?;
        let policy = callback.map(|callback| callback.retry).unwrap_or_default();
        Ok(Self { policy, context })
    }
}

/// Payload of a delivery.
#[derive(Debug)]
pub struct CallbackPayload {
    pub body: Vec<u8>,
    pub trace_id: String,
    /// Sealed, as stored.
    pub secrets: Option<Vec<u8>>,
    pub wishes: CallbackOptions,
}

impl CallbackPayload {
    pub fn read(payload: DeliveryPayload) -> Result<Self, Error> {
        let wishes = CallbackOptions::read(&payload.request)?;
        Ok(Self {
            body: payload.body,
            trace_id: payload.trace_id,
            secrets: payload.secrets,
            wishes,
        })
    }
}

/// Parameters of one attempt.
#[derive(Debug)]
pub struct Attempt<'a> {
    pub due: &'a DueDelivery,
    /// Attempt number over the whole life of the delivery, starting at 1; a replay does not reset it.
    pub number: u32,
    pub at: Timestamp,
    pub timeout: Duration,
}

/// Secrets of the dispatch for its callback.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Secrets {
    #[serde(with = "forge_base::secret")]
    bearer: Option<SecretString>,
    #[serde(with = "forge_base::secret")]
    secret: Option<SecretString>,
    #[serde(with = "forge_base::secret::map")]
    headers: BTreeMap<String, SecretString>,
}

impl Attempt<'_> {
    pub fn request(
        &self,
        payload: CallbackPayload,
        signer: &Signer,
        vault: &Vault,
    ) -> Result<Outgoing, Error> {
        let url = Url::parse(&self.due.callback.url).map_err(Error::Url)?;
        let secrets = match &payload.secrets {
            Some(sealed) => Secrets::open(self.due.dispatch, sealed, vault)?,
            None => Secrets::default(),
        };
        let own = match &secrets.secret {
            Some(text) => Some(SigningSecret::parse(text.expose_secret()).ok_or(Error::Secrets)?),
            None => None,
        };
        let origin = self.due.callback.origin.as_str();
        let timestamp = self.at.as_second();
        let signature = signer.sign(
            Message {
                origin,
                id: self.due.id,
                timestamp,
                body: &payload.body,
            },
            own.as_ref(),
        );
        let id = self.due.id.to_string();
        let trace = match payload.wishes.context {
            Some(context) => self.context(context).to_string(),
            None => traceparent(&payload.trace_id),
        };

        let mut headers = self.own_headers(&secrets.headers, signer.bearer(origin).as_ref())?;
        if let Some(bearer) = &secrets.bearer {
            headers.insert(AUTHORIZATION, authorization(bearer)?);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        for (name, text) in [
            ("webhook-id", id.as_str()),
            ("webhook-timestamp", &timestamp.to_string()),
            ("webhook-signature", &signature),
            ("idempotency-key", &id),
            ("x-forge-delivery-attempt", &self.number.to_string()),
            ("traceparent", &trace),
        ] {
            headers.insert(HeaderName::from_static(name), value(text)?);
        }
        Ok(Outgoing {
            method: Method::POST,
            url,
            headers,
            body: Bytes::from(payload.body),
            timeout: self.timeout,
            answer_bytes: forge_net::ANSWER_BYTES,
        })
    }

    /// Headers of the dispatch, and the bearer token of the origin.
    fn own_headers(
        &self,
        given: &BTreeMap<String, SecretString>,
        bearer: Option<&SecretString>,
    ) -> Result<HeaderMap, Error> {
        let mut headers = HeaderMap::new();
        if let Some(bearer) = bearer {
            headers.insert(AUTHORIZATION, authorization(bearer)?);
        }
        for (name, text) in given {
            let name = HeaderName::try_from(name).map_err(Error::HeaderName)?;
            headers.insert(name, hidden(text.expose_secret())?);
        }
        Ok(headers)
    }
}

impl Secrets {
    fn open(dispatch: DispatchId, bytes: &[u8], vault: &Vault) -> Result<Self, Error> {
        let plain = vault
            .unseal(&sealed::of_dispatch(dispatch), bytes)
            .map_err(Error::Unseal)?;
        // The serde error could quote the secret.
        serde_json::from_slice(plain.expose_secret()).map_err(|_| Error::Secrets)
    }
}

fn value(text: &str) -> Result<HeaderValue, Error> {
    HeaderValue::from_str(text).map_err(Error::HeaderValue)
}

fn authorization(bearer: &SecretString) -> Result<HeaderValue, Error> {
    hidden(&format!("Bearer {}", bearer.expose_secret()))
}

/// Header value that debug output hides.
fn hidden(text: &str) -> Result<HeaderValue, Error> {
    let mut value = value(text)?;
    value.set_sensitive(true);
    Ok(value)
}

/// `traceparent` with this trace id and a new span id.
fn traceparent(trace_id: &str) -> String {
    format!("00-{trace_id}-{:016x}-01", rand::random::<u64>().max(1))
}
