//! Public keys of an issuer: fetched through the guard, kept, and asked for again when a token names an unknown one.

use forge_adapter_api::foreign_json;
use std::time::Duration;

use bytes::Bytes;
use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{Jwk, JwkSet};
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio::time::Instant;
use url::Url;

use forge_net::{BodyEnd, Client, Outgoing};

const TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_BYTES: usize = 256 * 1024;
/// Age from which the keys are fetched again.
const REFRESH: Duration = Duration::from_secs(600);
/// Minimum time between two fetches, so that tokens with unknown keys cause no load at the issuer.
const APART: Duration = Duration::from_secs(30);
/// Keys that are tried for a token that names none.
const MAX_TRIED: usize = 16;

/// Place of the keys.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Address(Url),
    /// In the discovery document of this issuer, as its tokens name it.
    Discovery(String),
}

#[derive(Debug)]
pub(crate) struct KeySet {
    source: Source,
    /// Held while the keys are fetched, so that concurrent callers share one fetch.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    keys: Vec<Jwk>,
    fetched: Option<Instant>,
    tried: Option<Instant>,
    /// Error of the last fetch.
    problem: Option<String>,
}

#[derive(Deserialize)]
struct Discovered {
    issuer: String,
    jwks_uri: String,
}

impl KeySet {
    pub(crate) fn new(source: Source) -> Self {
        Self {
            source,
            state: Mutex::default(),
        }
    }

    /// Keys that can have signed a token which names this one, or none. The error says why no key is known at all.
    pub(crate) async fn keys(
        &self,
        client: &Client,
        kid: Option<&str>,
    ) -> Result<Vec<DecodingKey>, String> {
        let mut state = self.state.lock().await;
        let is_past = |at: Option<Instant>, age| at.is_none_or(|at| at.elapsed() >= age);
        let is_unknown = state.matching(kid).next().is_none();
        let wants = is_unknown || is_past(state.fetched, REFRESH);
        if wants && is_past(state.tried, APART) {
            state.tried = Some(Instant::now());
            match self.fetch(client).await {
                Ok(keys) => {
                    state.keys = keys;
                    state.fetched = state.tried;
                    state.problem = None;
                }
                Err(problem) => {
                    tracing::warn!("the keys of the issuer of JWTs cannot be fetched: {problem}");
                    state.problem = Some(problem);
                }
            }
        }
        match (&state.problem, state.fetched) {
            (Some(problem), None) => Err(problem.clone()),
            _ => Ok(state
                .matching(kid)
                .filter_map(|key| DecodingKey::from_jwk(key).ok())
                .take(MAX_TRIED)
                .collect()),
        }
    }

    async fn fetch(&self, client: &Client) -> Result<Vec<Jwk>, String> {
        let address = match &self.source {
            Source::Address(url) => url.clone(),
            Source::Discovery(issuer) => {
                let base = issuer.trim_end_matches('/');
                let url = format!("{base}/.well-known/openid-configuration");
                let url = Url::parse(&url).map_err(|error| format!("{url}: {error}"))?;
                let found: Discovered = get(client, url.clone()).await?;
                if found.issuer != *issuer {
                    return Err(format!("{url} is of another issuer, {:?}", found.issuer));
                }
                let keys = Url::parse(&found.jwks_uri);
                keys.map_err(|error| format!("{url}: jwks_uri: {error}"))?
            }
        };
        Ok(get::<JwkSet>(client, address).await?.keys)
    }
}

impl State {
    fn matching(&self, kid: Option<&str>) -> impl Iterator<Item = &Jwk> {
        self.keys
            .iter()
            .filter(move |key| kid.is_none() || key.common.key_id.as_deref() == kid)
    }
}

async fn get<T: DeserializeOwned>(client: &Client, url: Url) -> Result<T, String> {
    let sent = client.send(Outgoing {
        method: Method::GET,
        url: url.clone(),
        headers: HeaderMap::new(),
        body: Bytes::new(),
        timeout: TIMEOUT,
        answer_bytes: ANSWER_BYTES,
    });
    let answer = sent.await.map_err(|error| format!("{url}: {error}"))?;
    if answer.status != 200 || answer.end != BodyEnd::Complete {
        return Err(format!(
            "{url}: HTTP {} or an incomplete answer",
            answer.status
        ));
    }
    foreign_json::from_slice(&answer.body).map_err(|error| format!("{url}: {error}"))
}
