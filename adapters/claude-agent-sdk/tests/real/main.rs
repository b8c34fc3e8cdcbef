//! The adapter against the real `claude` program with the fake model.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod conforms;
mod failures;
mod files;
mod project;
mod sessions;
mod steering;
mod tools;
mod turns;
