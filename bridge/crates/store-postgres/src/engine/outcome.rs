//! Outcome of a commit whose answer did not come, or came with a warning: the database is asked on a new connection.
//! After a crash or a fail-over an event or a proof of the batch tells its transaction from another one of the same
//! number. If the outcome stays unknown, the node gives its lease up, so that what the batch can have started is taken over.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::Shared;
use super::link::{Link, LinkError};
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
pub(super) struct Sent {
    pub(super) xid: u64,
    pub(super) proof: Proof,
}

/// Row that a batch writes if it has no event that proves its commit.
#[derive(Clone, Debug)]
pub(super) struct Proof {
    pub(super) slot: usize,
    name: String,
    /// No other batch of the slot writes the same.
    value: i64,
}

impl Proof {
    /// Proof of a batch of this node.
    pub(super) fn new(node: &str, slot: usize, value: i64) -> Self {
        let name = format!("proof {slot} of {node}");
        Self { slot, name, value }
    }

    pub(super) fn write(&self) -> Statement<'_> {
        let sql = "INSERT INTO meta (name, value) VALUES ($1, $2)
           ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        Statement::new(sql, params![self.name, self.value])
    }

    fn query(&self) -> Statement<'_> {
        let sql = "SELECT value FROM meta WHERE name = $1 AND value = $2";
        Statement::new(sql, params![self.name, self.value])
    }
}

/// Asks until the transaction is no longer in progress.
pub(super) async fn resolve(shared: &Shared, sent: &Sent, rows: &Rows) -> Outcome {
    let end = Instant::now() + LONGEST;
    let mut link = None;
    // A question waits for all that is left, as a commit can for its standbys.
    while let Ok(asked) = timeout_at(end, ask(shared, &mut link, sent, rows)).await {
        match asked {
            Ok(Some(outcome)) => return outcome,
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, xid = sent.xid, "the outcome of a commit cannot be asked for");
                link = None;
            }
        }
        sleep(PAUSE).await;
    }
    Outcome::Unknown
}

/// `None` while the transaction is in progress.
async fn ask(
    shared: &Shared,
    link: &mut Option<Link>,
    sent: &Sent,
    rows: &Rows,
) -> Result<Option<Outcome>, LinkError> {
    let xid = sent.xid;
    let link = match link {
        Some(link) if link.is_usable() => link,
        _ => {
            let connected = lineage::connect(&shared.target, &shared.published, LONGEST).await;
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
        Some((Some(true), _)) => {}
        Some((_, Some(true))) => return Ok(Some(Outcome::RolledBack)),
        Some((Some(false), Some(false))) => return Ok(None),
        _ => return Ok(Some(Outcome::Unknown)),
    }
    // A server that has crashed, or failed over, can have given the number to another transaction, which has not written
    // the same event or proof.
    let place = rows.place_query();
    let proof = sent.proof.query();
    let confirm = Statement::new(CONFIRM, Vec::new());
    let answers = link.send(&[&confirm, &place, &proof]).await?;
    let [_, place, proof] = answers.as_slice() else {
        return Ok(Some(Outcome::Unknown));
    };
    let proven = if has_event { place } else { proof };
    if proven.is_empty() {
        return Ok(Some(Outcome::RolledBack));
    }
    let base = place.first().map_or(Ok(0), first_column);
    match (link.has_warned, base) {
        (false, Ok(base)) => Ok(Some(Outcome::Committed { base })),
        _ => Ok(Some(Outcome::Unknown)),
    }
}
