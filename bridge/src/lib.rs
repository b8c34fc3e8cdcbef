//! forge-bridge: accepts a step, runs it on an agent runtime through an adapter, streams what happens
//! and delivers the result, all under one durable record.

pub mod app;
pub mod cli;
pub mod config;
pub mod otlp;
pub mod registration;
pub mod telemetry;
