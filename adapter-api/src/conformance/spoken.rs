//! What is checked: a library behind its table, or an adapter elsewhere that somebody speaks to for us.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::recorder::{Recorder, Taken};
use crate::Result;
use crate::export::{CEntryV1, Loopback};

/// An adapter that is no library: whoever implements this can start instances of it.
pub trait Peer: Send + Sync {
    /// Its manifest, as it said it.
    fn manifest(&self) -> Vec<u8>;

    /// A new instance, which was told this payload of `create`. What it says goes to `heard`.
    fn create(&self, payload: &[u8], heard: Heard) -> Result<Box<dyn Spoken>>;
}

/// An instance of a [`Peer`]; dropping it ends it.
pub trait Spoken: Send + Sync {
    /// Hands a call over.
    fn start(&self, call: u64, op: &str, payload: &[u8]);

    /// Tells that a call is not waited for any more.
    fn drop_call(&self, call: u64);
}

/// Where goes what an instance of a [`Peer`] says.
#[derive(Clone)]
pub struct Heard {
    recorder: &'static Recorder,
    dropped: Arc<Mutex<BTreeSet<u64>>>,
}

impl Heard {
    fn new() -> Self {
        Self {
            // Leaked, as that of a library is.
            recorder: Box::leak(Box::default()),
            dropped: Arc::default(),
        }
    }

    fn dropped(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event of a call, or of the instance when the number is 0. False: not now, offer it again.
    pub fn event(&self, call: u64, event: &[u8]) -> bool {
        self.recorder.take(call, event) != Taken::Full
    }

    /// The answer of a call, or its error. What is dropped may still be answered.
    pub fn answer(&self, call: u64, answer: std::result::Result<Vec<u8>, Vec<u8>>) {
        if !self.dropped().contains(&call) {
            self.recorder.answer(call, answer);
        }
    }

    /// A record of its log.
    pub fn log(&self, record: &[u8]) {
        self.recorder.log(record);
    }

    /// It did what no adapter may do.
    pub fn fault(&self, what: &str) {
        self.recorder.fault(what);
    }
}

/// How instances are made.
pub(super) enum Entry {
    Table(CEntryV1),
    Peer(Box<dyn Peer>),
}

/// One instance.
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

    /// 0 when the call was taken.
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

    /// 0 when there was such a call.
    pub(super) fn cancel(&self, call: u64) -> i32 {
        match self {
            Self::Table(loopback) => loopback.cancel(call),
            Self::Peer { instance, heard } => {
                // Under the lock, so that no answer comes in between and is one too many.
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
