//! External services: programs in any language that publish a manifest of their commands and queries. This crate reads
//! and keeps the manifests, and generates what clients and agents need to call them.
//! *Invariant: a manifest never decides alone what runs on this machine or which address is called.*
#![forbid(unsafe_code)]

pub mod artifacts;
pub mod canonical;
pub mod catalog;
pub mod diagnostic;
mod files;
pub mod manifest;
pub mod registry;
