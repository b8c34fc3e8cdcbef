//! The adapter on the fake model: by the providers' protocols, as a gateway's client, and by the real `ai`
//! package, whose requests are also what the first are held against.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod conforms;
mod failures;
mod faithful;
mod sidecar;
mod turns;
