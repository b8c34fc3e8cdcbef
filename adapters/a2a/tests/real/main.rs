//! The adapter against agents of the real A2A SDK with the fake model, and against a server with malformed answers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod conforms;
mod failures;
mod turns;
