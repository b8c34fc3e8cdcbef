//! A minimal bridge side of the table that records what an adapter sends. Safe code; `export` calls it.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forge_adapter_abi::{EMIT_CLOSED, EMIT_FULL, EMIT_OK, STATUS_OK};

use crate::{AdapterError, AdapterEvent, Result};

/// Records the events, logs, answers and protocol violations of one instance.
#[derive(Default)]
pub(crate) struct Recorder {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    calls: HashMap<u64, Call>,
    logs: Vec<String>,
    sink: Sink,
    faults: Vec<String>,
}

#[derive(Default)]
struct Call {
    events: Vec<AdapterEvent>,
    ended: Option<Ending>,
}

/// The end of a call.
#[derive(Clone, Debug)]
pub(crate) enum Ending {
    Answered(Result<Vec<u8>>),
    Abandoned,
}

/// Answer to an emitted event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    Yes,
    /// Not accepted now; retry.
    Full,
    /// The call has ended, or the sink is closed.
    Closed,
}

/// Behaviour of the event sink.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Sink {
    #[default]
    Open,
    Closed,
    /// Full for this number of events, then open.
    FullFor(u32),
}

impl Recorder {
    pub(crate) fn set_sink(&self, sink: Sink) {
        self.state().sink = sink;
    }

    /// Waits for the end of a call.
    pub(crate) fn ending(&self, call: u64, patience: Duration) -> Option<Ending> {
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        loop {
            if let Some(ending) = state.calls.get(&call).and_then(|call| call.ended.clone()) {
                return Some(ending);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    pub(crate) fn events(&self, call: u64) -> Vec<AdapterEvent> {
        let state = self.state();
        state
            .calls
            .get(&call)
            .map_or_else(Vec::new, |call| call.events.clone())
    }

    pub(crate) fn logs(&self) -> Vec<String> {
        self.state().logs.clone()
    }

    /// The protocol violations seen so far.
    pub(crate) fn faults(&self) -> Vec<String> {
        self.state().faults.clone()
    }

    pub(crate) fn begin(&self, call: u64) {
        self.state().calls.insert(call, Call::default());
    }

    pub(crate) fn emit(&self, call: u64, event: &[u8]) -> i32 {
        match self.take(call, event) {
            Taken::Yes => EMIT_OK,
            Taken::Full => EMIT_FULL,
            Taken::Closed => EMIT_CLOSED,
        }
    }

    pub(crate) fn take(&self, call: u64, event: &[u8]) -> Taken {
        let mut state = self.state();
        match state.sink {
            Sink::Open | Sink::FullFor(0) => {}
            Sink::Closed => return Taken::Closed,
            Sink::FullFor(times) => {
                state.sink = Sink::FullFor(times - 1);
                return Taken::Full;
            }
        }
        let event = match serde_json::from_slice::<AdapterEvent>(event) {
            Ok(event) => event,
            Err(error) => {
                state
                    .faults
                    .push(format!("malformed event of call {call}: {error}"));
                return Taken::Closed;
            }
        };
        if call == 0 {
            return Taken::Yes;
        }
        match state.calls.get_mut(&call) {
            Some(open) if open.ended.is_none() => {
                open.events.push(event);
                Taken::Yes
            }
            // Tasks that an adapter left behind can still emit; refusing them is normal, not a violation.
            Some(_) | None => Taken::Closed,
        }
    }

    pub(crate) fn log(&self, record: &[u8]) {
        let record = String::from_utf8_lossy(record).into_owned();
        self.state().logs.push(record);
    }

    pub(crate) fn complete(&self, call: u64, status: i32, payload: Vec<u8>) -> i32 {
        self.answer(
            call,
            if status == STATUS_OK {
                Ok(payload)
            } else {
                Err(payload)
            },
        )
    }

    pub(crate) fn answer(&self, call: u64, answer: std::result::Result<Vec<u8>, Vec<u8>>) -> i32 {
        let answer = answer.map_err(|error| {
            serde_json::from_slice(&error).unwrap_or_else(|error| {
                let text = format!("malformed error: {error}");
                AdapterError::new("protocol_violation", text)
            })
        });
        if let Err(error) = &answer
            && error.code == "protocol_violation"
        {
            self.fault(&error.message);
        }
        self.end(call, Ending::Answered(answer))
    }

    pub(crate) fn is_open(&self, call: u64) -> bool {
        let state = self.state();
        let call = state.calls.get(&call);
        call.is_some_and(|call| call.ended.is_none())
    }

    pub(crate) fn fault(&self, what: &str) {
        self.state().faults.push(what.to_owned());
    }

    pub(crate) fn abandon(&self, call: u64) -> i32 {
        self.end(call, Ending::Abandoned)
    }

    fn end(&self, call: u64, ending: Ending) -> i32 {
        let mut state = self.state();
        let taken = match state.calls.get_mut(&call) {
            Some(open) if open.ended.is_none() => {
                open.ended = Some(ending);
                0
            }
            Some(_) => {
                state.faults.push(format!("call {call} was answered twice"));
                -1
            }
            None => {
                state.faults.push(format!("call {call} is unknown"));
                -1
            }
        };
        drop(state);
        self.changed.notify_all();
        taken
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
