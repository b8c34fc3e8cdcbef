//! Credentials of the platform: a key, or tokens of the OAuth2 client credentials grant. A token is shared by all runs,
//! renewed before it expires, and once more if it is rejected.

use std::time::Duration;

use forge_adapter_api::{AdapterError, Result};
use forge_adapter_transport::http::{Failure, Http};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Time before expiry at which a token is renewed; at most half of its lifetime.
const EARLY: Duration = Duration::from_secs(300);

pub(crate) enum Credentials {
    Key(SecretString),
    Client(Box<Client>),
}

/// A credential with its sequence number.
#[derive(Clone)]
pub(crate) struct Bearer {
    pub(crate) secret: SecretString,
    /// Sequence number of a token; 0 for a key, which cannot be renewed.
    number: u64,
}

impl Credentials {
    pub(crate) async fn bearer(&self) -> Result<Bearer> {
        match self {
            Self::Key(key) => Ok(Bearer {
                secret: key.clone(),
                number: 0,
            }),
            Self::Client(client) => client.bearer(None).await,
        }
    }

    /// A replacement for these rejected credentials; `None` for a key.
    pub(crate) async fn renewed(&self, refused: &Bearer) -> Option<Result<Bearer>> {
        match self {
            Self::Key(_) => None,
            Self::Client(client) => Some(client.bearer(Some(refused.number)).await),
        }
    }
}

/// Client credentials and the current token.
pub(crate) struct Client {
    http: Http,
    url: String,
    id: String,
    secret: SecretString,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Method of sending the credentials that the platform accepted; the documentation has two.
    way: Way,
    token: Option<Token>,
    count: u64,
    /// Time and error of the last failed fetch, returned to callers that were waiting for it.
    failed: Option<(Instant, AdapterError)>,
}

#[derive(Clone, Copy, Default)]
enum Way {
    #[default]
    Header,
    Form,
}

struct Token {
    bearer: Bearer,
    renew_at: Instant,
    expires_at: Instant,
}

#[derive(Deserialize)]
struct Answer {
    access_token: SecretString,
    expires_in: u64,
}

impl Client {
    pub(crate) fn new(http: Http, url: String, id: String, secret: SecretString) -> Self {
        Self {
            http,
            url,
            id,
            secret,
            state: Mutex::default(),
        }
    }

    /// Returns a valid token other than the rejected one. Holds the lock during the request so that concurrent callers
    /// share it; if its run is dropped, the next waiter repeats the request.
    async fn bearer(&self, refused: Option<u64>) -> Result<Bearer> {
        let asked_at = Instant::now();
        let mut state = self.state.lock().await;
        if let Some(token) = &state.token
            && Some(token.bearer.number) != refused
            && Instant::now() < token.renew_at
        {
            return Ok(token.bearer.clone());
        }
        if let Some((at, error)) = &state.failed
            && *at >= asked_at
        {
            return Err(error.clone());
        }
        match self.fetch(&mut state).await {
            Ok(answer) => Ok(state.keep(answer)),
            Err(failure) => {
                let error = self.explain(failure);
                state.failed = Some((Instant::now(), error.clone()));
                match &state.token {
                    Some(token)
                        if Some(token.bearer.number) != refused
                            && Instant::now() < token.expires_at =>
                    {
                        tracing::warn!(%error, "the token could not be renewed; using the old one until it expires");
                        Ok(token.bearer.clone())
                    }
                    Some(_) | None => Err(error),
                }
            }
        }
    }

    async fn fetch(&self, state: &mut State) -> Result<Answer, Failure> {
        let first = self.fetch_by(state.way).await;
        let (Err(Failure::Refused { status, .. }), Way::Header) = (&first, state.way) else {
            return first;
        };
        if !matches!(status.as_u16(), 400 | 401) {
            return first;
        }
        let second = self.fetch_by(Way::Form).await;
        if second.is_ok() {
            state.way = Way::Form;
        }
        second
    }

    async fn fetch_by(&self, way: Way) -> Result<Answer, Failure> {
        let grant = ("grant_type", "client_credentials");
        let secret = self.secret.expose_secret();
        let request = match way {
            Way::Header => self
                .http
                .post_form(&self.url, &[grant, ("scope", "api/access")])
                .basic_auth(&self.id, Some(secret)),
            Way::Form => self.http.post_form(
                &self.url,
                &[grant, ("client_id", &self.id), ("client_secret", secret)],
            ),
        };
        let answer = self.http.json(request).await?;
        serde_json::from_value(answer).map_err(Failure::NotJson)
    }

    fn explain(&self, failure: Failure) -> AdapterError {
        let is_ours = matches!(&failure, Failure::Refused { status, .. } if matches!(status.as_u16(), 400 | 401 | 403));
        let mut error = AdapterError::from(failure);
        error.message = format!("no token from {}: {}", self.url, error.message);
        if is_ours {
            error.code = "unauthenticated".to_owned();
            error
                .message
                .push_str("; check GLOO_CLIENT_ID and GLOO_CLIENT_SECRET");
        }
        error
    }
}

impl State {
    fn keep(&mut self, answer: Answer) -> Bearer {
        self.count += 1;
        self.failed = None;
        let bearer = Bearer {
            secret: answer.access_token,
            number: self.count,
        };
        let life = Duration::from_secs(answer.expires_in);
        let now = Instant::now();
        self.token = Some(Token {
            bearer: bearer.clone(),
            renew_at: now + (life - EARLY.min(life / 2)),
            expires_at: now + life,
        });
        bearer
    }
}
