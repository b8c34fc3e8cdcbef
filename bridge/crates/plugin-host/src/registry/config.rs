//! Section `[plugin]` of the configuration, with its defaults.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::boundary::answer;
use crate::boundary::trust::Trust;
use crate::instance::process::crashes::Restart;

/// The adapter to load when the configuration names none.
pub const DEFAULT_ADAPTER: &str = "echo";

/// `[plugin]` of the configuration.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The adapters to load (`BRIDGE_ADAPTERS`). Empty: the default provider alone, else `echo`.
    pub adapters: Vec<String>,
    /// The provider of dispatches that name none (`GATEWAY_PROVIDER`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_provider: Option<String>,
    /// Folders searched in order, before those beside the binary (`BRIDGE_PLUGIN_PATH`). Default: `plugins`.
    pub path: Vec<PathBuf>,
    /// Refuse to start when an adapter cannot be loaded. Set by the top-level setting `strict`.
    #[serde(skip)]
    pub strict: bool,
    /// Policy for libraries that other users can write. Default: refuse them.
    pub trust: Trust,
    /// Allow-list: unless empty, only these libraries are loaded.
    pub allow: Vec<Allowed>,
    /// Limit for loading and for `initialize`, each. Default: 30 s.
    #[serde(with = "forge_base::duration")]
    pub initialize_timeout: Duration,
    #[serde(with = "forge_base::duration")]
    pub health_timeout: Duration,
    /// Age below which the cached health is used without asking again. Default: 5 s.
    #[serde(with = "forge_base::duration")]
    pub health_age: Duration,
    /// Time that an adapter function can hold a bridge thread before the adapter counts as blocked. Default: 1 s.
    #[serde(with = "forge_base::duration")]
    pub call_timeout: Duration,
    /// Time for calls on a replaced generation to finish before they are ended. Default: 24 h.
    #[serde(with = "forge_base::duration")]
    pub reload_drain: Duration,
    /// The largest answer that is accepted. Default: 32 MiB.
    pub payload_bytes: usize,
    /// The largest event; larger ones are dropped and counted. Default: 1 MiB.
    pub event_bytes: usize,
    /// Limit of an execution's events that wait to be recorded; beyond it the adapter is slowed. Default: 4 MiB.
    pub queue_bytes: usize,
    /// Limit of all events of one execution; beyond it the execution ends as `output_too_large`. Default: 256 MiB.
    pub execution_bytes: usize,
    /// Restart policy of adapters that have a process of their own.
    pub restart: Restart,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            adapters: Vec::new(),
            default_provider: None,
            path: vec![PathBuf::from("plugins")],
            strict: false,
            trust: Trust::Enforce,
            allow: Vec::new(),
            initialize_timeout: Duration::from_secs(30),
            health_timeout: Duration::from_secs(2),
            health_age: Duration::from_secs(5),
            call_timeout: Duration::from_secs(1),
            reload_drain: Duration::from_secs(86_400),
            payload_bytes: answer::DEFAULT_BYTES,
            event_bytes: 1024 * 1024,
            queue_bytes: 4 * 1024 * 1024,
            execution_bytes: 256 * 1024 * 1024,
            restart: Restart::default(),
        }
    }
}

/// An entry of the allow-list.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Allowed {
    /// The library's name.
    pub name: String,
    /// SHA-256 in hexadecimal digits; absent: any file of that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}
