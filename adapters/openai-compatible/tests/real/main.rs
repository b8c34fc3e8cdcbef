//! The adapter against real servers over a real socket: the fake model, and servers of other people.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod bench;
mod conforms;
mod failures;
mod hermes;
mod official;
mod turns;
