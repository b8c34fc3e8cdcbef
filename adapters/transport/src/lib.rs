//! Transports shared by several adapters: HTTP, attachments, retries, JSON lines, JSON-RPC, paths, the caller's
//! tools. Independent of any runtime.

pub mod answer;
pub mod attachments;
pub mod caller_tools;
pub mod cancel_on_drop;
pub mod deadline;
mod failure;
pub mod folder;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod http;
pub mod json_lines;
pub mod json_rpc;
pub mod retry;
mod server_events;
pub mod wire;
