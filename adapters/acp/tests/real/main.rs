//! The adapter against real agents, Hermes and OpenCode, whose model is the harness's fake endpoint, and
//! against a script that does what real ones rarely do.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod conforms;
mod failures;
mod sessions;
mod strange;
mod tools;
