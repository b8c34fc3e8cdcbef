//! The messages of one connection, read as they pass a relay.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A round trip that has ended, by the number of its connection.
pub(super) type Trip = (u64, Vec<String>);
pub(super) type Trips = Arc<Mutex<Vec<Trip>>>;

pub(super) struct Traffic {
    trips: Trips,
    connection: u64,
    /// Statements of the round trip under way.
    statements: Vec<String>,
    /// The start message, which has no type, was read.
    has_started: bool,
    /// Answers that are missing; one is to the start message.
    missing: usize,
    from_store: Vec<u8>,
    from_server: Vec<u8>,
}

impl Traffic {
    pub(super) fn new(trips: Trips) -> Self {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
        Self {
            trips,
            connection: CONNECTIONS.fetch_add(1, Ordering::Relaxed),
            statements: Vec::new(),
            has_started: false,
            missing: 1,
            from_store: Vec::new(),
            from_server: Vec::new(),
        }
    }

    /// Reads bytes that the store has sent.
    pub(super) fn sent(&mut self, bytes: &[u8]) {
        self.from_store.extend_from_slice(bytes);
        if !self.has_started {
            let length = u32::from_be_bytes(self.from_store[..4].try_into().unwrap());
            self.from_store.drain(..length as usize);
            self.has_started = true;
        }
        while let Some((kind, body)) = take(&mut self.from_store) {
            if [b'P', b'Q'].contains(&kind) {
                // The name before the text of a statement is empty.
                let text = body.split(|byte| *byte == 0).find(|part| !part.is_empty());
                let text = String::from_utf8_lossy(text.unwrap_or_default());
                self.statements.push(text.into_owned());
            }
            self.missing += usize::from([b'S', b'Q'].contains(&kind));
        }
    }

    /// Reads bytes that the server has answered.
    pub(super) fn answered(&mut self, bytes: &[u8]) {
        self.from_server.extend_from_slice(bytes);
        while let Some((kind, _)) = take(&mut self.from_server) {
            self.missing -= usize::from(kind == b'Z');
        }
        if self.missing == 0 && !self.statements.is_empty() {
            let ended = mem::take(&mut self.statements);
            self.trips.lock().unwrap().push((self.connection, ended));
        }
    }
}

/// Takes a whole message: its type, and what follows its length.
fn take(bytes: &mut Vec<u8>) -> Option<(u8, Vec<u8>)> {
    let length = u32::from_be_bytes(bytes.get(1..5)?.try_into().ok()?) as usize;
    bytes.get(..=length)?;
    let message: Vec<u8> = bytes.drain(..=length).collect();
    Some((message[0], message[5..].to_vec()))
}
