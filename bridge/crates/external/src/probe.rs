//! Health checks: the path that a manifest names is asked regularly. What it answers is shown and decides nothing; calls
//! are kept back by the circuit breaker alone.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use jiff::Timestamp;
use reqwest::Method;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use url::Url;

use forge_base::tasks::Rounds;
use forge_base::time;
use forge_net::{Client, Outgoing};

use crate::services::{ActiveService, External};
use crate::target::Target;

const EVERY: Duration = Duration::from_secs(15);
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of an answer that are read; only its status counts.
const ANSWER_BYTES: usize = 16 * 1024;

/// Result of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checked {
    at: Timestamp,
    /// `None` if the service is healthy.
    problem: Option<String>,
}

impl Checked {
    pub(crate) fn is_healthy(&self) -> bool {
        self.problem.is_none()
    }

    /// Health of a service as it is shown.
    pub(crate) fn view(checked: Option<&Self>) -> Value {
        match checked {
            None => json!({ "status": "unknown" }),
            Some(Self { at, problem: None }) => {
                json!({ "status": "healthy", "checkedAt": time::format(*at) })
            }
            Some(Self {
                at,
                problem: Some(problem),
            }) => {
                let at = time::format(*at);
                json!({ "status": "unhealthy", "checkedAt": at, "message": problem })
            }
        }
    }
}

impl External {
    /// Checks the health of the services until the token is cancelled.
    pub async fn check_health(self, ending: CancellationToken) {
        let mut rounds = Rounds::every(EVERY, ending);
        while rounds.due().await {
            let (services, client) = (self.services(), self.client());
            let asked = services.all().filter_map(|service| {
                let url = address(service)?;
                Some(async move { service.load.checked(ask(client, url).await) })
            });
            rounds.work(join_all(asked)).await;
        }
    }
}

/// Address of the health check; `None` for a service that has none.
fn address(service: &Arc<ActiveService>) -> Option<Url> {
    let Target::Http(base) = &service.target else {
        return None;
    };
    let path = service.manifest.service.health.as_deref()?;
    // A manifest must not make the bridge ask another server than the one that it names.
    let url = base.join(path).ok();
    url.filter(|url| url.origin() == base.origin())
}

async fn ask(client: &Client, url: Url) -> Checked {
    let sent = client.send(Outgoing {
        method: Method::GET,
        url,
        headers: HeaderMap::new(),
        body: Bytes::new(),
        timeout: TIMEOUT,
        answer_bytes: ANSWER_BYTES,
    });
    let problem = match sent.await {
        Ok(answer) if (200..300).contains(&answer.status) => None,
        Ok(answer) => Some(format!("HTTP {}", answer.status)),
        Err(error) => Some(error.to_string()),
    };
    Checked {
        at: Timestamp::now(),
        problem,
    }
}
