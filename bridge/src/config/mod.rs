//! Complete configuration: one section per component, with its defaults defined in that component. Read from
//! the defaults, one TOML file and the environment; later sources override earlier ones. Knows nothing about
//! the meaning of a section.

pub mod changes;
mod extract;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod layers;

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use figment::Figment;
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{otlp, registration, telemetry};
use forge_base::ownership::{self, LastLink};
use forge_delivery as delivery;
use forge_dispatch as dispatch;
use forge_dispatch::mcp;
use forge_external as external;
use forge_net as net;
use forge_plugin_host as plugin;
use forge_process as process;
use forge_runs as runs;
use forge_server::{self as http, auth, metrics, tls};
use forge_signals as signals;
use forge_store as store;

pub use extract::Problem;

/// Reference file from `config/`: every key with its default and description.
pub const DOCUMENTED: &str = include_str!("../../../config/forge-bridge.toml");

/// Default name of the configuration file.
const FILE: &str = "forge-bridge.toml";

/// All settings. To add a section, add one line here and one in `Default`, and document its keys in
/// `config/forge-bridge.toml`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Listen address of the HTTP interface.
    pub listen: SocketAddr,
    /// Folder of the store.
    pub data_dir: PathBuf,
    /// True: refuse to start if any adapter cannot be loaded.
    pub strict: bool,
    pub plugin: plugin::Config,
    /// Adapter tables, by adapter id.
    pub adapters: BTreeMap<String, plugin::AdapterTable>,
    pub auth: auth::Config,
    pub http: http::Config,
    pub tls: tls::Config,
    pub dispatch: dispatch::Config,
    pub mcp: mcp::Config,
    pub external: external::Config,
    pub signals: signals::config::Config,
    pub runs: runs::Config,
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
            external: external::Config::default(),
            signals: signals::config::Config::default(),
            runs: runs::Config::default(),
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

impl Config {
    /// URL at which a client on the same machine reaches the listener.
    pub fn local_url(&self) -> String {
        let scheme = match self.tls.cert {
            Some(_) => "https",
            None => "http",
        };
        let ip = match self.listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        format!("{scheme}://{}", SocketAddr::new(ip, self.listen.port()))
    }
}

/// Keys that encrypt secrets in the store.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Secret {
    /// 32 bytes as hex or base64. Overrides `key_file`.
    #[serde(with = "forge_base::secret")]
    pub key: Option<SecretString>,
    /// Former keys, which only decrypt.
    #[serde(with = "forge_base::secret::list")]
    pub previous: Vec<SecretString>,
    /// Key file, created at the first start, readable only by its owner, outside of `data_dir`. One key per
    /// line; the first one encrypts.
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

/// Retention of finished work.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Retention of records, from the later of the finish and the end of the delivery.
    #[serde(with = "forge_base::duration")]
    pub records: Duration,
    /// Retention of signals of AI tools and their sessions, from their arrival.
    #[serde(with = "forge_base::duration")]
    pub signals: Duration,
    /// Interval between sweeps.
    #[serde(with = "forge_base::duration")]
    pub every: Duration,
    /// Maximum number of records removed per step.
    pub step: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            records: Duration::from_secs(7 * 24 * 60 * 60),
            signals: Duration::from_secs(35 * 24 * 60 * 60),
            every: Duration::from_secs(60),
            step: 100,
        }
    }
}

/// Shutdown phases after SIGTERM.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Drain {
    /// Time during which dispatches are still accepted.
    #[serde(with = "forge_base::duration")]
    pub accept: Duration,
    /// Total time for running work to finish.
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

/// Choice of the configuration file.
#[derive(Debug, Clone)]
pub enum File {
    /// `BRIDGE_CONFIG`, or else `./forge-bridge.toml` if it exists.
    Search,
    /// This file; it has to exist.
    At(PathBuf),
    /// No file.
    Nowhere,
}

/// Sources of a configuration; kept by `serve` to read it again on SIGHUP.
#[derive(Debug, Clone)]
pub struct Sources {
    pub file: File,
    /// Environment variables, by value, so that a test needs no separate process.
    pub environment: BTreeMap<String, String>,
}

/// Loaded configuration with its warnings.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub config: Config,
    /// File that was read, if any.
    pub file: Option<PathBuf>,
    pub warnings: Vec<String>,
}

/// All errors of a configuration.
#[derive(Debug, thiserror::Error)]
pub struct Error<T: fmt::Debug = Config> {
    pub problems: Vec<Problem>,
    /// Warnings raised before; one of them might be the cause.
    pub warnings: Vec<String>,
    /// All other settings, with defaults in place of the wrong ones; `None` if a whole source is unreadable.
    pub rest: Option<Box<T>>,
}

impl<T: fmt::Debug> fmt::Display for Error<T> {
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
        let (mut config, warnings, mut problems) = match read(&known, named, &self.environment) {
            Ok((config, warnings)) => (config, warnings, Vec::new()),
            Err(Error {
                problems,
                warnings,
                rest: Some(rest),
            }) => (*rest, warnings, problems),
            Err(error) => return Err(error),
        };
        config.plugin.strict = config.strict;
        let password = self.environment.get("PGPASSWORD");
        let password = password.filter(|text| !text.is_empty());
        config.store.password = password.map(|text| text.as_str().into());
        let paths = [
            Some(("data_dir", &mut config.data_dir)),
            Some(("secret.key_file", &mut config.secret.key_file)),
            Some(("external.root", &mut config.external.root)),
            config
                .signals
                .rules
                .as_mut()
                .map(|file| ("signals.rules", file)),
            config.tls.cert.as_mut().map(|path| ("tls.cert", path)),
            config.tls.key.as_mut().map(|path| ("tls.key", path)),
            config
                .store
                .password_file
                .as_mut()
                .map(|path| ("store.password_file", path)),
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
            false => Err(Error {
                problems,
                warnings,
                rest: Some(Box::new(config)),
            }),
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
        let problem = |message: String| Error {
            problems: vec![Problem {
                key: String::new(),
                source: format!("file {}", path.display()),
                message,
            }],
            warnings: Vec::new(),
            rest: None,
        };
        let read = match required {
            true => std::fs::read_to_string(&path),
            false => match found_here(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((None, None)),
                found => found,
            },
        };
        match read {
            Ok(text) => Ok((Some(path), Some(text))),
            Err(error) => Err(problem(format!("cannot be read: {error}"))),
        }
    }
}

/// Reads a file that was not named. It sets programs to run, and the current folder can be anywhere, so no other user
/// may be able to exchange it.
fn found_here(path: &Path) -> io::Result<String> {
    let mut checked = ownership::open(&std::path::absolute(path)?, LastLink::Follow)?;
    if let Some(objection) = checked.objections.first() {
        return Err(io::Error::other(format!(
            "{objection}; or name the file with --config"
        )));
    }
    let mut text = String::new();
    checked.file.read_to_string(&mut text)?;
    Ok(text)
}

/// Known keys.
struct Known {
    /// Serialised defaults, used for hints.
    examples: serde_json::Value,
    keys: Vec<String>,
}

impl Known {
    /// Collects the keys of any `struct` with defaults. Keys without a default value are known only from the
    /// documentation.
    fn of<T: Default + Serialize>(documented: &str) -> Self {
        let examples = serde_json::to_value(T::default())
            .expect("a configuration is plain data and serialises");
        let mut keys = layers::keys(&examples);
        keys.extend(layers::documented_keys(documented));
        Self { examples, keys }
    }
}

fn read<T: DeserializeOwned + fmt::Debug>(
    Known { examples, keys }: &Known,
    file: Option<(&Path, &str)>,
    environment: &BTreeMap<String, String>,
) -> Result<(T, Vec<String>), Error<T>> {
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
            rest: None,
        })?;
        figment = figment.merge(layer);
    }
    let layers::Layers { figment, warnings } = layers::environment(figment, environment, keys);
    match extract::extract(&figment, examples, keys) {
        Ok(read) => Ok((read, warnings)),
        Err((problems, rest)) => Err(Error {
            problems,
            warnings,
            rest: rest.map(Box::new),
        }),
    }
}

/// Expands a leading `~` to the home folder.
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
