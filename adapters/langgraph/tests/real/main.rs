//! The adapter against the real `langgraph dev`, whose model is the harness's fake endpoint.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attempts;
mod bench;
mod conforms;
mod failures;
mod fake;
mod proxy;
mod streams;
mod turns;
