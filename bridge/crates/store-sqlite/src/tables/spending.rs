//! Usage of dispatches that have ended.

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use forge_store::record::{Days, Finish, SignalSums, Spending, SpendingProperty};

use super::rows::nanos;
use super::{Tx, amounts};

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
    let days = (by == SpendingProperty::Day).then(Days::default);
    amounts::sums(connection, sql, since, days)
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
