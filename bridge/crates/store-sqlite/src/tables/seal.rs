//! Sealed values: the named ones, and the secrets of dispatches.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rusqlite::{Connection, params};

use forge_store::Result;
use forge_store::record::Page;
use forge_store::roles::Secrets;
use forge_store::sealed::{Place, Resealed, Sealed};

use super::rows;
use crate::Sqlite;
use crate::engine::{Length, Urgency};

#[async_trait]
impl Secrets for Sqlite {
    async fn sealed(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let name = name.to_owned();
        let query = move |connection: &Connection| named(connection, &name);
        self.engine.read(Length::Short, query).await
    }

    async fn seal_once(&self, name: &str, value: Vec<u8>) -> Result<Vec<u8>> {
        let name = name.to_owned();
        self.write(Urgency::Now, value.len(), move |tx| {
            let sql = "INSERT INTO sealed (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING";
            tx.execute(sql, params![name, value])?;
            Ok(named(tx.conn, &name)?.unwrap_or_default())
        })
        .await
    }

    async fn sealed_page(&self, after: u64, limit: usize) -> Result<Page<Sealed>> {
        let query = move |connection: &Connection| page(connection, after, limit);
        self.engine.read(Length::Long, query).await
    }

    async fn reseal(&self, changes: Vec<Resealed>) -> Result<u64> {
        let bytes = changes.iter().map(|change| change.to.len()).sum();
        self.write(Urgency::Now, bytes, move |tx| {
            let mut changed = 0;
            for Resealed { place, from, to } in &changes {
                changed += match place {
                    Place::Named(name) => tx.execute(
                        "UPDATE sealed SET value = ? WHERE name = ? AND value = ?",
                        params![to, name, from],
                    )?,
                    Place::Dispatch(id) => tx.execute(
                        "UPDATE body SET secrets = ?
                         WHERE dispatch = (SELECT seq FROM dispatch WHERE id = ?) AND secrets = ?",
                        params![to, id.as_bytes(), from],
                    )?,
                };
            }
            Ok(changed as u64)
        })
        .await
    }
}

/// Length of the beginning of a sealed value that identifies its key.
const HEAD_BYTES: usize = 5;

pub(crate) fn named(connection: &Connection, name: &str) -> rusqlite::Result<Option<Vec<u8>>> {
    let sql = "SELECT value FROM sealed WHERE name = ?";
    rows::one(connection, sql, [name], |row| row.get(0))
}

/// Page of sealed values, named ones first. Looks at `limit` dispatches, including those without secrets.
fn page(connection: &Connection, after: u64, limit: usize) -> rusqlite::Result<Page<Sealed>> {
    let mut items = Vec::new();
    if after == 0 {
        let sql = "SELECT name, value FROM sealed ORDER BY name";
        items = rows::all(connection, sql, [], |row| {
            Ok(Sealed {
                place: Place::Named(row.get(0)?),
                bytes: row.get(1)?,
            })
        })?;
    }
    let rows: Vec<(u64, Option<Sealed>)> = rows::all(
        connection,
        "SELECT b.dispatch, d.id, b.secrets FROM body b JOIN dispatch d ON d.seq = b.dispatch
         WHERE b.dispatch > ? ORDER BY b.dispatch LIMIT ?",
        params![after, rows::limit(limit)],
        |row| {
            let bytes: Option<Vec<u8>> = row.get(2)?;
            let place = Place::Dispatch(rows::dispatch_id(row, 1)?);
            Ok((row.get(0)?, bytes.map(|bytes| Sealed { place, bytes })))
        },
    )?;
    let last = rows.last().filter(|_| rows.len() >= limit);
    let next = last.map(|(seq, _)| *seq);
    items.extend(rows.into_iter().filter_map(|(_, sealed)| sealed));
    Ok(Page { items, next })
}

/// Number of sealed values by the first bytes, which identify their key. Scans all dispatches.
pub(crate) fn heads(connection: &Connection) -> rusqlite::Result<BTreeMap<Vec<u8>, u64>> {
    let sql = format!(
        "SELECT head, count(*) FROM
           (SELECT substr(secrets, 1, {HEAD_BYTES}) AS head FROM body WHERE secrets IS NOT NULL
            UNION ALL SELECT substr(value, 1, {HEAD_BYTES}) FROM sealed)
         GROUP BY head"
    );
    let rows: Vec<(Vec<u8>, u64)> = rows::all(connection, &sql, [], |row| row.try_into())?;
    Ok(rows.into_iter().collect())
}
