//! Signatures of Standard Webhooks in both directions.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use hyper::HeaderMap;
use reqwest::RequestBuilder;
use secrecy::{ExposeSecret as _, SecretString};
use standardwebhooks::{Webhook, WebhookError};

/// The secret for requests and callbacks.
pub(crate) struct Signing(Webhook);

impl Signing {
    pub(crate) fn new(secret: &SecretString) -> Result<Self, WebhookError> {
        Webhook::new(secret.expose_secret()).map(Self)
    }

    pub(crate) fn sign(
        &self,
        request: RequestBuilder,
        id: &str,
        body: &str,
    ) -> Result<RequestBuilder, WebhookError> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let signature = self.0.sign(id, now, body.as_bytes())?;
        Ok(request
            .header("webhook-id", id)
            .header("webhook-timestamp", now)
            .header("webhook-signature", signature))
    }

    /// Verifies a callback: compares in constant time and rejects a timestamp more than five minutes off.
    pub(crate) fn verify(&self, headers: &HeaderMap, body: &[u8]) -> Result<(), WebhookError> {
        self.0.verify(body, headers)
    }
}

impl fmt::Debug for Signing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signing([REDACTED])")
    }
}
