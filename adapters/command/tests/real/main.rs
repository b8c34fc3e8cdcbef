//! The adapter with real programs: agents whose model is the harness's, and small scripts for the edges.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agents;
mod bench;
mod conforms;
mod ends;
mod scripts;
