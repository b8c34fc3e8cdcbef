//! The adapter against agents of the real A2A SDK, whose model is the harness's, and against a strange one.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod conforms;
mod failures;
mod turns;
