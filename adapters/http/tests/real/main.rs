//! Tests of the adapter against servers of all supported kinds. The only real server of this interface
//! is the bridge itself: in `tests/e2e/http.rs` one dispatches to another.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod answers;
mod bench;
mod callbacks;
mod conforms;
mod failures;
mod server;
