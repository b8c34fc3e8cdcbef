//! The adapter against real agents with the fake model, and against a script for rare behaviour.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod conforms;
mod failures;
mod modes;
mod others;
mod servers;
mod sessions;
mod strange;
mod tools;
mod warm;
