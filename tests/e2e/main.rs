//! Everything with a socket, a process or a plugin, in one binary.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod children;
mod claude;
mod cli;
mod config;
mod dev;
mod edge;
mod events;
mod harness;
mod model;
mod plugins;
mod recovery;
mod tidy;

#[path = "../runtimes/mod.rs"]
mod runtimes;
