//! Statements with their parameters. None is named: a pooler in transaction mode gives each transaction another server
//! process, and a plan that is kept would be the one of an empty table.

use std::borrow::Cow;
use std::error::Error as StdError;

use bytes::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use tokio_postgres::{Client, Row};

use super::cell::Cell;
use forge_store::{Error, Result};

pub(crate) type Param<'a> = (Box<dyn ToSql + Sync + Send + 'a>, Type);

pub(crate) struct Statement<'a> {
    pub(crate) sql: Cow<'static, str>,
    pub(crate) params: Vec<Param<'a>>,
}

impl<'a> Statement<'a> {
    pub(crate) fn new(sql: impl Into<Cow<'static, str>>, params: Vec<Param<'a>>) -> Self {
        let sql = sql.into();
        Self { sql, params }
    }

    /// Copies the parameters out of what they borrow.
    pub(crate) fn into_owned(self) -> Statement<'static> {
        self.to_static()
    }

    /// A copy that borrows nothing.
    pub(crate) fn to_static(&self) -> Statement<'static> {
        let owned = |(value, kind): &Param<'_>| -> Param<'static> {
            let mut bytes = BytesMut::new();
            let encoded = match value.to_sql_checked(kind, &mut bytes) {
                Ok(IsNull::No) => Ok(Some(bytes.to_vec())),
                Ok(IsNull::Yes) => Ok(None),
                Err(error) => Err(error.to_string()),
            };
            (Box::new(Encoded(encoded)), kind.clone())
        };
        Statement {
            sql: self.sql.clone(),
            params: self.params.iter().map(owned).collect(),
        }
    }

    pub(crate) async fn rows(&self, client: &Client) -> Result<Vec<Row>, tokio_postgres::Error> {
        let params = self.params.iter();
        let params: Vec<_> = params
            .map(|(value, kind)| (&**value as &(dyn ToSql + Sync), kind.clone()))
            .collect();
        client.query_typed(&self.sql, &params).await
    }
}

pub(crate) fn param<C: Cell>(value: &C) -> Param<'_> {
    (Box::new(value.send()), C::TYPE)
}

/// One array of the values.
pub(crate) fn array<'a, C: Cell + 'a>(values: impl IntoIterator<Item = &'a C>) -> Param<'a> {
    let values: Vec<C::Sent<'a>> = values.into_iter().map(C::send).collect();
    (Box::new(values), C::ARRAY)
}

/// The only value, or one array of several.
pub(crate) fn values<'a, C: Cell + 'a>(values: impl IntoIterator<Item = &'a C>) -> Param<'a> {
    sent::<C>(values.into_iter().map(C::send))
}

/// The same of values in the form in which they are sent.
pub(crate) fn sent<'a, C: Cell + 'a>(values: impl Iterator<Item = C::Sent<'a>>) -> Param<'a> {
    let mut values: Vec<_> = values.collect();
    match values.len() {
        1 => (Box::new(values.pop()), C::TYPE),
        _ => (Box::new(values), C::ARRAY),
    }
}

macro_rules! params {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::rows::statement::param(&$value)),*]
    };
}
pub(crate) use params;

/// A parameter in the form of the wire.
#[derive(Debug)]
struct Encoded(Result<Option<Vec<u8>>, String>);

impl ToSql for Encoded {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        match self.0.as_ref() {
            Err(error) => Err(error.clone().into()),
            Ok(None) => Ok(IsNull::Yes),
            Ok(Some(bytes)) => {
                out.extend_from_slice(bytes);
                Ok(IsNull::No)
            }
        }
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// The columns of a row, read one after another.
pub(crate) struct Columns<'a> {
    row: &'a Row,
    next: usize,
}

impl<'a> Columns<'a> {
    pub(crate) fn of(row: &'a Row) -> Self {
        Self { row, next: 0 }
    }

    pub(crate) fn next<C: Cell>(&mut self) -> Result<C> {
        let stored = self.row.try_get::<_, C::Stored>(self.next);
        self.next += 1;
        C::receive(stored.map_err(|error| Error::Unreadable(error.to_string()))?)
    }
}
