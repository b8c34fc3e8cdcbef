//! How a change comes to the desk, and a question to the readers.

use std::sync::Arc;

use rusqlite::Connection;

use super::Sqlite;
use super::ahead::Ahead;
use super::op::{Failure, Haste, Op, Tx};
use super::readers::Length;
use crate::store::{Error, Result};

/// The room that an op takes in the queue besides its bodies.
const OP_BYTES: usize = 512;

impl Sqlite {
    /// Waits for room in the queue, then for the commit.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        bytes: usize,
        change: impl Fn(&mut Tx<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T> {
        self.commit(Haste::Now, bytes, change, |_| None).await
    }

    /// `promise` says the same as `change` will, if it can be said ahead of the tables.
    pub(super) async fn commit<T: Send + 'static>(
        &self,
        haste: Haste,
        bytes: usize,
        change: impl Fn(&mut Tx<'_>) -> Result<T, Failure> + Send + 'static,
        promise: impl Fn(&mut Ahead) -> Option<(u64, T)> + Send + 'static,
    ) -> Result<T> {
        let closed = || Error::Unavailable("it is closed".to_owned());
        let bytes = bytes.saturating_add(OP_BYTES);
        // One that is larger than the queue takes all of it.
        let share = u32::try_from(bytes)
            .unwrap_or(u32::MAX)
            .min(self.queue_bytes);
        let ops = Arc::clone(&self.ops).acquire_owned().await;
        let room = Arc::clone(&self.bytes).acquire_many_owned(share).await;
        let (Ok(ops), Ok(room)) = (ops, room) else {
            return Err(closed());
        };
        let (op, done) = Op::new(change, promise, haste, bytes, (ops, room));
        self.desk.hand_in(op).map_err(|_| closed())?;
        done.await.map_err(|_| closed())?
    }

    /// Asks what takes a few steps in an index.
    pub(super) async fn look_up<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.made().await?;
        self.shared.readers.read(Length::Short, query).await
    }

    /// Asks what may take a while.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.made().await?;
        self.shared.readers.read(Length::Long, query).await
    }

    /// Who reads finds all that was promised before.
    pub(super) async fn made(&self) -> Result<()> {
        self.shared.made(|| self.desk.want_made()).await
    }
}
