//! What several adapters share to reach their runtimes. It knows no runtime.

pub mod answer;
pub mod caller_tools;
pub mod cancel_on_drop;
mod failure;
pub mod folder;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod http;
pub mod json_lines;
pub mod json_rpc;
mod server_events;
pub mod wire;
