//! Client of one server: address, key and headers.

use std::collections::BTreeMap;

use bytes::Bytes;
use forge_adapter_api::foreign_json;
use forge_adapter_api::{AdapterError, AdapterEvent, Events};
use forge_adapter_transport::http::{Failure, Http, Reply, ServerEvent, ServerEvents};
use reqwest::RequestBuilder;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use crate::api_error;
use crate::completion::Completion;
use crate::follow::Follow;

/// Parser of a provider's own errors; returns `None` for errors in the common format.
type Refusal = fn(&Value) -> Option<AdapterError>;

/// A client of one server; cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: Http,
    base_url: String,
    headers: HeaderMap,
    refusal: Refusal,
}

impl Client {
    /// Creates a client. `base_url` is the part before `/chat/completions`. Fails with `invalid_config` if
    /// a header is invalid; the error does not contain its value.
    pub fn new(
        http: Http,
        base_url: &str,
        key: Option<&SecretString>,
        headers: &BTreeMap<String, String>,
    ) -> Result<Self, AdapterError> {
        let invalid = |name: &str| {
            let text = format!("headers.{name} is not a valid HTTP header, or its value is not");
            AdapterError::new("invalid_config", text)
        };
        let mut all = HeaderMap::new();
        if let Some(key) = key {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose_secret()))
                .map_err(|_| {
                    AdapterError::new("invalid_config", "the API key is not valid in a header")
                })?;
            value.set_sensitive(true);
            all.insert(AUTHORIZATION, value);
        }
        for (name, value) in headers {
            let header = HeaderName::try_from(name).map_err(|_| invalid(name))?;
            let mut value = HeaderValue::try_from(value).map_err(|_| invalid(name))?;
            value.set_sensitive(true);
            all.insert(header, value);
        }
        Ok(Self {
            http,
            base_url: base_url.trim_end_matches('/').to_owned(),
            headers: all,
            refusal: |_| None,
        })
    }

    /// Sets the parser of the provider's own errors.
    #[must_use]
    pub fn with_refusal(mut self, refusal: Refusal) -> Self {
        self.refusal = refusal;
        self
    }

    /// Sends `body`, JSON, and reads the answer into `heard` as it arrives, so that a partial answer is kept on an
    /// error and when this future is dropped. Its member `stream` selects streaming.
    pub async fn chat(
        &self,
        body: Bytes,
        heard: &mut Completion,
        events: &Events,
    ) -> Result<(), AdapterError> {
        let url = format!("{}/chat/completions", self.base_url);
        let reply = self
            .http
            .reply(self.dressed(self.http.post_text(&url, body)))
            .await;
        let told = match reply.map_err(|failure| self.failed(failure))? {
            Reply::Whole(answer) => hear(heard, &answer, events, self.refusal).await,
            Reply::Events(stream) => return self.follow(stream, heard, events).await,
        };
        told?;
        match heard.finish {
            Some(_) => Ok(()),
            None => Err(AdapterError::new(
                "upstream_error",
                "the answer contains no finished choice",
            )),
        }
    }

    /// GETs a path below the base URL and returns the answer's JSON.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        let url = format!("{}{path}", self.base_url);
        self.http.json(self.dressed(self.http.get(&url))).await
    }

    async fn follow(
        &self,
        stream: ServerEvents,
        heard: &mut Completion,
        events: &Events,
    ) -> Result<(), AdapterError> {
        let mut follow = Follow::new(stream);
        while let Some(event) = follow.next(heard, |failure| self.failed(failure)).await? {
            take(heard, &event, events, self.refusal).await?;
        }
        Ok(())
    }

    fn dressed(&self, request: RequestBuilder) -> RequestBuilder {
        request.headers(self.headers.clone())
    }

    fn failed(&self, failure: Failure) -> AdapterError {
        api_error::of(failure, self.refusal)
    }
}

async fn take(
    heard: &mut Completion,
    event: &ServerEvent,
    events: &Events,
    own: Refusal,
) -> Result<(), AdapterError> {
    let chunk: Value = foreign_json::from_str(&event.data).map_err(|error| {
        AdapterError::new(
            "upstream_error",
            format!("an event of the stream is not JSON: {error}"),
        )
    })?;
    let is_own =
        !matches!(event.name.as_str(), "message" | "error") && chunk.get("choices").is_none();
    if is_own && api_error::said_in(&chunk).is_none() {
        // Progress events of an agent behind the protocol.
        let progress = json!({"kind": event.name, "data": chunk});
        events
            .send(AdapterEvent::new("exec.progress").with(progress))
            .await;
        return Ok(());
    }
    if event.name == "error" && api_error::said_in(&chunk).is_none() {
        return Err(api_error::read(&chunk));
    }
    hear(heard, &chunk, events, own).await
}

async fn hear(
    heard: &mut Completion,
    chunk: &Value,
    events: &Events,
    own: Refusal,
) -> Result<(), AdapterError> {
    if let Some(refusal) = api_error::said_in(chunk).and_then(own) {
        return Err(refusal);
    }
    for news in heard.chunk(chunk)? {
        events.send(news.into()).await;
    }
    Ok(())
}
