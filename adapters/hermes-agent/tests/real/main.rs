//! The adapter against the real Hermes Agent with the fake model.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod conforms;
mod faults;
mod manage;
mod refusals;
mod runs;
