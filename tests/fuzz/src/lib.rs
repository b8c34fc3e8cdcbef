//! All parsers of external input as targets: functions that take any bytes and panic if an invariant is violated.
//! `run.sh` searches for such bytes at length, `cargo test` briefly; both start from `corpus/<target>`.
#![expect(clippy::unwrap_used, reason = "a target fails by panicking")]

mod answer;
mod callback;
pub mod chosen;
mod command_line;
mod config;
mod cursor;
mod dispatch;
mod engine_signal;
mod foreign_json;
mod frames;
mod grpc_descriptors;
mod grpc_json;
mod lines;
mod manifest;
mod mcp;
mod message;
mod pieces;
mod plugin;
mod query;
mod retry_after;
mod schema;
mod server_events;
mod service_answer;
mod signal_record;
mod signal_rules;
mod signature;
mod vault;

/// One parser, or a few related ones.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

macro_rules! targets {
    ($($name:ident),+ $(,)?) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[$(Target { name: stringify!($name), run: $name::run }),+];
    };
}

targets![
    answer,
    callback,
    command_line,
    config,
    cursor,
    dispatch,
    engine_signal,
    foreign_json,
    frames,
    grpc_descriptors,
    grpc_json,
    lines,
    manifest,
    mcp,
    message,
    plugin,
    query,
    retry_after,
    schema,
    server_events,
    service_answer,
    signal_record,
    signal_rules,
    signature,
    vault,
];
