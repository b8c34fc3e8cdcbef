//! The configuration as a whole: one section for each component, whose defaults stand with that
//! component. Read from defaults, one TOML file and the environment, in this order. Must not know
//! what a section means.

pub mod changes;
mod extract;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod layers;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::Figment;
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{otlp, registration, telemetry};
use forge_delivery as delivery;
use forge_dispatch as dispatch;
use forge_dispatch::mcp;
use forge_net as net;
use forge_plugin_host as plugin;
use forge_process as process;
use forge_server::{self as http, auth, metrics, tls};
use forge_store as store;

pub use extract::Problem;

/// Every key with its default and what it is for, as it lies in `config/`.
pub const DOCUMENTED: &str = include_str!("../../../config/forge-bridge.toml");

/// The file that is read when none is named.
const FILE: &str = "forge-bridge.toml";

/// Everything that can be set. A new section is one line here, one in `Default`, and its keys in
/// `config/forge-bridge.toml`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where the HTTP interface listens.
    pub listen: SocketAddr,
    /// Where the store lies.
    pub data_dir: PathBuf,
    /// Whether one adapter that cannot be loaded is enough to refuse the start.
    pub strict: bool,
    pub plugin: plugin::Config,
    /// By adapter.
    pub adapters: BTreeMap<String, plugin::AdapterTable>,
    pub auth: auth::Config,
    pub http: http::Config,
    pub tls: tls::Config,
    pub dispatch: dispatch::Config,
    pub mcp: mcp::Config,
    pub callback: delivery::Config,
    pub net: net::Config,
    pub process: process::Config,
    pub registration: registration::Config,
    pub store: store::Config,
    pub secret: Secret,
    pub retention: Retention,
    pub drain: Drain,
    pub log: telemetry::Config,
    pub metrics: metrics::Config,
    pub otlp: otlp::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7420)),
            data_dir: "~/.local/share/forge-bridge".into(),
            strict: false,
            plugin: plugin::Config::default(),
            adapters: BTreeMap::new(),
            auth: auth::Config::default(),
            http: http::Config::default(),
            tls: tls::Config::default(),
            dispatch: dispatch::Config::default(),
            mcp: mcp::Config::default(),
            callback: delivery::Config::default(),
            net: net::Config::default(),
            process: process::Config::default(),
            registration: registration::Config::default(),
            store: store::Config::default(),
            secret: Secret::default(),
            retention: Retention::default(),
            drain: Drain::default(),
            log: telemetry::Config::default(),
            metrics: metrics::Config::default(),
            otlp: otlp::Config::default(),
        }
    }
}

/// The key under which secrets lie in the store.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Secret {
    /// 32 bytes as hex or base64. Goes before the file.
    #[serde(with = "forge_base::secret")]
    pub key: Option<SecretString>,
    /// Former ones, which still open what they sealed.
    #[serde(with = "forge_base::secret::list")]
    pub previous: Vec<SecretString>,
    /// Made at the first start, readable by its owner alone, outside of `data_dir`. A key a line; the first
    /// one seals.
    pub key_file: PathBuf,
}

impl Default for Secret {
    fn default() -> Self {
        Self {
            key: None,
            previous: Vec::new(),
            key_file: "~/.config/forge-bridge/secret.key".into(),
        }
    }
}

/// How long finished work is kept.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Counts from the later of the finish and the end of the delivery.
    #[serde(with = "forge_base::duration")]
    pub records: Duration,
    /// How often what is past it is looked for.
    #[serde(with = "forge_base::duration")]
    pub every: Duration,
    /// How many records one step removes at most.
    pub step: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            records: Duration::from_secs(7 * 24 * 60 * 60),
            every: Duration::from_secs(60),
            step: 100,
        }
    }
}

/// What happens between SIGTERM and the end of the process.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Drain {
    /// How long dispatches are still accepted.
    #[serde(with = "forge_base::duration")]
    pub accept: Duration,
    /// How long running work has in all.
    #[serde(with = "forge_base::duration")]
    pub grace: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self {
            accept: Duration::from_secs(5),
            grace: Duration::from_secs(20),
        }
    }
}

/// Which file is read.
#[derive(Debug, Clone)]
pub enum File {
    /// `BRIDGE_CONFIG`, else `./forge-bridge.toml` where there is one.
    Search,
    /// This one; it has to exist.
    At(PathBuf),
    /// None at all.
    Nowhere,
}

/// Where a configuration comes from; kept by `serve` to read it again on SIGHUP.
#[derive(Debug, Clone)]
pub struct Sources {
    pub file: File,
    /// By value, so that a test needs no process of its own.
    pub environment: BTreeMap<String, String>,
}

/// A configuration and what has to be said about it.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub config: Config,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    pub warnings: Vec<String>,
}

/// Everything that is wrong, at once.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    pub problems: Vec<Problem>,
    /// Warnings that came up before; one of them may be the reason.
    pub warnings: Vec<String>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.as_slice() {
            [problem] => write!(f, "the configuration is not valid: {problem}"),
            problems => {
                write!(f, "the configuration has {} errors:", problems.len())?;
                problems
                    .iter()
                    .try_for_each(|problem| write!(f, "\n  {problem}"))
            }
        }
    }
}

impl Sources {
    pub fn load(&self) -> Result<Loaded, Error> {
        let (file, text) = self.text()?;
        let named = file.as_deref().zip(text.as_deref());
        let known = Known::of::<Config>(DOCUMENTED);
        let (mut config, warnings): (Config, _) = read(&known, named, &self.environment)?;
        config.plugin.strict = config.strict;
        let mut problems = Vec::new();
        let paths = [
            Some(("data_dir", &mut config.data_dir)),
            Some(("secret.key_file", &mut config.secret.key_file)),
            config.tls.cert.as_mut().map(|path| ("tls.cert", path)),
            config.tls.key.as_mut().map(|path| ("tls.key", path)),
        ];
        for (key, path) in paths.into_iter().flatten() {
            if let Err(problem) = expand(key, path, &self.environment) {
                problems.push(problem);
            }
        }
        match problems.is_empty() {
            true => Ok(Loaded {
                config,
                file,
                warnings,
            }),
            false => Err(Error { problems, warnings }),
        }
    }

    fn text(&self) -> Result<(Option<PathBuf>, Option<String>), Error> {
        let named = self.environment.get("BRIDGE_CONFIG").map(PathBuf::from);
        let (path, required) = match (&self.file, named) {
            (File::Nowhere, _) => return Ok((None, None)),
            (File::At(path), _) => (path.clone(), true),
            (File::Search, Some(path)) if !path.as_os_str().is_empty() => (path, true),
            (File::Search, _) => (PathBuf::from(FILE), false),
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok((Some(path), Some(text))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => {
                Ok((None, None))
            }
            Err(error) => Err(Error {
                problems: vec![Problem {
                    key: String::new(),
                    source: format!("file {}", path.display()),
                    message: format!("cannot be read: {error}"),
                }],
                warnings: Vec::new(),
            }),
        }
    }
}

/// What may be set.
struct Known {
    /// The serialised defaults, from which hints are taken.
    examples: serde_json::Value,
    keys: Vec<String>,
}

impl Known {
    /// Of any `struct` that carries its own defaults. Keys whose default is nothing are known from their
    /// documentation alone.
    fn of<T: Default + Serialize>(documented: &str) -> Self {
        let examples = serde_json::to_value(T::default())
            .expect("a configuration is plain data and serialises");
        let mut keys = layers::keys(&examples);
        keys.extend(layers::documented_keys(documented));
        Self { examples, keys }
    }
}

fn read<T: DeserializeOwned>(
    Known { examples, keys }: &Known,
    file: Option<(&Path, &str)>,
    environment: &BTreeMap<String, String>,
) -> Result<(T, Vec<String>), Error> {
    let mut figment = Figment::new()
        .merge(layers::standard_folders(environment, keys))
        .merge(layers::standard_telemetry(environment, keys));
    if let Some((path, text)) = file {
        let name = path.display().to_string();
        let layer = layers::file(&name, text).map_err(|message| Error {
            problems: vec![Problem {
                key: String::new(),
                source: format!("file {name}"),
                message,
            }],
            warnings: Vec::new(),
        })?;
        figment = figment.merge(layer);
    }
    let layers::Layers { figment, warnings } = layers::environment(figment, environment, keys);
    match extract::extract(&figment, examples, keys) {
        Ok(read) => Ok((read, warnings)),
        Err(problems) => Err(Error { problems, warnings }),
    }
}

/// `~/` is the home folder.
fn expand(
    key: &str,
    path: &mut PathBuf,
    environment: &BTreeMap<String, String>,
) -> Result<(), Problem> {
    let Ok(rest) = path.strip_prefix("~") else {
        return Ok(());
    };
    let home = environment.get("HOME").filter(|home| !home.is_empty());
    let home = home.ok_or_else(|| Problem {
        key: key.to_owned(),
        source: String::new(),
        message: format!("HOME is not set; set {}", layers::variable(key)),
    })?;
    *path = Path::new(home).join(rest);
    Ok(())
}

#[cfg(test)]
mod tests;
