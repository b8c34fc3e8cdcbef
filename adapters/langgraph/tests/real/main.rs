//! The adapter against the real `langgraph dev`, which uses the fake model.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attempts;
mod bench;
mod conforms;
mod failures;
mod fake;
mod proxy;
mod streams;
mod turns;
