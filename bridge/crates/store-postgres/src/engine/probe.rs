//! Probe of a store that failed: the statements that it refused are repeated and rolled back, until it carries them out.
//! Others would prove less: a full disk still takes a row that fits into a page, and rights differ by table.

use tokio_postgres::error::SqlState;

use super::link::{Link, LinkError};
use crate::rows::statement::Statement;

/// Classes of SQLSTATE with which the server says that it is short of something, is operated on, or has a failing disk.
const CLASSES: [&str; 3] = ["53", "57", "58"];

/// True if an error is one of the store: other changes would be refused like this one.
pub(super) fn is_of_store(code: &SqlState) -> bool {
    let is_of_class = CLASSES.iter().any(|class| code.code().starts_with(class));
    let is_of_server = [
        SqlState::READ_ONLY_SQL_TRANSACTION,
        SqlState::INSUFFICIENT_PRIVILEGE,
    ]
    .contains(code);
    is_of_server || is_of_class && *code != SqlState::QUERY_CANCELED
}

pub(super) struct Probe(Vec<Statement<'static>>);

impl Probe {
    /// A probe of refused statements. The ends of their transaction are left out.
    pub(super) fn of(mut statements: Vec<Statement<'static>>) -> Self {
        let is_end = |sql: &str| {
            ["BEGIN", "COMMIT", "ROLLBACK"]
                .iter()
                .any(|end| sql.starts_with(end))
        };
        statements.retain(|one| !is_end(&one.sql));
        Self(statements)
    }

    /// `Ok` once the store carries the statements out, or refuses them for a reason of their own.
    pub(super) async fn run(&self, link: &mut Link) -> Result<(), LinkError> {
        let [begin, end] = ["BEGIN", "ROLLBACK"].map(|sql| Statement::new(sql, Vec::new()));
        let mut all = vec![&begin];
        all.extend(&self.0);
        all.push(&end);
        match link.send(&all).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_of_store() => Err(error),
            Err(LinkError::Statement(_)) => Ok(()),
            Err(error @ LinkError::Lost(_)) => Err(error),
        }
    }
}
