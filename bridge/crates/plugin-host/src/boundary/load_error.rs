//! Reasons why a library or program cannot serve.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use forge_adapter_api::AdapterError;
use forge_base::ownership::Objection;

/// Reason why a library cannot serve, in one line: what was found, what was wanted, what to do.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("{0}")]
    NotFound(String),
    #[error("{name} is not on the allow-list; add its name and sha256 to plugin.allow")]
    NotAllowed { name: String },
    #[error("{0} is a symbolic link; put the library itself there")]
    Symlink(PathBuf),
    #[error("{0} is not executable; make it a program (chmod +x)")]
    NoProgram(PathBuf),
    #[error("{0} is not a regular file")]
    NoRegularFile(PathBuf),
    #[error(transparent)]
    Untrusted(Objection),
    #[error("{path} has sha256 {found}, the allow-list wants {wanted}; check where it came from")]
    DigestMismatch {
        path: PathBuf,
        found: String,
        wanted: String,
    },
    #[error("{path} cannot be read")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} cannot be copied to {folder}")]
    Copy {
        path: PathBuf,
        folder: PathBuf,
        source: io::Error,
    },
    #[error(
        "{path} is {found}; wanted a shared library for {} on {}: build it there",
        std::env::consts::ARCH,
        std::env::consts::OS
    )]
    Platform { path: PathBuf, found: String },
    #[error(
        "{path} cannot be loaded beside the {most} libraries that this process holds for the adapter and \
         cannot unload; restart the bridge, or set isolation = \"process\" for the adapter"
    )]
    TooManyImages { path: PathBuf, most: usize },
    #[error("{path} cannot be opened by the dynamic loader: {message}")]
    Open { path: PathBuf, message: String },
    #[error(
        "{path} is a shared library but not an adapter: it exports neither {} nor {}; build it with export_adapter! or forge_adapter.h",
        .symbols[0],
        .symbols[1]
    )]
    NoEntry {
        path: PathBuf,
        symbols: [&'static str; 2],
    },
    #[error(
        "{path} was built with another abi_stable (found {found}, wanted {wanted}); rebuild it \
         against this forge-adapter-api"
    )]
    AbiHeader {
        path: PathBuf,
        found: String,
        wanted: String,
    },
    #[error(
        "{path} has an incompatible ABI layout: {summary}; rebuild it against this \
         forge-adapter-api"
    )]
    Layout {
        path: PathBuf,
        summary: String,
        full: String,
    },
    #[error(
        "{path} speaks ABI {found}, this bridge ABI {wanted}; use a version of it built for ABI {wanted}"
    )]
    AbiVersion {
        path: PathBuf,
        found: String,
        wanted: String,
    },
    #[error("{path} has an unusable manifest: {message}")]
    Manifest { path: PathBuf, message: String },
    #[error(
        "{path} speaks JSON schemas {min} to {max}, this bridge {wanted}; use a version of it that \
         speaks {wanted}"
    )]
    Schema {
        path: PathBuf,
        min: u32,
        max: u32,
        wanted: u32,
    },
    #[error(
        "{path} was built with panic = {found:?}, wanted \"unwind\"; remove panic = \"abort\" from \
         its Cargo profile"
    )]
    PanicStrategy { path: PathBuf, found: String },
    #[error(
        "{path} is the adapter {found:?}, wanted {wanted:?}; rename the file, or set library = \
         {found:?} in [adapters.{wanted}]"
    )]
    Provider {
        path: PathBuf,
        found: String,
        wanted: String,
    },
    #[error("create failed: {0}")]
    Create(AdapterError),
    #[error("loading took longer than {0:?}; it blocks in its initialisers, manifest or create")]
    Timeout(Duration),
    #[error(
        "{path} failed its probe in a separate process and was not loaded: {message}; fix it, or use \
         another build of it"
    )]
    Probe { path: PathBuf, message: String },
    #[error("{0}")]
    Process(String),
    /// Message of the child process that refused the library.
    #[error("{0}")]
    Refused(String),
    #[error("cannot start a thread for the adapter")]
    Thread(#[source] io::Error),
}

/// An error and its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line = format!("{line}: {cause}");
        source = cause.source();
    }
    line
}
