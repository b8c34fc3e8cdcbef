//! Servers, processes and executions shared by the tests of several packages. Independent of the bridge.
#![allow(
    clippy::unwrap_used,
    reason = "tests, compiled as a library for the packages that run them"
)]

pub mod attachment;
pub mod callback;
pub mod conversation;
pub mod deadline;
pub mod execution;
pub mod instance;
pub mod mcp_server;
pub mod process;
pub mod tool;
