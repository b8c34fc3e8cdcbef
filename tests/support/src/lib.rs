//! Servers and processes that the tests of several packages share. Knows nothing of the bridge.
#![allow(
    clippy::unwrap_used,
    reason = "tests, compiled as a library for the packages that run them"
)]

pub mod callback;
