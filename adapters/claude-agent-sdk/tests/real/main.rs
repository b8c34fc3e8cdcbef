//! The adapter against the real `claude` program, whose model is the harness's fake endpoint.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../../../tests/e2e/harness/model/mod.rs"]
mod model;
#[path = "../../../../tests/runtimes/mod.rs"]
mod runtimes;

mod bench;
mod conforms;
mod failures;
mod sessions;
mod tools;
mod turns;
