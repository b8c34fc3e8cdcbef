//! Store in a PostgreSQL database: an engine that writes in batches and reads, and the tables. All SQL of PostgreSQL is
//! below this module. *Invariant: rules of state changes are those of `forge-store`; a batch locks the rows that they
//! decide on, and writes what they return.*
#![forbid(unsafe_code)]

mod batch;
pub mod copy;
mod engine;
mod lineage;
pub mod open;
pub mod open_error;
pub mod peek;
mod published;
mod rows;
mod steps;
mod tables;
#[cfg(test)]
mod tests;
mod totals;
mod trial;

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use forge_base::id::DispatchId;
use forge_store::Result;
use forge_store::durability::Durability;
use forge_store::recent_events::RecentEvents;

pub use engine::target::{Target, TargetError};
pub use trial::with_database;

use batch::{Needs, Placed};
use engine::{Decide, Engine};
use published::Published;
use rows::statement::{Columns, Param, Statement};

/// A store in a database, open as one node; clones are the same store.
#[derive(Clone)]
pub struct Postgres {
    engine: Arc<Engine>,
    published: Arc<Published>,
    recent_events: Arc<RecentEvents>,
    durability: Durability,
    /// The origin that `due` served last.
    served: Arc<Mutex<String>>,
    /// Dispatches that run here and are in a session. Of one that is missing the session is read in a message of its own.
    in_sessions: Arc<Mutex<HashSet<DispatchId>>>,
}

impl Postgres {
    async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        needs: Needs,
        decide: impl Decide<T>,
    ) -> Result<T> {
        let (done, _) = self.engine.write(bytes, needs, decide).await?;
        Ok(done)
    }

    /// Writes a change whose answer depends on the positions of its events.
    async fn write_placed<T: Send + 'static>(
        &self,
        bytes: usize,
        needs: Needs,
        decide: impl Decide<T>,
    ) -> Result<(T, Placed)> {
        self.engine.write(bytes, needs, decide).await
    }

    /// Reads all rows of a statement, which bounds them itself.
    async fn all<T>(
        &self,
        sql: impl Into<Cow<'static, str>>,
        params: Vec<Param<'_>>,
        mut read: impl FnMut(&mut Columns<'_>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let rows = self.engine.read(Statement::new(sql, params)).await?;
        rows.iter().map(|row| read(&mut Columns::of(row))).collect()
    }

    /// Reads the first row of a statement, if there is one.
    async fn one<T>(
        &self,
        sql: impl Into<Cow<'static, str>>,
        params: Vec<Param<'_>>,
        read: impl FnOnce(&mut Columns<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let rows = self.engine.read(Statement::new(sql, params)).await?;
        let row = rows.first();
        row.map(|row| read(&mut Columns::of(row))).transpose()
    }
}
