//! The adapter against servers of all the kinds that it serves. There is no real one of this contract but
//! the bridge itself: `tests/e2e/http.rs` lets one dispatch to another.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod bench;
mod conforms;
mod failures;
mod server;
