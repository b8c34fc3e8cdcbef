//! The adapter against a real gateway with the fake model, and against a fake gateway for what a real one does not do.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod conforms;
mod drops;
mod failures;
mod fake;
mod faults;
mod managed;
mod sandbox;
mod subagents;
mod turns;
