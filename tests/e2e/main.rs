//! Everything with a socket, a process or a plugin, in one binary.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod absent;
mod acme;
mod callbacks;
mod children;
mod claude;
mod cli;
mod config;
mod console;
mod demo;
mod dev;
mod dispatch;
mod drill;
mod edge;
mod events;
mod harness;
mod hostile;
mod idempotency;
mod kill_matrix;
mod limits;
mod manage;
mod model;
mod output;
mod plugins;
mod queue;
mod readers;
mod recovery;
mod reference;
mod registration;
mod reload;
mod retention;
mod routing;
mod secrets;
mod shutdown;
mod tidy;
mod tools;
