//! forge-bridge: accepts a step, runs it on an agent runtime through an adapter, streams what happens
//! and delivers the result, all under one durable record.

pub mod app;
pub mod cli;
pub mod config;
pub mod crash;
pub mod delivery;
pub mod digest;
pub mod dispatch;
pub mod event;
pub mod http;
pub mod id;
pub mod live;
pub mod mcp;
pub mod meter;
pub mod net;
pub mod otlp;
pub mod plugin;
pub mod process;
pub mod registration;
pub mod span;
pub mod store;
pub mod tasks;
pub mod telemetry;
pub mod time;
pub mod vault;
