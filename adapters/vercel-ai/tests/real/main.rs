//! The adapter against the fake model: by the providers' protocols, through the gateway, and by the real `ai` package,
//! which is also the reference for the requests of `direct`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accidents;
mod bench;
mod conforms;
mod failures;
mod faithful;
mod sidecar;
mod turns;
