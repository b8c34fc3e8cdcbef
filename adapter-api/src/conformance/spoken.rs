//! The adapter under test: a library behind its table, or a [`Peer`] reached over another protocol.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::recorder::{Recorder, Taken};
use crate::Result;
use crate::export::{CEntryV1, Loopback};

/// An adapter that is not a library; starts instances of it.
pub trait Peer: Send + Sync {
    /// The manifest as the adapter sent it.
    fn manifest(&self) -> Vec<u8>;

    /// Starts an instance with this payload of `create`. Its messages go to `heard`.
    fn create(&self, payload: &[u8], heard: Heard) -> Result<Box<dyn Spoken>>;
}

/// An instance of a [`Peer`]; dropping it ends it.
pub trait Spoken: Send + Sync {
    /// Starts a call.
    fn start(&self, call: u64, op: &str, payload: &[u8]);

    /// The call as it is sent.
    fn shown(&self, call: u64, op: &str, payload: &[u8]) -> Vec<u8>;

    /// Notifies the instance that the call's answer is no longer awaited.
    fn drop_call(&self, call: u64);
}

/// Receives the messages of an instance of a [`Peer`].
#[derive(Clone)]
pub struct Heard {
    recorder: &'static Recorder,
    dropped: Arc<Mutex<BTreeSet<u64>>>,
}

impl Heard {
    fn new() -> Self {
        Self {
            // Leaked, like the recorder of a library.
            recorder: Box::leak(Box::default()),
            dropped: Arc::default(),
        }
    }

    fn dropped(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event of a call, or of the instance if `call` is 0. Returns false when the event was not
    /// accepted and must be offered again.
    pub fn event(&self, call: u64, event: &[u8]) -> bool {
        self.recorder.take(call, event) != Taken::Full
    }

    /// Records the answer of a call, or its error. An answer to a dropped call is ignored.
    pub fn answer(&self, call: u64, answer: std::result::Result<Vec<u8>, Vec<u8>>) {
        if !self.dropped().contains(&call) {
            self.recorder.answer(call, answer);
        }
    }

    /// Records a log line.
    pub fn log(&self, record: &[u8]) {
        self.recorder.log(record);
    }

    /// Records a protocol violation.
    pub fn fault(&self, what: &str) {
        self.recorder.fault(what);
    }
}

/// Source of instances.
pub(super) enum Entry {
    Table(CEntryV1),
    Peer(Box<dyn Peer>),
}

/// An instance.
pub(super) enum Line {
    Table(Loopback),
    Peer {
        instance: Box<dyn Spoken>,
        heard: Heard,
    },
}

impl Entry {
    pub(super) fn manifest(&self) -> Vec<u8> {
        match self {
            Self::Table(entry) => Loopback::manifest(entry),
            Self::Peer(peer) => peer.manifest(),
        }
    }

    pub(super) fn is_spoken(&self) -> bool {
        matches!(self, Self::Peer(_))
    }

    pub(super) fn create(&self, payload: Vec<u8>) -> Result<Line> {
        match self {
            Self::Table(entry) => Loopback::create(entry, payload).map(Line::Table),
            Self::Peer(peer) => {
                let heard = Heard::new();
                let instance = peer.create(&payload, heard.clone())?;
                Ok(Line::Peer { instance, heard })
            }
        }
    }
}

impl Line {
    pub(super) fn recorder(&self) -> &'static Recorder {
        match self {
            Self::Table(loopback) => loopback.recorder(),
            Self::Peer { heard, .. } => heard.recorder,
        }
    }

    /// A call as it is sent; to a library, op and payload.
    pub(super) fn shown(&self, call: u64, op: &str, payload: &[u8]) -> Vec<u8> {
        match self {
            Self::Table(_) => [op.as_bytes(), b" ", payload].concat(),
            Self::Peer { instance, .. } => instance.shown(call, op, payload),
        }
    }

    /// Starts a call; 0 when it was accepted.
    pub(super) fn start(&self, call: u64, op: &str, payload: Vec<u8>) -> i32 {
        match self {
            Self::Table(loopback) => loopback.start(call, op, payload),
            Self::Peer { instance, heard } => {
                heard.recorder.begin(call);
                instance.start(call, op, &payload);
                0
            }
        }
    }

    /// Drops a call; 0 when it was open.
    pub(super) fn cancel(&self, call: u64) -> i32 {
        match self {
            Self::Table(loopback) => loopback.cancel(call),
            Self::Peer { instance, heard } => {
                // The lock keeps an answer from arriving in between and counting as a second one.
                let mut dropped = heard.dropped();
                if !heard.recorder.is_open(call) {
                    return -1;
                }
                dropped.insert(call);
                instance.drop_call(call);
                heard.recorder.abandon(call)
            }
        }
    }
}
