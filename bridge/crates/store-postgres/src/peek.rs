//! Reading of a store from outside, also while bridges use it: nothing is written, and no epoch begins or ends.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio_postgres::Row;

use forge_store::Error;
use forge_store::durability::Durability;

use crate::Postgres;
use crate::engine::link::Link;
use crate::engine::target::Target;
use crate::engine::timeouts::TABLE_TIMEOUT;
use crate::lineage;
use crate::open::{Names, OpeningError, SCHEMA, Server, connect, known_names};
use crate::open_error::OpenError;
use crate::rows::cell::Cell;
use crate::rows::statement::{Columns, Statement, params};

/// Number of trips of which the shortest counts.
const TRIPS: usize = 5;
const SEALED: &str = "SELECT value FROM sealed WHERE name = $1";
/// First bytes of sealed values, which identify their key.
const HEADS: &str = "SELECT pg_catalog.substr(value, 1, 5), pg_catalog.count(*) FROM
   (SELECT value FROM sealed UNION ALL SELECT secrets FROM body WHERE secrets IS NOT NULL) s (value) GROUP BY 1";
/// Tables and sequences of a store in which this user lacks a right that a bridge needs.
const MISSING: &str = "SELECT pg_catalog.convert_to(c.relname, 'UTF8') FROM pg_class c
   WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = pg_catalog.to_regclass('schema'))
     AND c.relname = ANY (pg_catalog.string_to_array(pg_catalog.convert_from($1, 'UTF8'), ',')) AND NOT CASE c.relkind
       WHEN 'S' THEN pg_catalog.has_sequence_privilege(c.oid, 'SELECT') AND pg_catalog.has_sequence_privilege(c.oid, 'UPDATE')
       ELSE pg_catalog.has_table_privilege(c.oid, 'SELECT') AND (c.relname = 'schema'
         OR pg_catalog.has_table_privilege(c.oid, 'INSERT') AND pg_catalog.has_table_privilege(c.oid, 'UPDATE')
         AND pg_catalog.has_table_privilege(c.oid, 'DELETE')) END
   ORDER BY c.relname";
const CAN_CREATE: &str = "SELECT coalesce(pg_catalog.has_schema_privilege(pg_catalog.current_schema(), 'CREATE'), false)";

/// A database that is read.
pub struct Peek {
    link: Link,
    database: String,
    server: Server,
}

/// State of a database, for people.
#[derive(Clone, Debug)]
pub struct Report {
    /// Database and hosts.
    pub database: String,
    /// Version of the server, as `18.1`.
    pub server: String,
    /// Version of the tables; `None` before the first start.
    pub schema: Option<i64>,
    /// Tables and sequences that the user may not use as a bridge does; `schema public` if they do not exist yet and the
    /// user may not create them.
    pub missing_rights: Vec<String>,
    /// Shortest of a few trips to the server and back.
    pub round_trip: Duration,
    pub durability: Durability,
}

impl Postgres {
    /// Connects to a database to read it. Refuses those that `open` refuses.
    pub async fn peek(target: &Target) -> Result<Peek, OpenError> {
        let database = target.name();
        let (mut link, server) = connect(target).await?;
        if server.has_store() {
            known_names(&mut link, &database).await?;
            lineage::refuse_copy(&mut link, &database).await?;
        }
        Ok(Peek {
            link,
            database,
            server,
        })
    }
}

impl Peek {
    /// A named sealed value; `None` if there is no store or no such value.
    pub async fn sealed(&mut self, name: &str) -> Result<Option<Vec<u8>>, OpenError> {
        if !self.server.has_store() {
            return Ok(None);
        }
        let name = name.to_owned();
        let found = self.column(Statement::new(SEALED, params![name])).await?;
        Ok(found.into_iter().next())
    }

    /// Number of sealed values by the first bytes, which identify their key. Scans all dispatches; empty if there is no
    /// store.
    pub async fn sealed_heads(&mut self) -> Result<BTreeMap<Vec<u8>, u64>, OpenError> {
        if !self.server.has_store() {
            return Ok(BTreeMap::new());
        }
        self.link.set_limit(TABLE_TIMEOUT);
        let rows = self.rows(Statement::new(HEADS, Vec::new())).await?;
        let heads = rows.iter().map(|row| {
            let mut columns = Columns::of(row);
            Ok((columns.next()?, columns.next()?))
        });
        self.read(heads)
    }

    pub async fn report(&mut self) -> Result<Report, OpenError> {
        let mut round_trip = Duration::MAX;
        for _ in 0..TRIPS {
            let begun = Instant::now();
            let _: Vec<i64> = self
                .column(Statement::new("SELECT 1::int8", Vec::new()))
                .await?;
            round_trip = round_trip.min(begun.elapsed());
        }
        let (schema, missing_rights) = match self.server.has_store() {
            true => {
                let names = names_in_schema();
                let missing: Vec<String> =
                    self.column(Statement::new(MISSING, params![names])).await?;
                let Names { version, .. } = known_names(&mut self.link, &self.database).await?;
                (Some(version), missing)
            }
            false => {
                let can_create: Vec<bool> =
                    self.column(Statement::new(CAN_CREATE, Vec::new())).await?;
                let is_missing = can_create != [true];
                let missing = is_missing.then(|| "schema public".to_owned());
                (None, missing.into_iter().collect())
            }
        };
        Ok(Report {
            database: self.database.clone(),
            server: self.server.version(),
            schema,
            missing_rights,
            round_trip,
            durability: self.server.durability(),
        })
    }

    async fn column<C: Cell>(&mut self, statement: Statement<'_>) -> Result<Vec<C>, OpenError> {
        let rows = self.rows(statement).await?;
        self.read(rows.iter().map(|row| Columns::of(row).next()))
    }

    async fn rows(&mut self, statement: Statement<'_>) -> Result<Vec<Row>, OpenError> {
        let answers = self.link.send(&[&statement]).await;
        let answers = answers.map_err(|error| OpeningError::from(error).of(&self.database))?;
        Ok(answers.into_iter().flatten().collect())
    }

    fn read<T, All: FromIterator<T>>(
        &self,
        rows: impl Iterator<Item = Result<T, Error>>,
    ) -> Result<All, OpenError> {
        let all = rows.collect::<Result<All, Error>>();
        all.map_err(|error| OpeningError::from(error).of(&self.database))
    }
}

/// Names of the tables and sequences, separated by commas.
fn names_in_schema() -> String {
    let names = SCHEMA.lines().filter_map(|line| {
        let rest = line
            .strip_prefix("CREATE TABLE ")
            .or_else(|| line.strip_prefix("CREATE SEQUENCE "))?;
        rest.split([' ', ';']).next()
    });
    names.collect::<Vec<_>>().join(",")
}
