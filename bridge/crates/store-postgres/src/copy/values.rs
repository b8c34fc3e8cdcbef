//! Values of a copy as parameters and columns of statements.

use tokio_postgres::Row;
use tokio_postgres::types::{FromSqlOwned, Type};
use uuid::Uuid;

use forge_store::copy::{self, Kind, Table, Value};
use forge_store::{Error, Result};

use crate::rows::statement::{Param, Statement};

/// Inserts rows of a table.
pub(super) fn insert<'a>(table: &Table, rows: &'a [copy::Row]) -> Statement<'a> {
    let columns = table.columns.iter().enumerate();
    let params = columns.map(|(place, (_, kind))| array(*kind, rows, place));
    let numbers: Vec<_> = (1..=table.columns.len())
        .map(|number| format!("${number}"))
        .collect();
    let sql = format!(
        "INSERT INTO {} ({}) SELECT * FROM unnest({})",
        table.name,
        names(table),
        numbers.join(", ")
    );
    Statement::new(sql, params.collect())
}

pub(super) fn names(table: &Table) -> String {
    let names: Vec<_> = table.columns.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// One array of the values of a column. A value of another type cannot be sent.
fn array(kind: Kind, rows: &[copy::Row], place: usize) -> Param<'_> {
    fn all<'a, T>(
        rows: &'a [copy::Row],
        place: usize,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Vec<Option<T>> {
        rows.iter().map(|row| read(&row[place])).collect()
    }
    fn number(value: &Value) -> Option<i64> {
        match value {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }
    fn bytes(value: &Value) -> Option<&[u8]> {
        match value {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
    match kind {
        Kind::Number => (Box::new(all(rows, place, number)), Type::INT8_ARRAY),
        Kind::Flag => {
            let flag = |value| number(value).map(|number| number != 0);
            (Box::new(all(rows, place, flag)), Type::BOOL_ARRAY)
        }
        Kind::Real => {
            let real = |value: &Value| match value {
                Value::Real(real) => Some(*real),
                _ => None,
            };
            (Box::new(all(rows, place, real)), Type::FLOAT8_ARRAY)
        }
        Kind::Bytes => (Box::new(all(rows, place, bytes)), Type::BYTEA_ARRAY),
        Kind::Id => {
            let id = |value| bytes(value).and_then(|bytes| Uuid::from_slice(bytes).ok());
            (Box::new(all(rows, place, id)), Type::UUID_ARRAY)
        }
    }
}

/// Values of a row of a table.
pub(super) fn read(table: &Table, row: &Row) -> Result<copy::Row> {
    let columns = table.columns.iter().enumerate();
    let values = columns.map(|(place, (_, kind))| {
        let value = match kind {
            Kind::Number => cell(row, place, Value::Number),
            Kind::Flag => cell(row, place, |flag: bool| Value::Number(i64::from(flag))),
            Kind::Real => cell(row, place, Value::Real),
            Kind::Bytes => cell(row, place, Value::Bytes),
            Kind::Id => cell(row, place, |id: Uuid| Value::Bytes(id.as_bytes().to_vec())),
        };
        value.map_err(|error| Error::Unreadable(error.to_string()))
    });
    values.collect()
}

fn cell<T: FromSqlOwned>(
    row: &Row,
    place: usize,
    value: impl FnOnce(T) -> Value,
) -> Result<Value, tokio_postgres::Error> {
    let found: Option<T> = row.try_get(place)?;
    Ok(found.map_or(Value::Null, value))
}
