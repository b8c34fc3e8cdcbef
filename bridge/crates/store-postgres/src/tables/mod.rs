//! Tables: the roles of a store, one file per concern. A change is a decision on the rows of a batch.

mod accept;
mod approval;
mod content;
mod deliver;
mod event_read;
mod events;
mod execute;
mod interventions;
pub(crate) mod nodes;
mod outbox;
mod queue;
mod read;
mod retention;
pub(crate) mod rows;
pub(crate) mod run_rows;
mod runs;
mod seal;
pub(crate) mod signal_rows;
mod signal_sums;
mod signals;
mod turns;
