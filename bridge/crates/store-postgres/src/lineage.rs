//! Place of a store: the server and the database that it was made in, and the timeline of the server. A copy of the
//! database works nowhere else until it is adopted, so that two stores of one name never do the same work. After a
//! fail-over, commits of the former server can be lost: positions jump, so that none is given twice.

use std::time::Duration;

use forge_base::event::LogName;
use forge_store::Error;

use crate::Postgres;
use crate::engine::link::{Link, LinkError};
use crate::engine::target::Target;
use crate::open::{self, Holds, OpeningError, known_names};
use crate::open_error::OpenError;
use crate::published::Published;
use crate::rows::statement::{Columns, Statement, params};

/// Columns of `schema` with the place, and their values here. The name of the file that is written begins with the
/// timeline; the control file has that of the last checkpoint, which can be before a promotion.
macro_rules! place {
    (columns) => {
        "server, timeline, database"
    };
    (timeline) => {
        "('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::int8"
    };
    (here) => {
        concat!(
            "(SELECT system_identifier FROM pg_catalog.pg_control_system()), ",
            place!(timeline),
            ", pg_catalog.convert_to(pg_catalog.current_database(), 'UTF8')"
        )
    };
}

/// State of a server that is connected to: in recovery, read-only, and its place.
pub(crate) const STATE: &str = concat!(
    "SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only') = 'on'::text,
       (SELECT system_identifier FROM pg_catalog.pg_control_system()),
       CASE WHEN pg_catalog.pg_is_in_recovery() THEN 0 ELSE ",
    place!(timeline),
    " END"
);
pub(crate) const COLUMNS: &str = place!(columns);
pub(crate) const HERE: &str = place!(here);

const LOOK: &str = concat!(
    "SELECT s.server = h.server, s.database = h.database, s.timeline, h.timeline,
       s.database, s.store_id,
       greatest((SELECT last FROM event ORDER BY first DESC LIMIT 1),
         (SELECT value FROM meta WHERE name = 'removed'), 0) FROM schema s,
       (SELECT ",
    place!(here),
    ") AS h (server, timeline, database)"
);
/// Raises the positions by 2^32, once for each timeline.
const JUMP: &str = concat!(
    "WITH here AS (SELECT ",
    place!(here),
    "), raised AS (
       UPDATE schema s SET timeline = h.timeline FROM here AS h (server, timeline, database)
       WHERE s.timeline <> h.timeline RETURNING 1)
     SELECT pg_catalog.setval('position', last_value + 4294967296) FROM position, raised"
);
const ADOPT: &str = concat!(
    "UPDATE schema SET store_id = $1, log = $2, (",
    place!(columns),
    ") = (SELECT ",
    place!(here),
    ")"
);

/// Reason why a connection is not one to the store.
#[derive(Debug, thiserror::Error)]
pub enum Elsewhere {
    #[error("it was copied here from the database {was} of another server")]
    Server { was: String },
    #[error("it was copied here from the database {was}")]
    Database { was: String },
    /// By its name, the store is another one than before.
    #[error("it was replaced by another store")]
    Store,
}

/// Looks at the place of the store, which has this name if one is given. Returns true on a timeline that is new.
pub(crate) async fn look(
    link: &mut Link,
    store_id: Option<&str>,
) -> Result<Result<bool, Elsewhere>, OpeningError> {
    let answers = link.send(&[&Statement::new(LOOK, Vec::new())]).await?;
    let row = answers[0].first().ok_or(Error::NotFound)?;
    let mut columns = Columns::of(row);
    let (is_server, is_database): (bool, bool) = (columns.next()?, columns.next()?);
    let known: i64 = columns.next()?;
    let timeline: i64 = columns.next()?;
    let (was, found): (String, String) = (columns.next()?, columns.next()?);
    link.log_end = columns.next()?;
    Ok(match (is_server, is_database) {
        (false, _) => Err(Elsewhere::Server { was }),
        (true, false) => Err(Elsewhere::Database { was }),
        (true, true) if store_id.is_some_and(|id| id != found) => Err(Elsewhere::Store),
        (true, true) => Ok(timeline != known),
    })
}

/// Refuses a store that is not in its place. Returns true on a timeline that is new.
pub(crate) async fn refuse_copy(link: &mut Link, database: &str) -> Result<bool, OpenError> {
    let place = look(link, None).await;
    let place = place.map_err(|error| error.of(database))?;
    place.map_err(|elsewhere| OpenError::Elsewhere {
        database: database.to_owned(),
        elsewhere,
    })
}

/// Makes positions jump, if no other node has done it on this timeline.
pub(crate) async fn jump(link: &mut Link) -> Result<(), LinkError> {
    let statements = ["BEGIN", "SELECT lock_log()", JUMP, "COMMIT"];
    let statements = statements.map(|sql| Statement::new(sql, Vec::new()));
    let answers = link.send(&statements.each_ref()).await?;
    if !answers[2].is_empty() {
        tracing::warn!("the database has failed over; positions of the log go on 2^32 higher");
    }
    Ok(())
}

/// Connects again to a store. No message waits for longer than `limit`.
pub(crate) async fn connect(
    target: &Target,
    published: &Published,
    limit: Duration,
) -> Result<Link, String> {
    let known = published.totals().bounds.issued;
    let link = connect_to(target, &published.identity.store_id, limit).await?;
    if let Some(missing) = missing(known, link.log_end) {
        tracing::error!("{missing}");
    }
    Ok(link)
}

/// Reason for which records are gone: a server that was promoted in the place of another one had not received them.
fn missing(known: u64, found: u64) -> Option<String> {
    let count = known.checked_sub(found).filter(|count| *count > 0)?;
    Some(format!(
        "the database ends at position {found} of the log, and this node knows of {known}: up to {count} events that were committed, \
         and the changes with them, are missing"
    ))
}

/// Connects to the store of this name.
pub(crate) async fn connect_to(
    target: &Target,
    store_id: &str,
    limit: Duration,
) -> Result<Link, String> {
    let mut link = Link::connect_within(target, limit).await?;
    let place = look(&mut link, Some(store_id)).await;
    match place.map_err(|error| error.to_string())? {
        Ok(false) => {}
        Ok(true) => jump(&mut link).await.map_err(|error| error.to_string())?,
        Err(elsewhere) => return Err(format!("the store is not in its place: {elsewhere}")),
    }
    let found = target.server.set_found(link.place);
    found.map_err(|error| error.to_string())?;
    Ok(link)
}

impl Postgres {
    /// Makes a copy of a database, such as a restored backup or a clone, a store of its own: with new names, so that cursors
    /// of the original are refused. False if it is in its place, and stays as it is.
    pub async fn adopt(target: &Target) -> Result<bool, OpenError> {
        let database = target.name();
        let (mut link, server) = open::connect(target).await?;
        match server.holds {
            Holds::Nothing => return Err(OpenError::Missing { database }),
            Holds::PartOfCopy => return Err(OpenError::Copying { database }),
            Holds::Store => {}
        }
        known_names(&mut link, &database).await?;
        let failed = |error: OpeningError| error.of(&database);
        if look(&mut link, None).await.map_err(failed)?.is_ok() {
            return Ok(false);
        }
        let (store_id, log) = (
            LogName::random().as_str().to_owned(),
            LogName::random().as_str().to_owned(),
        );
        let statements = [
            Statement::new("BEGIN", Vec::new()),
            Statement::new(ADOPT, params![store_id, log]),
            // They belong to the original.
            Statement::new("DELETE FROM node", Vec::new()),
            Statement::new("COMMIT", Vec::new()),
        ];
        let adopted = link.send(&statements.each_ref()).await;
        adopted.map_err(|error| failed(error.into()))?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn a_log_that_ends_before_a_known_position_is_reported() {
        for (known, found, expected) in [
            (7, 7, None),
            (7, 9, None),
            (9, 7, Some("up to 2 events")),
            (9, 0, Some("ends at position 0")),
        ] {
            let message = missing(known, found);
            let is_expected = match (&message, expected) {
                (Some(message), Some(expected)) => message.contains(expected),
                (message, expected) => message.is_none() && expected.is_none(),
            };
            assert!(is_expected, "{message:?}");
        }
    }
}
