//! The plugin host: finds, loads and calls adapter libraries, and bounds the harm that they can do to the bridge.
//! Depends on `forge-adapter-abi`; knows nothing of dispatches, the store or HTTP.
//!
//! Three floors, each of which imports only those below it: `registry`, `instance`, `boundary`.

mod boundary;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod instance;
mod registry;

pub use boundary::load_error::LoadError;
pub use boundary::trust::Trust;
pub use instance::built_in::BuiltIn;
pub use instance::call_stream::{Call, Item};
pub use instance::health::{HealthReport, Quarantine};
pub use instance::isolation::Isolation;
pub use instance::process::child;
pub use instance::process::crashes::Restart;
pub use instance::redaction::Secrets;
pub use instance::relayed::Relayed;
pub use instance::{conform, meters};
pub use registry::adapter::{Adapter, Draining, PauseError};
pub use registry::agents::AgentListing;
pub use registry::config::{Allowed, Config, DEFAULT_ADAPTER};
pub use registry::error::Error;
pub use registry::generation::Permit;
pub use registry::inspect::{Inspection, inspect};
pub use registry::pause::paused;
pub use registry::reload::ReloadError;
pub use registry::settings::AdapterTable;
pub use registry::steering::{Steered, Steering};
pub use registry::{ProgramUser, Registry, Setup};
