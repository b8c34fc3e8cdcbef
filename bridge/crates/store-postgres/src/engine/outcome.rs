//! Outcome of a commit whose answer did not come, or came with a warning: the database is asked on a new connection.
//! After a crash or a fail-over an event of the batch tells its transaction from another one of the same number. If the
//! outcome stays unknown, the node gives its lease up, so that what the batch can have started is taken over.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::link::{Life, Link, LinkError};
use super::target::Target;
use crate::batch::Rows;
use crate::lineage;
use crate::rows::statement::{Columns, Statement, params};
use forge_store::Result;

/// Longest time in which the outcome is asked for, and pause between two questions.
const LONGEST: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

const STATUS: &str = "SELECT status = 'committed', status = 'aborted'
   FROM pg_catalog.pg_xact_status($1::int8::text::xid8) AS status";
/// A commit that waits for the same standbys as the one before.
const CONFIRM: &str = "INSERT INTO meta (name, value) VALUES ('confirmed', 1)
   ON CONFLICT (name) DO UPDATE SET value = meta.value + 1";

pub(super) enum Outcome {
    /// With the position before the events.
    Committed {
        base: u64,
    },
    RolledBack,
    Unknown,
}

impl Outcome {
    /// Place in `LOST_ANSWERS`.
    pub(super) fn place(&self) -> usize {
        match self {
            Self::Committed { .. } => 0,
            Self::RolledBack => 1,
            Self::Unknown => 2,
        }
    }
}

/// The position before the events of a batch, from the answers to the statements that wrote it.
pub(super) fn base(answers: &[Vec<Row>], event_count: u64) -> Result<u64> {
    match answers {
        [.., log, _commit] if event_count > 0 => log.iter().map(first_column).sum(),
        _ => Ok(0),
    }
}

fn first_column(row: &Row) -> Result<u64> {
    Columns::of(row).next()
}

/// A transaction whose end is not known.
pub(super) struct Sent<'a> {
    pub(super) xid: u64,
    /// Life of the server that it was sent to.
    pub(super) life: Life,
    pub(super) rows: &'a Rows,
}

/// Asks until the transaction is no longer in progress. Returns the new connection besides.
pub(super) async fn resolve(
    target: &Target,
    store_id: &str,
    sent: &Sent<'_>,
) -> (Outcome, Option<Link>) {
    let end = Instant::now() + LONGEST;
    let mut link = None;
    while Instant::now() < end {
        match ask(target, store_id, &mut link, sent).await {
            Ok(Some(outcome)) => return (outcome, link),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, xid = sent.xid, "the outcome of a commit cannot be asked for");
                link = None;
            }
        }
        sleep(PAUSE).await;
    }
    (Outcome::Unknown, None)
}

/// `None` while the transaction is in progress.
async fn ask(
    target: &Target,
    store_id: &str,
    link: &mut Option<Link>,
    sent: &Sent<'_>,
) -> Result<Option<Outcome>, LinkError> {
    let Sent { xid, rows, .. } = *sent;
    let link = match link {
        Some(link) => link,
        None => {
            let connected = lineage::connect(target, store_id).await;
            link.insert(connected.map_err(LinkError::Lost)?)
        }
    };
    let status = Statement::new(STATUS, params![xid]);
    let answers = match link.send(&[&status]).await {
        // A transaction of the future: this server was a standby that had not received it.
        Err(LinkError::Statement(error))
            if error.code() == Some(&SqlState::INVALID_PARAMETER_VALUE) =>
        {
            return Ok(Some(Outcome::RolledBack));
        }
        answers => answers?,
    };
    let status = answers.first().and_then(|rows| rows.first());
    let status: Option<(Option<bool>, Option<bool>)> = status.map(|row| (row.get(0), row.get(1)));
    let has_event = rows.owned_event().is_some();
    match status {
        // A server that has crashed, or failed over, can have given the number to another transaction, which has not
        // written the same event.
        Some((Some(true), _)) if link.life != sent.life && !has_event => {
            return Ok(Some(Outcome::Unknown));
        }
        Some((Some(true), _)) => {}
        Some((_, Some(true))) => return Ok(Some(Outcome::RolledBack)),
        Some((Some(false), Some(false))) => return Ok(None),
        _ => return Ok(Some(Outcome::Unknown)),
    }
    let place = rows.place_query();
    let confirm = Statement::new(CONFIRM, Vec::new());
    let answers = link.send(&[&confirm, &place]).await?;
    let row = answers.get(1).and_then(|rows| rows.first());
    if has_event && row.is_none() {
        return Ok(Some(Outcome::RolledBack));
    }
    let base = row.map_or(Ok(0), first_column);
    match (link.has_warned, base) {
        (false, Ok(base)) => Ok(Some(Outcome::Committed { base })),
        _ => Ok(Some(Outcome::Unknown)),
    }
}
