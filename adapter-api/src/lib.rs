//! SDK for adapters: the contract, its types, the export and the conformance checks. Independent of the
//! bridge.
//!
#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod adapter;
pub mod child;
mod config;
pub mod conformance;
pub mod error;
pub mod event;
mod events;
#[doc(hidden)]
pub mod export;
pub mod folder;
pub mod foreign_json;
mod guard;
pub mod host;
mod instance;
mod json;
mod listeners;
mod log;
pub mod manage;
pub mod options;
pub mod profile;
pub mod request;
pub mod result;
mod running;
pub mod secret;
mod trace;

pub use adapter::ExecutionAdapter;
pub use config::Config;
pub use error::AdapterError;
pub use event::AdapterEvent;
pub use events::{Events, Sent};
pub use host::{Host, User};
pub use instance::{CancelAnswer, CancelRequest, SteerAnswer, SteerRequest};
pub use listeners::{EventListeners, ListenerId};
pub use options::ModelOptions;
pub use profile::{
    CostTier, Health, HealthStatus, LatencyProfile, Manifest, OutputStrategy, Profile,
};
pub use request::ExecutionRequest;
pub use result::{ExecutionResult, Status, Usage};
pub use running::{Messages, Run, Running};
pub use trace::traceparent;

pub use async_trait::async_trait;
pub use serde_json;
pub use tracing;

/// Result of adapter methods.
pub type Result<T, E = AdapterError> = std::result::Result<T, E>;
