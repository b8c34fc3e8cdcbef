//! Sealed values: the named ones, and the secrets of dispatches.

use async_trait::async_trait;

use forge_base::id::DispatchId;
use forge_store::Result;
use forge_store::record::Page;
use forge_store::roles::Secrets;
use forge_store::sealed::{Place, Resealed, Sealed};

use crate::Postgres;
use crate::batch::{Needs, Rows};
use crate::rows::statement::{Statement, params};

/// One change of sealed values at a time, since each looks at them first.
fn needs(reads: Vec<Statement<'static>>) -> Needs {
    Needs {
        reads,
        apart: Some("sealed".to_owned()),
        ..Needs::default()
    }
}

#[async_trait]
impl Secrets for Postgres {
    async fn sealed(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let name = name.to_owned();
        let sql = "SELECT value FROM sealed WHERE name = $1";
        self.one(sql, params![name], |row| row.next()).await
    }

    async fn seal_once(&self, name: &str, value: Vec<u8>) -> Result<Vec<u8>> {
        let (name, bytes) = (name.to_owned(), value.len());
        let sql = "SELECT value FROM sealed WHERE name = $1 FOR UPDATE";
        let needs = needs(vec![Statement::new(sql, params![name]).into_owned()]);
        let change = move |rows: &mut Rows| {
            if let Some(stored) = rows.answers[0].first() {
                return Ok(crate::Columns::of(stored).next()?);
            }
            let sql = "INSERT INTO sealed (name, value) VALUES ($1, $2)";
            rows.execute(sql, params![name, value]);
            Ok(value.clone())
        };
        self.write(bytes, needs, change).await
    }

    async fn sealed_page(&self, after: u64, limit: usize) -> Result<Page<Sealed>> {
        let mut items = Vec::new();
        if after == 0 {
            let sql = "SELECT name, value FROM sealed ORDER BY name";
            let named = self.all(sql, Vec::new(), |row| {
                let place = Place::Named(row.next()?);
                Ok(Sealed {
                    place,
                    bytes: row.next()?,
                })
            });
            items = named.await?;
        }
        let sql = "SELECT d.seq, d.id, b.secrets FROM dispatch d JOIN body b ON b.id = d.id
                   WHERE d.seq > $1 ORDER BY d.seq LIMIT $2";
        let rows = self.all(sql, params![after, limit], |row| {
            let (seq, id): (u64, DispatchId) = (row.next()?, row.next()?);
            let bytes: Option<Vec<u8>> = row.next()?;
            let place = Place::Dispatch(id);
            Ok((seq, bytes.map(|bytes| Sealed { place, bytes })))
        });
        let rows = rows.await?;
        let next = rows
            .last()
            .filter(|_| rows.len() >= limit)
            .map(|(seq, _)| *seq);
        items.extend(rows.into_iter().filter_map(|(_, sealed)| sealed));
        Ok(Page { items, next })
    }

    async fn reseal(&self, changes: Vec<Resealed>) -> Result<u64> {
        let bytes = changes.iter().map(|change| change.to.len()).sum();
        let dispatch = |change: &Resealed| match &change.place {
            Place::Named(_) => None,
            Place::Dispatch(id) => Some(*id),
        };
        let reads = changes
            .iter()
            .map(|Resealed { place, from, .. }| match place {
                Place::Named(name) => {
                    let sql = "SELECT 1 FROM sealed WHERE name = $1 AND value = $2 FOR UPDATE";
                    Statement::new(sql, params![*name, *from]).into_owned()
                }
                Place::Dispatch(id) => {
                    let sql = "SELECT 1 FROM body WHERE id = $1 AND secrets = $2";
                    Statement::new(sql, params![*id, *from]).into_owned()
                }
            });
        let needs = Needs {
            dispatches: changes.iter().filter_map(dispatch).collect(),
            ..needs(reads.collect())
        };
        let change = move |rows: &mut Rows| {
            let is_same: Vec<_> = rows.answers.iter().map(|found| !found.is_empty()).collect();
            let mut changed = 0;
            for (Resealed { place, to, .. }, _) in changes.iter().zip(is_same).filter(|one| one.1) {
                match place {
                    Place::Named(name) => {
                        let sql = "UPDATE sealed SET value = $1 WHERE name = $2";
                        rows.execute(sql, params![*to, *name]);
                    }
                    Place::Dispatch(id) => {
                        let sql = "UPDATE body SET secrets = $1 WHERE id = $2";
                        rows.execute(sql, params![*to, *id]);
                    }
                }
                changed += 1;
            }
            Ok(changed)
        };
        self.write(bytes, needs, change).await
    }
}
