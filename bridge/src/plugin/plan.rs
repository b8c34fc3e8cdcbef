//! Where an adapter comes from: everything that finds and starts it, at first and again at each reload.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::edition::Start;
use super::images::Images;
use super::instance::{Boot, Limits};
use super::load::LoadError;
use super::pause::Mark;
use super::queue::Bounds;
use super::resolve::{self, Named};
use super::{Allowed, Config, Error, manifest};

pub(super) struct Plan {
    pub named: Named,
    pub config: Arc<Config>,
    /// Absolute, in order.
    pub folders: Arc<[PathBuf]>,
    /// Where private copies of libraries lie.
    pub copies: PathBuf,
    pub store_id: String,
    pub supervisor: Vec<String>,
    pub relay: Vec<String>,
    /// What `initialize` receives.
    pub settings: Map<String, Value>,
    pub max_concurrent: Option<u32>,
    /// All that this adapter has brought into the process.
    pub images: Arc<Images>,
    /// Whether it is paused.
    pub mark: Mark,
}

impl Plan {
    pub(super) fn start(&self) -> Start {
        Start {
            settings: self.settings.clone(),
            max_concurrent: self.max_concurrent,
        }
    }

    /// What the file that is there now would be started from. The outer error is one of the operator's,
    /// two files for one adapter.
    pub(super) fn boot(&self) -> Result<Result<Boot, LoadError>, Error> {
        let (named, config) = (&self.named, &self.config);
        let found = resolve::find(&named.library, &self.folders)?;
        let allowed = config
            .allow
            .iter()
            .find(|allowed: &&Allowed| allowed.name == named.library);
        let path = if config.allow.is_empty() || allowed.is_some() {
            found
        } else {
            Err(LoadError::NotAllowed {
                name: named.library.clone(),
            })
        };
        let create = json!({
            "schema": manifest::SCHEMA,
            "instance": named.id,
            "storeId": self.store_id,
            "supervisor": self.supervisor,
            "relay": self.relay,
            "limits": {"payloadBytes": config.payload_bytes, "eventBytes": config.event_bytes},
            "logLevel": tracing::level_filters::LevelFilter::current().to_string(),
        });
        Ok(path.map(|path| Boot {
            id: named.id.clone(),
            library: named.library.clone(),
            path,
            copies: self.copies.join(&named.library),
            trust: config.trust,
            digest: allowed.and_then(|allowed| allowed.sha256.clone()),
            images: Arc::clone(&self.images),
            create: create.to_string().into_bytes(),
            bounds: Limits {
                payload: config.payload_bytes,
                execution: Bounds {
                    queued: config.queue_bytes,
                    event: config.event_bytes,
                    total: Some(config.execution_bytes),
                },
                waiting: 4 * config.payload_bytes,
            },
            deadline: config.initialize_timeout,
        }))
    }
}
