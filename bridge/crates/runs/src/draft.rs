//! Events of calls that are carried out, each on the state after those before it.

use jiff::Timestamp;

use crate::Work;
use crate::event::{Entry, Event};
use crate::state::State;

pub(crate) struct Draft<'a> {
    /// State after the events so far.
    pub(crate) state: &'a mut State,
    pub(crate) work: Work,
    now: Timestamp,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(state: &'a mut State, now: Timestamp) -> Self {
        Self {
            state,
            work: Work::default(),
            now,
        }
    }

    pub(crate) fn write(&mut self, attempt: u32, event: Event) {
        let entry = Entry {
            at: self.now,
            attempt,
            event,
        };
        self.state.fold(&entry);
        self.work.entries.push((attempt, entry.event));
    }
}
