//! Every reader of what comes from outside, as a target: a function that takes any bytes and panics
//! when what it promises does not hold. `run.sh` searches for such bytes for long, `cargo test` for a
//! moment; both begin with `corpus/<target>`.
#![expect(clippy::unwrap_used, reason = "a target fails by panicking")]

mod answer;
mod callback;
pub mod chosen;
mod config;
mod cursor;
mod dispatch;
mod frames;
mod lines;
mod mcp;
mod message;
mod pieces;
mod plugin;
mod query;
mod retry_after;
mod schema;
mod server_events;
mod signature;
mod vault;

/// One reader, or a few that belong together.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    pub run: fn(&[u8]),
}

macro_rules! targets {
    ($($name:ident),+ $(,)?) => {
        /// All of them.
        pub const TARGETS: &[Target] = &[$(Target { name: stringify!($name), run: $name::run }),+];
    };
}

targets![
    answer,
    callback,
    config,
    cursor,
    dispatch,
    frames,
    lines,
    mcp,
    message,
    plugin,
    query,
    retry_after,
    schema,
    server_events,
    signature,
    vault,
];
