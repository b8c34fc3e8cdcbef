//! Adapters in processes of their own: a library in a child of this binary, or a program that speaks lines of JSON. An
//! instance has the same calls, events and answers, over a socket or pipes. A crash affects one adapter only; its
//! process is restarted, up to a limit.

pub mod child;
pub(super) mod conform;
pub(crate) mod crashes;
mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
pub(super) mod launch;
mod lines;
mod listen;
mod order;
mod probe;
mod program;
pub(super) mod remote;
pub(super) mod restart;
mod wire;
