//! Tests of the adapter with real programs: agents that use the fake model, and small scripts for edge
//! cases.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agents;
mod bench;
mod conforms;
mod ends;
mod scripts;
