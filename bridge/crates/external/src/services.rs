//! Services that can be called now: the catalog with compiled schemas, targets, limits and load. Follows the files of
//! the root folder; files with an error leave the last good ones in force.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use forge_base::ownership::Trust;
use forge_base::reloadable::Reloadable;
use forge_base::schema::{self, Schema};
use forge_base::tasks::Rounds;
use forge_base::time;
use forge_base::trace::Spans;
use forge_net::breaker::Phase;
use forge_net::guard::{BadRule, Guard};
use forge_net::{self as net, Client};
use forge_process::program::Launcher;

use crate::canonical;
use crate::catalog::Catalog;
use crate::config::{AuthMode, Config};
use crate::diagnostic::Diagnostic;
use crate::identity::{Identity, JwtError, Refusal, Tokens};
use crate::load::Load;
use crate::manifest::{Entry, EntryKind, Manifest};
use crate::meters::Meters;
use crate::policy::Rules;
use crate::probe::Checked;
use crate::registry::{self, ROOT_MANIFEST};
use crate::target::Target;
use crate::transport::grpc::GrpcClient;

/// Interval of looking at the files.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

/// Dependencies of the calls.
pub struct Setup {
    pub config: Config,
    pub net: net::Config,
    /// Policy for files of services and programs that other users can change.
    pub trust: Trust,
    /// Starts the services that are programs.
    pub launcher: Launcher,
    /// Environment that `pass_env` takes variables from.
    pub environment: BTreeMap<String, String>,
    /// Sink of the trace spans.
    pub spans: Spans,
}

/// Error in the settings.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Allow(#[from] BadRule),
    #[error(transparent)]
    Client(#[from] net::Error),
    #[error(transparent)]
    Jwt(#[from] JwtError),
}

/// External services and their callers' rules. Cheap to clone.
#[derive(Clone)]
pub struct External {
    inner: Arc<Inner>,
}

impl fmt::Debug for External {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("External").finish_non_exhaustive()
    }
}

struct Inner {
    config: Config,
    client: Client,
    /// `None` if a proxy is configured.
    grpc: Option<GrpcClient>,
    /// Set if callers have a JWT.
    tokens: Option<Tokens>,
    trust: Trust,
    launcher: Launcher,
    environment: BTreeMap<String, String>,
    current: Reloadable<Services>,
    /// Errors of the files that were read last; empty while they are in force.
    problems: Reloadable<Vec<Diagnostic>>,
    /// Files as they were read last. Held while they are read, so that two reloads follow each other.
    seen: Mutex<Seen>,
    meters: Meters,
    spans: Spans,
}

/// Services in force.
#[derive(Debug, Default)]
pub(crate) struct Services {
    by_name: BTreeMap<String, Arc<ActiveService>>,
    warnings: Vec<Diagnostic>,
}

/// Service that can be called, with everything that a call needs.
#[derive(Debug)]
pub(crate) struct ActiveService {
    pub(crate) manifest: Arc<Manifest>,
    digest: String,
    /// Compiled `inputSchema` of each entry.
    pub(crate) schemas: Vec<Option<Schema>>,
    pub(crate) target: Target,
    pub(crate) limits: Limits,
    pub(crate) load: Arc<Load>,
}

#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) timeout: Duration,
    pub(crate) answer_bytes: usize,
    pub(crate) calls: usize,
}

/// Time, size and inode of the two files.
type Seen = [Option<(i64, i64, u64, u64)>; 2];

impl External {
    /// Reads the services. Files with errors are no error: the services are missing until the files are corrected.
    pub fn new(setup: Setup) -> Result<Self, Error> {
        let (client, tokens) = Self::checked(&setup.config, &setup.net)?;
        let external = Self {
            inner: Arc::new(Inner {
                grpc: client.http2(),
                client,
                tokens,
                trust: setup.trust,
                launcher: setup.launcher,
                environment: setup.environment,
                current: Reloadable::default(),
                problems: Reloadable::default(),
                seen: Mutex::default(),
                meters: Meters::default(),
                spans: setup.spans,
                config: setup.config,
            }),
        };
        external.reload();
        Ok(external)
    }

    /// Checks the settings.
    pub fn check(config: &Config, net: &net::Config) -> Result<(), Error> {
        Self::checked(config, net).map(drop)
    }

    /// Checks the settings; returns what they describe.
    fn checked(config: &Config, net: &net::Config) -> Result<(Client, Option<Tokens>), Error> {
        let guard = Guard::of_setting("external.allow", &config.allow)?;
        let client = Client::new(&config.client(net), guard)?;
        let tokens = match config.auth {
            AuthMode::Token | AuthMode::DevHeaders => None,
            AuthMode::Jwt => Some(Tokens::new(&config.jwt, "jwt")?),
            AuthMode::Oidc => Some(Tokens::new(&config.jwt, "oidc")?),
        };
        Ok((client, tokens))
    }

    /// Reads the files again: all services change together, or none. Blocks.
    pub fn reload(&self) {
        let inner = &*self.inner;
        let mut seen = inner.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked at first: a change while they are read is found the next time.
        *seen = look(&inner.config.root);
        let policies = inner.config.policies.keys().map(String::as_str);
        match Catalog::load(&inner.config.root, inner.trust, policies) {
            Ok(catalog) => {
                for warning in &catalog.diagnostics {
                    tracing::warn!("external services: {warning}");
                }
                let services = self.services();
                inner.current.replace(services.followed_by(catalog, inner));
                inner.problems.replace(Vec::new());
            }
            Err(problems) => {
                for problem in &problems {
                    tracing::error!("external services unchanged: {problem}");
                }
                inner.problems.replace(problems);
            }
        }
    }

    /// Follows the files until the token is cancelled.
    pub async fn run(self, ending: CancellationToken) {
        let mut rounds = Rounds::every(FOLLOW_EVERY, ending);
        while rounds.due().await {
            let external = self.clone();
            let looked = tokio::task::spawn_blocking(move || {
                let inner = &*external.inner;
                let seen = *inner.seen.lock().unwrap_or_else(PoisonError::into_inner);
                if seen != look(&inner.config.root) {
                    external.reload();
                }
            });
            if let Err(error) = looked.await {
                tracing::error!("the files of external services could not be read: {error}");
            }
        }
    }

    /// Source of the callers' identities.
    pub fn auth(&self) -> AuthMode {
        self.inner.config.auth
    }

    /// Time of one call of a service, its retries included.
    pub fn timeout(&self, service: &str) -> Duration {
        let own = self.inner.config.services.get(service);
        own.and_then(|own| own.timeout)
            .unwrap_or(self.inner.config.timeout)
    }

    /// Identity of the caller with this JWT. Anonymous in the modes that have no JWT.
    pub async fn identify(&self, token: Option<&[u8]>) -> Result<Identity, Refusal> {
        let Some(tokens) = &self.inner.tokens else {
            return Ok(Identity::Anonymous);
        };
        let token = token.ok_or(Refusal::Missing)?;
        tokens.identify(&self.inner.client, token).await
    }

    pub fn meters(&self) -> &Meters {
        &self.inner.meters
    }

    pub(crate) fn spans(&self) -> &Spans {
        &self.inner.spans
    }

    pub(crate) fn config(&self) -> &Config {
        &self.inner.config
    }

    pub(crate) fn rules(&self) -> Rules<'_> {
        Rules {
            policies: &self.inner.config.policies,
            enforce: &self.inner.config.enforce,
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.inner.client
    }

    pub(crate) fn trust(&self) -> Trust {
        self.inner.trust
    }

    pub(crate) fn launcher(&self) -> &Launcher {
        &self.inner.launcher
    }

    pub(crate) fn services(&self) -> Arc<Services> {
        self.inner.current.get()
    }

    /// True if no service is known.
    pub fn is_empty(&self) -> bool {
        self.services().by_name.is_empty()
    }

    /// State of all services, and findings in the files, errors first.
    pub fn overview(&self) -> Value {
        let services = self.services();
        let problems = self.inner.problems.get();
        let states: Vec<Value> = services.by_name.values().map(|one| one.state()).collect();
        let diagnostics: Vec<_> = problems.iter().chain(&services.warnings).collect();
        json!({ "auth": self.auth(), "services": states, "diagnostics": diagnostics })
    }

    /// Number of services, of those that are not healthy or whose breaker is not closed, and of errors in the files.
    pub fn counts(&self) -> Counts {
        let services = self.services();
        let all = services.by_name.values();
        let is_sick = |health: Checked| !health.is_healthy();
        let unavailable = all.filter(|one| {
            one.load.phase() != Phase::Closed || one.load.health().is_some_and(is_sick)
        });
        Counts {
            known: services.by_name.len(),
            unavailable: unavailable.count(),
            problems: self.inner.problems.get().len(),
        }
    }
}

/// Numbers of services and problems, for health reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub known: usize,
    pub unavailable: usize,
    pub problems: usize,
}

impl Services {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<ActiveService>> {
        self.by_name.values()
    }

    /// The service and the entry of this kind that `service.entry` names; names can contain dots.
    pub(crate) fn named(
        &self,
        kind: EntryKind,
        name: &str,
    ) -> Option<(&Arc<ActiveService>, &Entry)> {
        let mut splits = name.match_indices('.');
        splits.find_map(|(dot, _)| {
            let service = self.by_name.get(&name[..dot])?;
            let mut entries = service.manifest.entries.iter();
            let entry = entries.find(|one| one.kind == kind && one.name == name[dot + 1..])?;
            Some((service, entry))
        })
    }

    /// Service and index of the entry.
    pub(crate) fn find(
        &self,
        kind: EntryKind,
        service: &str,
        entry: &str,
    ) -> Option<(Arc<ActiveService>, usize)> {
        let service = self.by_name.get(service)?;
        let mut entries = service.manifest.entries.iter();
        let index = entries.position(|other| other.kind == kind && other.name == entry)?;
        Some((Arc::clone(service), index))
    }

    /// Services of a new catalog. A service whose address is the same keeps its load and breaker.
    fn followed_by(&self, catalog: Catalog, inner: &Inner) -> Self {
        let by_name = catalog.services().map(|manifest| {
            let name = &manifest.service.name;
            let former = self.by_name.get(name);
            let former = former.filter(|former| former.manifest.service == manifest.service);
            let load = former.map_or_else(Load::new, |former| Arc::clone(&former.load));
            (
                name.clone(),
                Arc::new(ActiveService::new(manifest, inner, load)),
            )
        });
        Self {
            by_name: by_name.collect(),
            warnings: catalog.diagnostics,
        }
    }
}

impl ActiveService {
    fn new(manifest: &Arc<Manifest>, inner: &Inner, load: Arc<Load>) -> Self {
        let config = &inner.config;
        let own = config.services.get(&manifest.service.name);
        let own = own.cloned().unwrap_or_default();
        // A schema that does not compile was refused with its manifest.
        let compiled = |entry: &Entry| schema::compile(entry.input_schema.as_ref()?).ok();
        Self {
            digest: canonical::digest(&**manifest),
            schemas: manifest.entries.iter().map(compiled).collect(),
            target: Target::new(manifest, &own, inner.grpc.as_ref(), &inner.environment),
            limits: Limits {
                timeout: own.timeout.unwrap_or(config.timeout),
                answer_bytes: own.answer_bytes.unwrap_or(config.answer_bytes),
                calls: own.max_calls.unwrap_or(config.max_calls),
            },
            manifest: Arc::clone(manifest),
            load,
        }
    }

    fn state(&self) -> Value {
        let manifest = &*self.manifest;
        let service = &manifest.service;
        let breaker = match self.load.phase() {
            Phase::Closed => json!({ "state": "closed" }),
            Phase::Open(trip) => json!({ "state": "open", "until": time::format(trip.until) }),
            Phase::HalfOpen(..) => json!({ "state": "half_open" }),
        };
        let unsupported = match &self.target {
            Target::Unsupported(reason) => Some(reason),
            Target::Http(_) | Target::Program(_) | Target::Grpc(_) => None,
        };
        json!({
            "name": service.name, "transport": service.transport, "baseUrl": service.base_url,
            "language": manifest.language, "framework": manifest.framework, "digest": self.digest,
            "unsupported": unsupported, "breaker": breaker,
            "health": Checked::view(self.load.health().as_ref()),
            "running": self.load.running(), "maxCalls": self.limits.calls,
            "entries": manifest.entries,
        })
    }
}

fn look(root: &Path) -> Seen {
    [registry::path(root), root.join(ROOT_MANIFEST)].map(|path| {
        let found = std::fs::metadata(path).ok()?;
        Some((found.mtime(), found.mtime_nsec(), found.size(), found.ino()))
    })
}
