//! Everything with a socket, a process or a plugin, in one binary.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod children;
mod cli;
mod config;
mod dev;
mod harness;
mod plugins;
mod recovery;
mod tidy;
mod tools;
