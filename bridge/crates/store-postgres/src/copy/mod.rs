//! Copy of a stopped store into an empty database. It begins, and the source starts no more, once the source was read and
//! the tables of the target were created: a copy that is refused before leaves the source as it is. Rows are written in
//! chunks, each with the progress in one transaction, so that a copy that was ended at any moment continues where it was. In the end, number and digest of the rows of each
//! table are compared with those of the source; no bridge opens the database before.

pub(crate) mod target;
mod values;

use tokio::sync::mpsc;

use forge_base::failpoint;
use forge_store::Error;
use forge_store::copy::{Head, Row, Source, TABLES, Table, Tally, Value};

use crate::Target;
use crate::open_error::OpenError;
use target::{Begun, Filling};

/// Rows, and bytes of them, that one transaction writes at most; at least one row.
const CHUNK_ROWS: usize = 2000;
const CHUNK_BYTES: usize = 4 << 20;

/// Reason why a copy has ended. It can be continued unless another database is needed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("cannot read the store that is copied: {0}")]
    Source(#[source] Error),
    #[error("cannot write {database}: {reason}")]
    Write { database: String, reason: String },
    #[error("{database} has a store already; name an empty database")]
    Taken { database: String },
    #[error(
        "{database} has a part of another store, or of this one before it was used again; drop it and name an empty database"
    )]
    OfAnother { database: String },
    #[error(
        "the store was copied into another database before; run `forge-bridge store copy --undo` to make it a store of its own"
    )]
    Elsewhere,
    #[error("another process copies into {database}; wait until it has ended")]
    Busy { database: String },
    #[error(
        "the table {table} of {database} differs from the store that was copied: {found} instead of {expected}; drop the database"
    )]
    Differs {
        database: String,
        table: &'static str,
        expected: String,
        found: String,
    },
    /// The copy, or one before it, has begun.
    #[error(
        "{0}. The SQLite store does not start, because its copy has begun: run `forge-bridge store copy --to URL` again to continue, or `forge-bridge store copy --undo` to let it start again"
    )]
    Begun(Box<CopyError>),
}

/// A table that was copied.
#[derive(Debug, PartialEq, Eq)]
pub struct Copied {
    pub table: &'static str,
    pub tally: Tally,
}

/// Copies a store into a database, with the adapters that are paused, and calls `report` with the table and the rows of it
/// that are there, after each chunk. Nothing is copied, and the list is empty, if the copy was complete before.
pub async fn copy(
    source: impl Source,
    target: Target,
    paused: Vec<String>,
    report: impl FnMut(&'static str, u64),
) -> Result<Vec<Copied>, CopyError> {
    copy_in_chunks(source, target, paused, CHUNK_ROWS, report).await
}

pub(crate) async fn copy_in_chunks(
    source: impl Source,
    target: Target,
    paused: Vec<String>,
    chunk_rows: usize,
    report: impl FnMut(&'static str, u64),
) -> Result<Vec<Copied>, CopyError> {
    let head = source.head().map_err(CopyError::Source)?;
    let begun = match Filling::begin(&target, &head).await {
        Ok(Begun::Complete) => return Ok(Vec::new()),
        Ok(Begun::Filling(filling)) => {
            failpoint::point("transfer.created");
            let begun = source.begin().map_err(CopyError::Source);
            begun.map(|()| filling)
        }
        Err(CopyError::Elsewhere) => return Err(CopyError::Elsewhere),
        Err(error) => Err(error),
    };
    let filling = match begun {
        Ok(filling) => filling,
        Err(error) if head.has_begun => return Err(CopyError::Begun(Box::new(error))),
        Err(error) => return Err(error),
    };
    failpoint::point("transfer.marked");
    let filled = fill(source, filling, &head, &paused, chunk_rows, report).await;
    filled.map_err(|error| CopyError::Begun(Box::new(error)))
}

async fn fill(
    source: impl Source,
    mut filling: Box<Filling>,
    head: &Head,
    paused: &[String],
    chunk_rows: usize,
    mut report: impl FnMut(&'static str, u64),
) -> Result<Vec<Copied>, CopyError> {
    let mut source = source;
    let mut copied = Vec::new();
    for (place, table) in TABLES.iter().enumerate() {
        let done = filling.rows_of(place);
        let (chunks, mut received) = mpsc::channel(1);
        let reading = tokio::task::spawn_blocking(move || {
            let tally = read(&source, table, done, chunk_rows, &chunks);
            (source, tally)
        });
        while let Some(chunk) = received.recv().await {
            let rows = filling.add(place, table, chunk).await?;
            failpoint::point("transfer.chunk");
            report(table.name, rows);
        }
        let (same, tally) = reading
            .await
            .map_err(|error| CopyError::Source(Error::Unavailable(error.to_string())))?;
        source = same;
        let tally = tally.map_err(CopyError::Source)?;
        copied.push(Copied {
            table: table.name,
            tally,
        });
    }
    for (table, Copied { tally, .. }) in TABLES.iter().zip(&copied) {
        filling.compare(table, tally).await?;
    }
    failpoint::point("transfer.compared");
    source.complete().map_err(CopyError::Source)?;
    failpoint::point("transfer.complete");
    filling.complete(head, paused).await?;
    Ok(copied)
}

/// Reads a table, and sends chunks of the rows after the first `done`. Counts all.
fn read(
    source: &impl Source,
    table: &Table,
    done: u64,
    chunk_rows: usize,
    chunks: &mpsc::Sender<Vec<Row>>,
) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    let (mut chunk, mut bytes, mut is_heard) = (Vec::new(), 0, true);
    source.read(table, &mut |row| {
        tally.add(&row);
        if tally.rows > done {
            bytes += size(&row);
            chunk.push(row);
        }
        if chunk.len() >= chunk_rows || bytes >= CHUNK_BYTES {
            bytes = 0;
            is_heard = chunks.blocking_send(std::mem::take(&mut chunk)).is_ok();
        }
        is_heard
    })?;
    if !chunk.is_empty() {
        // The receiver has failed before, and says why.
        let _ = chunks.blocking_send(chunk);
    }
    Ok(tally)
}

fn size(row: &[Value]) -> usize {
    let bytes = |value: &Value| match value {
        Value::Bytes(bytes) => 8 + bytes.len(),
        Value::Null | Value::Number(_) | Value::Real(_) => 8,
    };
    row.iter().map(bytes).sum()
}
