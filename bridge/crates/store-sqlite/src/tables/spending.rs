//! Usage of dispatches that have ended.

use jiff::Timestamp;
use rusqlite::{Connection, Row, params};

use forge_store::record::{Finish, Spending, SpendingSums};
use forge_store::spending::Summing;

use super::rows::nanos;
use super::{Tx, amounts};

/// Newest first.
const SINCE: &str =
    "SELECT at, is_error, tokens_in, tokens_out, cost_micros, provider, agent_id, model
  FROM spending WHERE at >= ? ORDER BY at DESC, dispatch DESC";

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

pub(super) fn sums(connection: &Connection, since: Timestamp) -> rusqlite::Result<SpendingSums> {
    let mut summing = Summing::default();
    amounts::each(connection, SINCE, since, |at, row, usage| {
        let (adapter, agent) = (row.get_ref(5)?.as_str()?, row.get_ref(6)?.as_str()?);
        let model = row.get_ref(7)?.as_str_or_null()?;
        Ok(summing.add(at, adapter, agent, model, usage))
    })?;
    Ok(summing.finish())
}

#[cfg(test)]
mod tests {
    use super::super::plans;
    use super::*;

    #[test]
    fn sums_read_what_ended_since_then() {
        let plan = "spending USING PRIMARY KEY (at>?)";
        plans::check(&[(SINCE, plan)]);
    }
}
