//! Servers and processes that the tests of several packages share. Knows nothing of the bridge.

pub mod callback;
