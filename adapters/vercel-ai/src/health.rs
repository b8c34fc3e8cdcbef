//! Health check: asks each provider that has a key, the gateway, or Node.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use forge_adapter_api::{Health, HealthStatus};
use forge_adapter_transport::http::{Failure, Http};
use futures_util::future::join_all;

use crate::providers::{KNOWN, NO_GATEWAY_KEY, Target};
use crate::run::Room;
use crate::settings::{Api, Mode, Settings};
use crate::sidecar;

/// Interval of Node checks; starting Node costs half a second of CPU.
const NODE_EVERY: Duration = Duration::from_secs(60);

/// Client of the health checks, and the time of the last successful Node check.
pub(crate) struct Probe {
    pub(crate) http: Http,
    pub(crate) node: Mutex<Option<Instant>>,
}

impl Probe {
    pub(crate) async fn health(&self, room: &Room) -> Health {
        match room.settings.mode {
            Mode::Direct => self.direct(room).await,
            Mode::Gateway => match Target::of(&room.settings, Some("any/model")) {
                Ok(target) => {
                    let own = Target {
                        api: Api::Chat,
                        ..target
                    };
                    let judged = judge(self.ask(&own, "/credits").await);
                    judged.unwrap_or_else(Health::healthy)
                }
                Err(_) => Health::degraded(NO_GATEWAY_KEY),
            },
            Mode::Sidecar => self.sidecar(room).await,
        }
    }

    async fn direct(&self, room: &Room) -> Health {
        let settings = &room.settings;
        let targets = self::targets(settings);
        if targets.is_empty() {
            let names = KNOWN.map(|known| known.name).join(", ");
            return Health::degraded(format!(
                "no provider has an API key: set ANTHROPIC_API_KEY, OPENAI_API_KEY or \
                 GOOGLE_GENERATIVE_AI_API_KEY, or api_key in adapters.vercel-ai.providers.<name> ({names})"
            ));
        }
        self.servers(&targets).await
    }

    async fn servers(&self, targets: &[Target]) -> Health {
        let asked = targets
            .iter()
            .map(|target| async { judge(self.ask(target, "/models").await) });
        let ill: Vec<Health> = join_all(asked).await.into_iter().flatten().collect();
        let is_gone = |health: &Health| health.status == HealthStatus::Offline;
        let said: Vec<String> = ill
            .iter()
            .filter_map(|health| health.message.clone())
            .collect();
        match ill.len() {
            0 => Health::healthy(),
            count if count == targets.len() && ill.iter().all(is_gone) => {
                Health::offline(said.join("; "))
            }
            _ => Health::degraded(said.join("; ")),
        }
    }

    async fn sidecar(&self, room: &Room) -> Health {
        let last = || self.node.lock().unwrap_or_else(PoisonError::into_inner);
        let packages = room.settings.sidecar.packages.as_ref();
        let is_there = packages.is_some_and(|folder| folder.join("node_modules/ai").is_dir());
        if !is_there || last().is_none_or(|last| last.elapsed() >= NODE_EVERY) {
            let health = sidecar::probe(&room.host, &room.settings).await;
            if health.status != HealthStatus::Healthy {
                *last() = None;
                return health;
            }
            *last() = Some(Instant::now());
        }
        self.servers(&targets(&room.settings)).await
    }

    async fn ask(&self, target: &Target, path: &str) -> Result<(), Failure> {
        let Ok(headers) = target.header_map() else {
            return Ok(());
        };
        let request = self.http.get(&target.url(path)).headers(headers);
        self.http.head_of(request).await.map(drop)
    }
}

/// The servers of the providers that can be used, each once for one key: `openai` and `openai-chat` usually are the same.
fn targets(settings: &Settings) -> Vec<Target> {
    let names = settings.providers.keys();
    let all = names.filter_map(|name| Target::of_provider(settings, name, "any").ok());
    let mut targets: Vec<Target> = Vec::new();
    for target in all {
        if !targets.iter().any(|other| other.is_same_server(&target)) {
            targets.push(target);
        }
    }
    targets
}

/// Health of a failed check; `None` if the server is considered healthy.
fn judge(answer: Result<(), Failure>) -> Option<Health> {
    let failure = answer.err()?;
    Some(match &failure {
        Failure::Connect(_) | Failure::Silent(_) => {
            Health::offline(format!("{failure}: check the network, or correct base_url"))
        }
        Failure::Refused { host, status, .. } => match status.as_u16() {
            401 | 403 => Health::degraded(format!(
                "{host} rejected the API key ({status}): set a valid one"
            )),
            // A server without a list of models can be healthy.
            404 | 405 => return None,
            _ => Health::degraded(format!("{host} answered {status}: check its status page")),
        },
        Failure::Tls(_)
        | Failure::Client(_)
        | Failure::Broken(_)
        | Failure::TooLong(_)
        | Failure::NotJson(_) => Health::degraded(failure.to_string()),
    })
}
