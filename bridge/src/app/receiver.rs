//! Test callbacks to one receiver, without a dispatch. Sent as the bridge sends real ones: same client,
//! guard, headers and signature.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use jiff::{SignedDuration, Timestamp};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use url::Url;

use crate::config::Config;
use forge_base::id::{DeliveryId, DispatchId};
use forge_base::time;
use forge_base::vault::Vault;
use forge_delivery::send::{Attempt, CallbackOptions, CallbackPayload};
use forge_delivery::sign::{self, Signer, SigningSecret};
use forge_delivery::verdict::{self, Outcome, Series, Verdict};
use forge_net::backoff::{self, Policy};
use forge_net::guard::Guard;
use forge_net::{self as net, Client};
use forge_store::record::{Callback, DueDelivery};
use forge_store::sealed;

use super::secrets::open_vault;
use super::store;

/// Age of an outdated signature: beyond the clock difference that receivers should tolerate.
const OLD: Duration = Duration::from_secs(600);

/// Receiver under test.
pub struct Receiver {
    client: Client,
    signer: Signer,
    vault: Vault,
    callback: Callback,
    /// Signing secret that overrides the configured ones.
    secret: Option<SecretString>,
    timeout: Duration,
}

/// One test delivery; can be sent several times.
pub struct Owed {
    id: DeliveryId,
    dispatch: DispatchId,
    since: Timestamp,
    sent: u32,
}

/// Kind of signature on a test callback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signed {
    Rightly,
    /// With a random secret.
    Wrongly,
    /// Correctly, with an old timestamp, as in a replay attack.
    LongAgo,
}

/// Result of one test callback.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status, or the reason that there is none.
    pub status: Result<u16, String>,
    pub took: Duration,
    pub verdict: Verdict,
    pub retry_after: Option<String>,
    /// Wait requested by `Retry-After`, if it can be parsed.
    pub comes_after: Option<Duration>,
}

impl Owed {
    pub fn new() -> Self {
        Self {
            id: DeliveryId::new(),
            dispatch: DispatchId::new(),
            since: Timestamp::now(),
            sent: 0,
        }
    }
}

impl Default for Owed {
    fn default() -> Self {
        Self::new()
    }
}

impl Receiver {
    /// Creates a receiver. Callbacks are signed with `secret`, or else with the secrets configured for the
    /// URL.
    pub async fn open(config: &Config, url: &str, secret: Option<String>) -> anyhow::Result<Self> {
        let parsed = Url::parse(url).with_context(|| format!("{url:?} is not a URL"))?;
        let guard = Guard::new(&config.callback.allow)?;
        guard.check_url(&parsed)?;
        let secret = match secret {
            Some(text) if SigningSecret::parse(&text).is_none() => {
                bail!("the secret is not whsec_ and the base64 of 24 to 64 bytes")
            }
            given => given.map(SecretString::from),
        };
        let (vault, signer) = match &secret {
            // With a given secret, neither the store nor its key is needed.
            Some(_) => {
                let vault = Vault::from_key(&rand::random::<[u8; 32]>().to_vec().into())?;
                let signer = Signer::with_sealed(&config.callback, None, &vault)?;
                (vault, signer)
            }
            None => configured(config).await?,
        };
        let origin = net::origin(&parsed);
        let known = signer.describe().into_iter().any(|entry| {
            let applies = entry.origin.is_none_or(|theirs| theirs == origin);
            applies && !entry.secrets.is_empty()
        });
        if secret.is_none() && !known {
            bail!(
                "there is no signing secret yet: start the bridge once, which generates one, or pass --secret"
            );
        }
        Ok(Self {
            client: Client::new(&config.net, guard)?,
            signer,
            vault,
            callback: Callback {
                url: parsed.to_string(),
                origin,
            },
            secret,
            timeout: config.callback.timeout,
        })
    }

    /// Timeout of one attempt.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Sends one attempt.
    pub async fn send(&self, owed: &mut Owed, signed: Signed) -> anyhow::Result<Answer> {
        owed.sent += 1;
        let now = Timestamp::now();
        let due = DueDelivery {
            id: owed.id,
            dispatch: owed.dispatch,
            callback: self.callback.clone(),
            attempts: owed.sent - 1,
            since: owed.since,
        };
        let attempt = Attempt {
            due: &due,
            number: owed.sent,
            at: match signed {
                Signed::Rightly | Signed::Wrongly => now,
                Signed::LongAgo => now - SignedDuration::try_from(OLD)?,
            },
            timeout: self.timeout,
        };
        let request = attempt.request(self.payload(owed, signed), &self.signer, &self.vault)?;
        let started = Instant::now();
        let answer = self.client.send(request).await;
        let took = started.elapsed();
        let (status, retry_after) = match answer {
            Ok(answer) => {
                let header = answer.headers.get("retry-after");
                let asked = header.and_then(|value| value.to_str().ok());
                (Ok(answer.status), asked.map(str::to_owned))
            }
            Err(error) => (Err(error.to_string()), None),
        };
        let outcome = match &status {
            Ok(status) => Outcome::Answered {
                status: *status,
                retry_after: retry_after.clone(),
            },
            Err(_) => Outcome::Failed,
        };
        let series = Series {
            attempt: 1,
            since: now,
            policy: Policy::Default,
        };
        Ok(Answer {
            status,
            took,
            verdict: verdict::decide_retry(&outcome, series, now, 0.5),
            comes_after: retry_after
                .as_deref()
                .and_then(|value| backoff::retry_after(value, now)),
            retry_after,
        })
    }

    fn payload(&self, owed: &Owed, signed: Signed) -> CallbackPayload {
        let unknown_secret = || SigningSecret::generate().to_text();
        let secret = match signed {
            Signed::Wrongly => Some(unknown_secret()),
            Signed::Rightly | Signed::LongAgo => self.secret.clone(),
        };
        let seal = |secret: SecretString| {
            let plain = json!({ "secret": secret.expose_secret() }).to_string();
            let context = sealed::of_dispatch(owed.dispatch);
            self.vault.seal(&context, plain.as_bytes())
        };
        let at = time::format(owed.since);
        let body = json!({
            "taskId": "callback-test", "agentId": "forge-bridge", "dispatchId": owed.dispatch,
            "provider": "echo", "status": "ok", "attempt": 1, "durationMs": 0,
            "output": "This is a test of the receiver of callbacks; nothing was executed.",
            "usage": {}, "startedAt": at, "completedAt": at, "metadata": {"test": true},
        });
        CallbackPayload {
            body: body.to_string().into_bytes(),
            trace_id: format!("{:032x}", rand::random::<u128>()),
            secrets: secret.map(seal),
            wishes: CallbackOptions::default(),
        }
    }
}

async fn configured(config: &Config) -> anyhow::Result<(Vault, Signer)> {
    let vault = open_vault(config).await?;
    let sealed = store::peek_sealed(config, sign::STORED).await?;
    let signer = Signer::with_sealed(&config.callback, sealed.as_deref(), &vault)?;
    Ok((vault, signer))
}
