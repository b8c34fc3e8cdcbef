//! Sums over the records of signals, by the minute of their arrival.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rusqlite::{Connection, Params, Row, params};

use forge_store::record::{SignalGroup, SignalProperty, SignalSums, SignalTotals};
use forge_store::signals::{self, Summing};

use super::rows::{self, nanos};

/// The columns that are added up.
macro_rules! select_amounts {
    ($rest:literal) => {
        select_amounts!("NULL", $rest)
    };
    ($value:literal, $rest:literal) => {
        concat!(
            "SELECT g.at, g.error_code IS NOT NULL, g.tokens_in, g.tokens_out, g.cost_micros, ",
            $value,
            " FROM ",
            $rest
        )
    };
}

pub(super) const ALL: &str =
    select_amounts!("signal g INDEXED BY signal_at WHERE g.at >= ? AND g.seq <= ?");
pub(super) const USER: &str = select_amounts!(
    "signal g INDEXED BY signal_user WHERE g.user_id = ? AND g.at >= ? AND g.seq <= ?"
);
pub(super) const PROJECT: &str = select_amounts!(
    "signal g INDEXED BY signal_project WHERE g.project_id = ? AND g.at >= ? AND g.seq <= ?"
);
pub(super) const SESSION: &str = select_amounts!(
    "signal_session s CROSS JOIN signal g INDEXED BY signal_of_session ON g.session = s.seq
     WHERE s.id = ? AND g.at >= ? AND g.seq <= ?"
);

pub(super) const BY_USER: &str = select_amounts!(
    "g.user_id",
    "signal g INDEXED BY signal_at WHERE g.at >= ? ORDER BY g.at DESC, g.seq DESC"
);
pub(super) const BY_PROJECT: &str = select_amounts!(
    "g.project_id",
    "signal g INDEXED BY signal_at WHERE g.at >= ? ORDER BY g.at DESC, g.seq DESC"
);
pub(super) const BY_MODEL: &str = select_amounts!(
    "g.model",
    "signal g INDEXED BY signal_at WHERE g.at >= ? ORDER BY g.at DESC, g.seq DESC"
);
pub(super) const BY_ADAPTER: &str = select_amounts!(
    "s.adapter",
    "signal g INDEXED BY signal_at CROSS JOIN signal_session s ON s.seq = g.session
     WHERE g.at >= ? ORDER BY g.at DESC, g.seq DESC"
);

/// Position of the last signal.
pub(super) fn last(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT seq FROM signal ORDER BY seq DESC LIMIT 1";
    Ok(rows::one(connection, sql, [], |row| row.get(0))?.unwrap_or(0))
}

pub(super) fn by_minute(
    connection: &Connection,
    group: &SignalGroup,
    since: Timestamp,
    last: u64,
) -> rusqlite::Result<Vec<(Timestamp, SignalTotals)>> {
    let since = nanos(since);
    // A position beyond the numbers of SQLite is after every row.
    let last = i64::try_from(last).unwrap_or(i64::MAX);
    let mut sums = BTreeMap::new();
    match group {
        SignalGroup::All => add(connection, ALL, params![since, last], &mut sums)?,
        SignalGroup::Users(users) => users
            .iter()
            .try_for_each(|user| add(connection, USER, params![user, since, last], &mut sums))?,
        SignalGroup::Project(project) => {
            add(
                connection,
                PROJECT,
                params![project, since, last],
                &mut sums,
            )?;
        }
        SignalGroup::Session(id) => {
            add(connection, SESSION, params![id, since, last], &mut sums)?;
        }
    }
    Ok(sums.into_iter().collect())
}

/// Sums by the values of a property, newest records first.
pub(super) fn by_value(
    connection: &Connection,
    by: SignalProperty,
    since: Timestamp,
) -> rusqlite::Result<SignalSums> {
    let sql = match by {
        SignalProperty::User => BY_USER,
        SignalProperty::Project => BY_PROJECT,
        SignalProperty::Adapter => BY_ADAPTER,
        SignalProperty::Model => BY_MODEL,
    };
    let mut summing = Summing::default();
    each(connection, sql, since, |at, row, amounts| {
        Ok(summing.add(at, row.get_ref(5)?.as_str_or_null()?, amounts))
    })?;
    Ok(summing.finish())
}

/// Passes on the rows of a query since a time, which begin like those of `select_amounts`, until one is left out.
pub(super) fn each(
    connection: &Connection,
    sql: &str,
    since: Timestamp,
    mut add: impl FnMut(Timestamp, &Row<'_>, &SignalTotals) -> rusqlite::Result<bool>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([nanos(since)])?;
    while let Some(row) = rows.next()? {
        if !add(rows::time(row, 0)?, row, &of_row(row)?)? {
            break;
        }
    }
    Ok(())
}

fn add(
    connection: &Connection,
    sql: &str,
    params: impl Params,
    sums: &mut BTreeMap<Timestamp, SignalTotals>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params)?;
    while let Some(row) = rows.next()? {
        let minute = signals::minute(rows::time(row, 0)?);
        sums.entry(minute).or_default().add_all(&of_row(row)?);
    }
    Ok(())
}

/// Amounts in the columns after the first.
fn of_row(row: &Row<'_>) -> rusqlite::Result<SignalTotals> {
    let usage = [row.get(2)?, row.get(3)?];
    Ok(SignalTotals::of_one(row.get(1)?, usage, row.get(4)?))
}
