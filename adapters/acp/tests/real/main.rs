//! The adapter against real agents, Hermes and OpenCode, with the fake model, and against a script for rare behaviour.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod conforms;
mod failures;
mod sessions;
mod strange;
mod tools;
