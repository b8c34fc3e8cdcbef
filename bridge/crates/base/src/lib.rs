//! Ground that every component stands on: ids, time, digests, events, trace context, metrics, keys and settings' types.
//! *Invariant: nothing here knows a component of the bridge.*
#![forbid(unsafe_code)]

pub mod digest;
pub mod duration;
pub mod edit_lock;
pub mod event;
pub mod failpoint;
pub mod folder_lock;
pub mod id;
pub mod json;
pub mod metrics;
pub mod ownership;
pub mod reloadable;
pub mod schema;
pub mod secret;
pub mod spelling;
pub mod tasks;
pub mod text;
pub mod time;
pub mod trace;
pub mod vault;
