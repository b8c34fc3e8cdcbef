//! One server: an address, a key, and how it is asked.

use std::collections::BTreeMap;

use forge_adapter_api::{AdapterError, AdapterEvent, Events};
use forge_adapter_transport::http::{Failure, Http, Reply, ServerEvent, ServerEvents};
use reqwest::RequestBuilder;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};

use crate::api_error;
use crate::completion::Completion;

/// Instead of the key in texts of the server.
const REDACTED: &str = "[REDACTED]";

/// How a provider's own errors are read; `None` for those of the common kind.
type Refusal = fn(&Value) -> Option<AdapterError>;

/// A client of one server; cheap to clone.
#[derive(Clone)]
pub struct Client {
    http: Http,
    base_url: String,
    headers: HeaderMap,
    key: Option<SecretString>,
    refusal: Refusal,
}

impl Client {
    /// `base_url` is what stands before `/chat/completions`. Fails with `invalid_config` where a header cannot
    /// be one; its value is not told.
    pub fn new(
        http: Http,
        base_url: &str,
        key: Option<SecretString>,
        headers: &BTreeMap<String, String>,
    ) -> Result<Self, AdapterError> {
        let invalid = |name: &str| {
            let text = format!("headers.{name}: this is no header of HTTP, or not a value for one");
            AdapterError::new("invalid_config", text)
        };
        let mut all = HeaderMap::new();
        if let Some(key) = &key {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose_secret()))
                .map_err(|_| {
                    AdapterError::new("invalid_config", "the API key is no text for a header")
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
            key,
            refusal: |_| None,
        })
    }

    /// Reads errors of a provider's own kind.
    #[must_use]
    pub fn with_refusal(mut self, refusal: Refusal) -> Self {
        self.refusal = refusal;
        self
    }

    /// Asks, and reads the answer into `heard` as it comes; what is there of it stays there whatever goes
    /// wrong, and when this is dropped. `body.stream` says whether a stream is wanted.
    pub async fn chat(
        &self,
        body: &Value,
        heard: &mut Completion,
        events: &Events,
    ) -> Result<(), AdapterError> {
        let url = format!("{}/chat/completions", self.base_url);
        let reply = self
            .http
            .reply(self.dressed(self.http.post(&url, body)))
            .await;
        let told = match reply.map_err(|failure| self.failed(failure))? {
            Reply::Whole(answer) => hear(heard, &answer, events, self.refusal).await,
            Reply::Events(stream) => return self.follow(stream, heard, events).await,
        };
        told.map_err(|error| self.cleaned(error))?;
        match heard.finish {
            Some(_) => Ok(()),
            None => Err(AdapterError::new(
                "upstream_error",
                "the answer holds no choice with an end",
            )),
        }
    }

    /// Asks for what is below the address; the answer's JSON.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        let url = format!("{}{path}", self.base_url);
        self.http.json(self.dressed(self.http.get(&url))).await
    }

    async fn follow(
        &self,
        mut stream: ServerEvents,
        heard: &mut Completion,
        events: &Events,
    ) -> Result<(), AdapterError> {
        loop {
            let event = match stream.next().await {
                Some(Ok(event)) => event,
                // The answer is whole; only its usage may be missing.
                Some(Err(failure)) if heard.finish.is_some() => {
                    tracing::warn!(error = %failure, "the stream broke off behind the end of the answer");
                    return Ok(());
                }
                Some(Err(failure)) => return Err(self.failed(failure)),
                None if heard.finish.is_some() => return Ok(()),
                None => return Err(ended_early()),
            };
            if event.data.trim() == "[DONE]" {
                return Ok(());
            }
            let told = take(heard, &event, events, self.refusal).await;
            told.map_err(|error| self.cleaned(error))?;
        }
    }

    fn dressed(&self, request: RequestBuilder) -> RequestBuilder {
        request.headers(self.headers.clone())
    }

    fn failed(&self, failure: Failure) -> AdapterError {
        self.cleaned(api_error::of(failure, self.refusal))
    }

    /// Some servers repeat the key that they refuse.
    fn cleaned(&self, mut error: AdapterError) -> AdapterError {
        let key = self.key.as_ref().map(|key| key.expose_secret());
        if let Some(key) = key.filter(|key| !key.is_empty()) {
            error.message = error.message.replace(key, REDACTED);
        }
        error
    }
}

async fn take(
    heard: &mut Completion,
    event: &ServerEvent,
    events: &Events,
    own: Refusal,
) -> Result<(), AdapterError> {
    let chunk: Value = serde_json::from_str(&event.data).map_err(|error| {
        AdapterError::new(
            "upstream_error",
            format!("an event of the stream is no JSON: {error}"),
        )
    })?;
    let is_own =
        !matches!(event.name.as_str(), "message" | "error") && chunk.get("choices").is_none();
    if is_own && api_error::said_in(&chunk).is_none() {
        // An agent behind the protocol tells what it does.
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

fn ended_early() -> AdapterError {
    let text = "the stream ended before the answer did";
    AdapterError::new("upstream_error", text).retryable()
}
