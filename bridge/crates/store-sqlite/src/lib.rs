//! Store in one SQLite file: an engine that writes, reads and recovers, and the tables. All SQL of the bridge is
//! below this module.
#![forbid(unsafe_code)]

pub mod copy;
mod engine;
pub mod maintenance;
pub mod open;
pub mod open_error;
mod tables;

#[cfg(test)]
mod crash_recovery;
#[cfg(test)]
mod on_disk;
#[cfg(test)]
mod rollback;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};

use rusqlite::{Connection, Params, Row};

use forge_store::Result;
use forge_store::node::Node;
use forge_store::recent_events::RecentEvents;

use engine::{Engine, Failure, Length, Urgency};
use tables::counters::{Counters, Published};
use tables::{Tx, rows};

/// A store in a folder of the local disk; clones are the same store.
#[derive(Clone)]
pub struct Sqlite {
    engine: Arc<Engine<Counters>>,
    published: Arc<Published>,
    recent_events: Arc<RecentEvents>,
    node: Arc<Node>,
    /// The origin that `due` served last.
    served: Arc<Mutex<String>>,
}

impl Sqlite {
    async fn write<T: Send + 'static>(
        &self,
        urgency: Urgency,
        bytes: usize,
        change: impl Fn(&mut Tx<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        let change =
            move |conn: &Connection, counters: &mut Counters| change(&mut Tx { conn, counters });
        self.engine.write(urgency, bytes, change).await
    }

    /// Reads the first row of a statement, if there is one.
    async fn one<T: Send + 'static>(
        &self,
        length: Length,
        sql: impl AsRef<str> + Send + 'static,
        params: impl Params + Send + 'static,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<Option<T>> {
        let query = move |conn: &Connection| rows::one(conn, sql.as_ref(), params, read);
        self.engine.read(length, query).await
    }

    /// Reads all rows of a statement, which bounds them itself.
    async fn all<T: Send + 'static>(
        &self,
        length: Length,
        sql: impl AsRef<str> + Send + 'static,
        params: impl Params + Send + 'static,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<Vec<T>> {
        let query = move |conn: &Connection| rows::all(conn, sql.as_ref(), params, read);
        self.engine.read(length, query).await
    }
}
