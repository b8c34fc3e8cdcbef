//! External services: programs in any language that publish a manifest of their commands and queries. This crate reads
//! and keeps the manifests, generates what clients and agents need to call them, and calls them under a policy.
//! *Invariant: a manifest never decides alone what runs on this machine or which address is called.*
#![forbid(unsafe_code)]

pub mod answer;
pub mod artifacts;
pub mod call;
pub mod canonical;
pub mod catalog;
pub mod config;
pub mod diagnostic;
pub mod durable;
pub mod entry_name;
mod files;
pub mod identity;
mod load;
pub mod manifest;
pub mod meters;
pub mod policy;
mod probe;
pub mod registry;
mod repeat;
pub mod services;
mod span;
mod target;
pub mod transport;

pub use call::{Answered, Call, Outcome};
pub use config::{AuthMode, Config};
pub use durable::DurableCall;
pub use entry_name::EntryName;
pub use identity::{Identity, Refusal, TokenIdentity};
pub use repeat::Repeat;
pub use services::{Error, External, Setup};
