//! Specification of an adapter: everything needed to find and start it, at first and at each reload.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::json;
use tokio::runtime::Handle;

use crate::boundary::load_error::LoadError;
use crate::boundary::loaded_images::LoadedImages;
use crate::boundary::manifest;
use crate::instance::backend::is_program;
use crate::instance::boot::{Boot, Found, Launcher, Limits, Source};
use crate::instance::built_in::BuiltIn;
use crate::instance::environment::Environment;
use crate::instance::isolation::Isolation;
use crate::instance::queue::Bounds;
use crate::registry::ProgramUser;
use crate::registry::config::{Allowed, Config};
use crate::registry::error::Error;
use crate::registry::generation::Start;
use crate::registry::pause::Mark;
use crate::registry::resolve::{Named, SearchPath};
use crate::registry::settings::{AdapterTable, Settings};

pub(crate) struct AdapterSpec {
    pub named: Named,
    pub config: Arc<Config>,
    pub path: Arc<SearchPath>,
    /// Folder of the private copies of libraries.
    pub copies: PathBuf,
    /// Folder of what the adapter keeps over restarts; created before the adapter.
    pub state_dir: PathBuf,
    /// Folder of the folders of executions; `None`: that of the system.
    pub temp_dir: Option<PathBuf>,
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
    /// Set if the adapter is part of the bridge, with the runtime of its calls.
    pub built_in: Option<(Arc<dyn BuiltIn>, Handle)>,
}

/// The file of a library that the allow-list permits. The outer error is the operator's.
pub(crate) fn locate(
    library: &str,
    config: &Config,
    path: &SearchPath,
) -> Result<Result<PathBuf, LoadError>, Error> {
    let found = path.find(library)?;
    if config.allow.is_empty() || allowed(library, config).is_some() {
        return Ok(found);
    }
    let name = library.to_owned();
    Ok(Err(LoadError::NotAllowed { name }))
}

/// SHA-256 that the allow-list demands of a library.
pub(crate) fn pinned<'a>(library: &str, config: &'a Config) -> Option<&'a str> {
    allowed(library, config)?.sha256.as_deref()
}

fn allowed<'a>(library: &str, config: &'a Config) -> Option<&'a Allowed> {
    config.allow.iter().find(|allowed| allowed.name == library)
}

impl AdapterSpec {
    /// Parameters for starting an instance of the file found now. The outer error is the operator's: two files for one
    /// adapter.
    pub(crate) fn boot(&self) -> Result<Result<(Boot, Start), LoadError>, Error> {
        let (named, config) = (&self.named, &self.config);
        if let Some((adapter, runtime)) = &self.built_in {
            let source = Source::BuiltIn(Arc::clone(adapter), runtime.clone());
            let environment = Environment {
                id: named.id.clone(),
                variables: BTreeMap::new(),
                listed: Vec::new(),
            };
            let settings = Settings {
                environment,
                table: self.table.clone(),
                apart: false,
            };
            return Ok(Ok(self.started(source, Vec::new(), settings)));
        }
        let path = locate(&named.library, config, &self.path)?;
        self.create_state_dir()?;
        Ok(path.map(|path| {
            let isolation = self.table.isolation.unwrap_or_default();
            let apart = isolation == Isolation::Process || is_program(&path);
            let create = json!({
                "schema": manifest::SCHEMA,
                "instance": named.id,
                "storeId": self.store_id,
                "epoch": self.epoch,
                "stateDir": self.state_dir,
                "tempDir": self.temp_dir,
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
            let source = Source::Found(Box::new(Found {
                path,
                copies: self.copies.join(&named.library),
                trust: config.trust,
                digest: pinned(&named.library, config).map(str::to_owned),
                images: Arc::clone(&self.images),
                isolation,
                launcher: (!self.supervisor.is_empty()).then_some(launcher),
            }));
            self.started(source, create.to_string().into_bytes(), settings)
        }))
    }

    fn started(&self, source: Source, create: Vec<u8>, settings: Settings) -> (Boot, Start) {
        let config = &self.config;
        let boot = Boot {
            id: self.named.id.clone(),
            library: self.named.library.clone(),
            source,
            create,
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
    }

    fn create_state_dir(&self) -> Result<(), Error> {
        let path = &self.state_dir;
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o700)))
            .map_err(|source| Error::StateFolder {
                path: path.clone(),
                source,
            })
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
