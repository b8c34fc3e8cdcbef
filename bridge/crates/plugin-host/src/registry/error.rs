//! Reasons why the registry cannot start.

use std::io;
use std::path::PathBuf;

/// Reason why the registry cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("invalid adapter name {0:?}; use 1 to 64 lower-case letters, digits, \"-\" and \"_\"")]
    BadName(String),
    #[error(
        "the adapter id {0:?} is reserved for external services; serve the library under another id: \
         [adapters.NAME] with library = {0:?}"
    )]
    Reserved(String),
    #[error("the adapter ids {first:?} and {second:?} collide; keep one of them")]
    DuplicateId { first: String, second: String },
    #[error("two files serve the adapter {id:?}: {first} and {second}; keep one of them")]
    DuplicateFile {
        id: String,
        first: PathBuf,
        second: PathBuf,
    },
    #[error(
        "the default provider {name:?} is not among the adapters; {}",
        match nearest {
            Some(id) => format!("did you mean {id}?"),
            None => "add it to BRIDGE_ADAPTERS".to_owned(),
        }
    )]
    UnknownDefault {
        name: String,
        nearest: Option<String>,
    },
    #[error("the plugin path {path} cannot be made absolute")]
    PluginPath { path: PathBuf, source: io::Error },
    #[error("the state folder {path} cannot be made absolute")]
    StateFolder { path: PathBuf, source: io::Error },
    #[error("no adapter can be loaded: {}", .0.join("; "))]
    NothingLoadable(Vec<String>),
    #[error("strict is set and not every adapter can be loaded: {}", .0.join("; "))]
    NotEveryLoadable(Vec<String>),
}
