//! Database that is filled. It has the table `copy_progress` until the copy is complete, with the epoch of the store that is
//! copied, the table that is filled, and the rows of it that are there. No bridge opens the database before.

use forge_store::Error;
use forge_store::copy::{Head, Row, Table, Tally};

use super::{CopyError, values};
use crate::engine::link::{Link, LinkError};
use crate::engine::target::Target;
use crate::engine::timeouts::TABLE_TIMEOUT;
use crate::open::{self, Holds};
use crate::open_error::OpenError;
use crate::rows::statement::{Columns, Statement, array, params};
use crate::steps::{self, STEPS};

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// Makes nothing wait for a disk or another node without a bound: it is repeated anyway.
const SETTINGS: &str = "SELECT pg_catalog.set_config('lock_timeout', '30s', true), pg_catalog.set_config('statement_timeout', '0', true)";
/// Rows that are read at a time. One can hold 256 KiB of a content.
const READ_ROWS: usize = 200;

pub(crate) enum Begun {
    Filling(Box<Filling>),
    /// The copy was complete before.
    Complete,
}

pub(crate) struct Filling {
    link: Link,
    database: String,
    place: usize,
    rows: u64,
}

/// Dispatches that wait with a folder belong to the node that starts first, which must be the one that has it.
const BIND: &str =
    "UPDATE dispatch d SET is_bound = true, home = '' FROM body b WHERE b.id = d.id AND d.phase < 5
   AND CASE WHEN position('\"workspace\"'::bytea IN b.request) > 0
     THEN pg_catalog.convert_from(b.request, 'UTF8')::json #>> '{workspace,dir}'::text[] IS NOT NULL END";

impl Filling {
    /// Creates the tables in an empty database, or continues.
    pub(crate) async fn begin(target: &Target, head: &Head) -> Result<Begun, CopyError> {
        let database = target.name();
        let (mut link, server) = open::connect(target).await?;
        link.set_limit(TABLE_TIMEOUT);
        let mut filling = Self {
            link,
            database: database.clone(),
            place: 0,
            rows: 0,
        };
        match server.holds {
            Holds::PartOfCopy => filling.read_progress(head).await?,
            Holds::Nothing if head.is_complete => return Err(CopyError::Elsewhere),
            Holds::Nothing => filling.create(head).await?,
            Holds::Store => {
                let sql = "SELECT 1 FROM schema WHERE store_id = $1";
                let found = filling.ask(Statement::new(sql, params![head.store_id]));
                return match head.is_complete && !found.await?.is_empty() {
                    true => Ok(Begun::Complete),
                    false => Err(CopyError::Taken { database }),
                };
            }
        }
        steps::take(target, &mut filling.link, STEPS, "").await?;
        Ok(Begun::Filling(Box::new(filling)))
    }

    async fn create(&mut self, head: &Head) -> Result<(), CopyError> {
        let further = format!(
            "CREATE TABLE copy_progress AS SELECT {}::int8 AS epoch, 0::int8 AS place, 0::int8 AS rows",
            head.epoch
        );
        let (store_id, log) = (&head.store_id, head.log.as_str());
        let created = open::create(&mut self.link, store_id, log, &further).await;
        created.map_err(|error| OpenError::create(&self.database, &error).into())
    }

    async fn read_progress(&mut self, head: &Head) -> Result<(), CopyError> {
        // Without a row, the source can have been used since its copy was refused.
        let sql = "UPDATE copy_progress SET epoch = $2 FROM schema
             WHERE store_id = $1 AND log = $3 AND (epoch = $2 OR place = 0 AND rows = 0) RETURNING place, rows";
        let log = head.log.as_str().to_owned();
        let params = params![head.store_id, head.epoch, log];
        let found = self.ask(Statement::new(sql, params)).await?;
        let row = found.first().ok_or_else(|| CopyError::OfAnother {
            database: self.database.clone(),
        })?;
        let mut columns = Columns::of(row);
        let read = columns
            .next()
            .and_then(|place| Ok((place, columns.next()?)));
        (self.place, self.rows) = read.map_err(|error| self.unreadable(&error))?;
        Ok(())
    }

    /// Rows of a table that are there already.
    pub(super) fn rows_of(&self, place: usize) -> u64 {
        match place.cmp(&self.place) {
            std::cmp::Ordering::Less => u64::MAX,
            std::cmp::Ordering::Equal => self.rows,
            std::cmp::Ordering::Greater => 0,
        }
    }

    /// Adds rows to a table, and returns the number of those that are there.
    pub(super) async fn add(
        &mut self,
        place: usize,
        table: &Table,
        chunk: Vec<Row>,
    ) -> Result<u64, CopyError> {
        let (at, before) = (self.place, self.rows);
        let rows = self.rows_of(place) + chunk.len() as u64;
        let sql = "UPDATE copy_progress SET place = $1, rows = $2 WHERE place = $3 AND rows = $4 RETURNING place";
        let progress = Statement::new(sql, params![place, rows, at, before]);
        let (begin, settings) = (
            Statement::new(BEGIN, Vec::new()),
            Statement::new(SETTINGS, Vec::new()),
        );
        let insert = values::insert(table, &chunk);
        let statements = [&begin, &settings, &progress, &insert];
        let sent = self.link.send(&statements).await;
        let answers = sent.map_err(|error| self.failed(&error))?;
        // One that was killed can commit its last chunk after this process has read the progress.
        if answers.get(2).is_none_or(Vec::is_empty) {
            let database = self.database.clone();
            return Err(CopyError::Busy { database });
        }
        self.ask(Statement::new("COMMIT", Vec::new())).await?;
        (self.place, self.rows) = (place, rows);
        Ok(rows)
    }

    /// Reads a table, and refuses other rows than those of the source.
    pub(super) async fn compare(
        &mut self,
        table: &'static Table,
        tally: &Tally,
    ) -> Result<(), CopyError> {
        let mut found = Tally::default();
        self.ask(Statement::new(BEGIN, Vec::new())).await?;
        let select = format!(
            "DECLARE copied CURSOR FOR SELECT {} FROM {}",
            values::names(table),
            table.name
        );
        self.ask(Statement::new(select, Vec::new())).await?;
        loop {
            let fetch = format!("FETCH {READ_ROWS} FROM copied");
            let rows = self.ask(Statement::new(fetch, Vec::new())).await?;
            for row in &rows {
                let row = values::read(table, row).map_err(|error| self.unreadable(&error))?;
                found.add(&row);
            }
            if rows.len() < READ_ROWS {
                break;
            }
        }
        self.ask(Statement::new("COMMIT", Vec::new())).await?;
        match found == *tally {
            true => Ok(()),
            false => Err(CopyError::Differs {
                database: self.database.clone(),
                table: table.name,
                expected: format!("{} rows with digest {}", tally.rows, tally.digest()),
                found: format!("{} with {}", found.rows, found.digest()),
            }),
        }
    }

    /// Makes the database a store, with the names and positions of the source and its pauses.
    pub(super) async fn complete(
        &mut self,
        head: &Head,
        paused: &[String],
    ) -> Result<(), CopyError> {
        let statement = |sql, params| Statement::new(sql, params);
        let statements = [
            statement(BEGIN, Vec::new()),
            statement(
                "INSERT INTO meta (name, value) VALUES ('removed', $1)",
                params![head.removed],
            ),
            statement(
                "INSERT INTO meta (name, value) SELECT 'forwarded', $1 WHERE $1 IS NOT NULL",
                params![head.forwarded],
            ),
            // No epoch, position or place that was given is given again.
            statement(
                "SELECT pg_catalog.setval('epoch', greatest($1, 1)), pg_catalog.setval('position', $2),
                   pg_catalog.setval(pg_catalog.pg_get_serial_sequence('dispatch', 'seq'), greatest($2, 1)),
                   pg_catalog.setval(pg_catalog.pg_get_serial_sequence('run', 'place'), greatest($2, 1)),
                   pg_catalog.setval(pg_catalog.pg_get_serial_sequence('signal', 'seq'), greatest($3, 1)),
                   pg_catalog.setval(pg_catalog.pg_get_serial_sequence('signal_intervention', 'seq'),
                     (SELECT coalesce(pg_catalog.max(seq), 1) FROM signal_intervention))",
                params![head.epoch, head.issued, head.last_signal],
            ),
            statement(
                "INSERT INTO paused (provider) SELECT * FROM pg_catalog.unnest($1)",
                vec![array(paused)],
            ),
            statement(BIND, Vec::new()),
            statement(
                "INSERT INTO meta (name, value) VALUES ('unplaced', 1)",
                Vec::new(),
            ),
            statement("DROP TABLE copy_progress", Vec::new()),
            statement("COMMIT", Vec::new()),
            // The plans of the first statements would be those of empty tables.
            statement("ANALYZE", Vec::new()),
        ];
        let sent = self.link.send(&statements.each_ref()).await;
        sent.map(drop).map_err(|error| self.failed(&error))
    }

    async fn ask(
        &mut self,
        statement: Statement<'_>,
    ) -> Result<Vec<tokio_postgres::Row>, CopyError> {
        let answers = self.link.send(&[&statement]).await;
        let answers = answers.map_err(|error| self.failed(&error))?;
        Ok(answers.into_iter().next().unwrap_or_default())
    }

    fn failed(&self, error: &LinkError) -> CopyError {
        CopyError::Write {
            database: self.database.clone(),
            reason: error.to_string(),
        }
    }

    fn unreadable(&self, error: &Error) -> CopyError {
        CopyError::Write {
            database: self.database.clone(),
            reason: error.to_string(),
        }
    }
}
