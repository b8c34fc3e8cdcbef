//! What an adapter is written against.

pub mod error;
pub mod event;
pub mod profile;
pub mod request;
pub mod result;

pub use error::AdapterError;
pub use event::AdapterEvent;
pub use profile::{
    CostTier, Health, HealthStatus, LatencyProfile, Manifest, OutputStrategy, Profile,
};
pub use request::ExecutionRequest;
pub use result::{ExecutionResult, Status, Usage};

/// What adapter methods return.
pub type Result<T, E = AdapterError> = std::result::Result<T, E>;
