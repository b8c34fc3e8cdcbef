//! The adapter against a strict fake of the platform, which is a hosted service.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod bench;
mod conforms;
mod credentials;
mod failures;
mod health;
mod official;
mod prices;
