//! Usage of dispatches that have ended.

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use forge_store::record::{Finish, SignalSums, SignalTotals, Spending, SpendingProperty};
use forge_store::signals::Summing;

use super::Tx;
use super::rows::{self, nanos};

/// Newest first.
macro_rules! select_spending {
    ($value:literal) => {
        concat!(
            "SELECT at, is_error, tokens_in, tokens_out, cost_micros, ",
            $value,
            " FROM spending WHERE at >= ? ORDER BY at DESC, dispatch DESC"
        )
    };
}

const BY_DAY: &str = select_spending!("NULL");
const BY_ADAPTER: &str = select_spending!("provider");
const BY_AGENT: &str = select_spending!("agent_id");
const BY_MODEL: &str = select_spending!("model");

pub(super) fn insert(tx: &Tx<'_>, seq: i64, finish: &Finish) -> rusqlite::Result<()> {
    let Some(spending) = &finish.spending else {
        return Ok(());
    };
    let sql = "INSERT INTO spending (dispatch, provider, agent_id, at, is_error, model, tokens_in, tokens_out, cost_micros)
               SELECT seq, provider, agent_id, ?, ?, ?, ?, ?, ? FROM dispatch WHERE seq = ?";
    let params = params![
        nanos(finish.at),
        finish.error_code.is_some(),
        spending.model,
        spending.tokens_in,
        spending.tokens_out,
        spending.cost_micros,
        seq
    ];
    tx.execute(sql, params).map(drop)
}

/// Usage in these columns, the first of which is NULL if there is none.
pub(super) fn read(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<Spending>> {
    let found: Option<i64> = row.get(first)?;
    found
        .map(|_| {
            Ok(Spending {
                model: row.get(first + 1)?,
                tokens_in: row.get(first + 2)?,
                tokens_out: row.get(first + 3)?,
                cost_micros: row.get(first + 4)?,
            })
        })
        .transpose()
}

pub(super) fn sums(
    connection: &Connection,
    by: SpendingProperty,
    since: Timestamp,
) -> rusqlite::Result<SignalSums> {
    let sql = match by {
        SpendingProperty::Day => BY_DAY,
        SpendingProperty::Adapter => BY_ADAPTER,
        SpendingProperty::Agent => BY_AGENT,
        SpendingProperty::Model => BY_MODEL,
    };
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([nanos(since)])?;
    let mut summing = Summing::default();
    while let Some(row) = rows.next()? {
        let at = rows::time(row, 0)?;
        let amounts = SignalTotals::of_one(row.get(1)?, [row.get(2)?, row.get(3)?], row.get(4)?);
        let value = match by {
            SpendingProperty::Day => Some(SpendingProperty::day(at)),
            _ => row.get(5)?,
        };
        if !summing.add(at, value, &amounts) {
            break;
        }
    }
    Ok(summing.finish())
}

#[cfg(test)]
mod tests {
    use super::super::plans;
    use super::*;

    #[test]
    fn sums_read_what_ended_since_then() {
        let plan = "spending USING PRIMARY KEY (at>?)";
        plans::check(&[BY_DAY, BY_ADAPTER, BY_AGENT, BY_MODEL].map(|sql| (sql, plan)));
    }
}
