//! The middle floor: one running instance of an adapter, in this process or a child, with its threads, calls, output
//! and log. Knows no generations and no configuration of adapters.

#![forbid(unsafe_code)]

pub(crate) mod backend;
mod backpressure;
pub(crate) mod boot;
pub(crate) mod built_in;
mod call_ids;
pub(crate) mod call_stream;
mod call_thread;
pub mod conform;
pub(crate) mod environment;
pub(crate) mod handle;
pub(crate) mod health;
mod held_text;
pub(crate) mod host;
pub(crate) mod instance_monitor;
pub(crate) mod isolation;
pub(crate) mod log;
pub mod meters;
pub(crate) mod process;
pub(crate) mod queue;
pub(crate) mod redaction;
pub(crate) mod relayed;
mod watchdog;
