//! Tests of the adapter over real sockets, against the fake model and third-party servers.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod conforms;
mod failures;
mod hermes;
mod litellm;
mod official;
mod turns;
