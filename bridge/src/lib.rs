//! forge-bridge: accepts a dispatch, runs it on an agent runtime through an adapter, streams its events and delivers
//! the result. Each state change is recorded on disk.

pub mod app;
pub mod cli;
pub mod config;
pub mod otlp;
pub mod registration;
pub mod telemetry;
