//! Specification of an adapter: everything needed to find and start it, at first and at each reload.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;

use crate::boundary::load_error::LoadError;
use crate::boundary::loaded_images::LoadedImages;
use crate::boundary::manifest;
use crate::instance::backend::is_program;
use crate::instance::boot::{Boot, Found, Launcher, Limits, Source};
use crate::instance::environment::Environment;
use crate::instance::isolation::Isolation;
use crate::instance::queue::Bounds;
use crate::registry::ProgramUser;
use crate::registry::config::{Allowed, Config};
use crate::registry::error::Error;
use crate::registry::generation::Start;
use crate::registry::pause::Mark;
use crate::registry::resolve::{self, Named};
use crate::registry::settings::{AdapterTable, Settings};

pub(crate) struct AdapterSpec {
    pub named: Named,
    pub config: Arc<Config>,
    /// Search path: absolute, in order.
    pub folders: Arc<[PathBuf]>,
    /// Folder of the private copies of libraries.
    pub copies: PathBuf,
    pub store_id: String,
    pub epoch: u64,
    pub supervisor: Vec<String>,
    pub relay: Vec<String>,
    pub user: Option<ProgramUser>,
    pub env: BTreeMap<String, String>,
    pub table: AdapterTable,
    /// Images that this adapter has loaded into the process.
    pub images: Arc<LoadedImages>,
    /// Pause marker.
    pub mark: Mark,
}

impl AdapterSpec {
    /// Parameters for starting an instance of the file found now. The outer error is the operator's: two files for one
    /// adapter.
    pub(crate) fn boot(&self) -> Result<Result<(Boot, Start), LoadError>, Error> {
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
        Ok(path.map(|path| {
            let isolation = self.table.isolation.unwrap_or_default();
            let apart = isolation == Isolation::Process || is_program(&path);
            let create = json!({
                "schema": manifest::SCHEMA,
                "instance": named.id,
                "storeId": self.store_id,
                "epoch": self.epoch,
                "supervisor": self.supervisor_of_programs(apart),
                "relay": self.relay,
                "user": self.user.as_ref().map(|user| &user.user),
                "limits": {"payloadBytes": config.payload_bytes, "eventBytes": config.event_bytes},
                "logLevel": tracing::level_filters::LevelFilter::current().to_string(),
            });
            let environment = Environment {
                id: named.id.clone(),
                variables: self.env.clone(),
                listed: self.table.listed_variables(),
            };
            let settings = Settings {
                environment: environment.clone(),
                table: self.table.clone(),
                apart,
            };
            let launcher = Launcher {
                supervisor: self.supervisor.clone(),
                store_id: self.store_id.clone(),
                environment,
                memory_limit_bytes: self.table.memory_limit_bytes,
                call_timeout: config.call_timeout,
            };
            let boot = Boot {
                id: named.id.clone(),
                library: named.library.clone(),
                source: Source::Found(Box::new(Found {
                    path,
                    copies: self.copies.join(&named.library),
                    trust: config.trust,
                    digest: allowed.and_then(|allowed| allowed.sha256.clone()),
                    images: Arc::clone(&self.images),
                    isolation,
                    launcher: (!self.supervisor.is_empty()).then_some(launcher),
                })),
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
            };
            let start = Start {
                settings,
                max_concurrent: self.table.max_concurrent,
            };
            (boot, start)
        }))
    }

    /// The command with which the adapter starts its programs. Another process than the bridge cannot use the bridge's
    /// descriptor of the supervisor, and gets its path.
    fn supervisor_of_programs(&self, apart: bool) -> Vec<String> {
        let user = self.user.as_ref();
        let mut command = user
            .map_or(&self.supervisor, |user| &user.supervisor)
            .clone();
        if let (true, Some(first), Some(path)) = (apart, command.first_mut(), self.relay.first()) {
            first.clone_from(path);
        }
        command
    }
}
