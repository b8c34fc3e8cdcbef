//! Steps of the tables from one version to the next. Forward only and additive, so that the release before runs on them
//! too. `schema.sql` is version 1, and its tables stay as they are; a new store takes all steps.

use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;

use forge_store::retry::RetryDelays;

use crate::engine::link::{Link, LinkError};
use crate::engine::target::Target;
use crate::engine::timeouts::TABLE_TIMEOUT;
use crate::open_error::OpenError;
use crate::rows::statement::{Columns, Statement, params};

#[derive(Clone, Copy)]
pub(crate) enum Change {
    /// Statements of one transaction, in a file of the version. What they add has a default.
    Script(&'static str),
    /// An index that is built while others write, by its name and what follows it.
    #[cfg_attr(not(test), expect(dead_code, reason = "there was none"))]
    Index(&'static str, &'static str),
}

#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) change: Change,
    /// Oldest version whose program can work on the tables after it.
    pub(crate) oldest_reader: i64,
}

/// The step to version 2, then to each one after it.
pub(crate) const STEPS: &[Step] = &[
    Step {
        change: Change::Script(include_str!("2.sql")),
        oldest_reader: 1,
    },
    Step {
        change: Change::Script(include_str!("3.sql")),
        oldest_reader: 1,
    },
    Step {
        change: Change::Script(include_str!("4.sql")),
        oldest_reader: 1,
    },
];
/// Version of the tables that this program makes.
pub(crate) const VERSION: i64 = version_after(STEPS);

pub(crate) const fn version_after(steps: &[Step]) -> i64 {
    1 + steps.len() as i64
}

/// The lock under which one node at a time takes steps. It is held by a transaction of its own, because indexes are built
/// outside of one, and it is asked for without waiting, because an index waits for all that have begun to wait.
const LOCK: &str =
    "BEGIN; SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true);
   DO $$BEGIN
     IF NOT pg_catalog.pg_try_advisory_xact_lock(1181172308) THEN RAISE lock_not_available; END IF;
   END$$";
const LOCK_PAUSE: Duration = Duration::from_millis(200);
/// Longest wait for the lock of a table, behind which all writers wait too, which give up after a second; and longest time
/// of all attempts of one step.
const TABLE_LOCK: &str = "200ms";
const LONGEST: Duration = Duration::from_secs(300);

/// A live node other than this one, whose program cannot work on tables with this oldest reader.
const SHUT_OUT: &str =
    "SELECT id FROM node WHERE NOT has_ended AND until > pg_catalog.clock_timestamp() AND reads < $1 AND id <> $2
   ORDER BY id LIMIT 1";

/// Takes the steps that the tables have not taken, for this node.
pub(crate) async fn take(
    target: &Target,
    link: &mut Link,
    steps: &[Step],
    node: &str,
) -> Result<(), OpenError> {
    let database = target.name();
    let failed = |version, error: &LinkError| OpenError::Step {
        database: database.clone(),
        version,
        reason: error.to_string(),
    };
    let newest = version_after(steps);
    let stored = |error| failed(newest, &error);
    if version(link).await.map_err(stored)? >= newest {
        return Ok(());
    }
    tracing::info!(database, version = newest, "the tables of the store change");
    let lock = Link::connect_within(target, TABLE_TIMEOUT)
        .await
        .map_err(LinkError::Lost);
    let mut lock = lock.map_err(stored)?;
    let begun = Instant::now();
    while !try_lock(&mut lock).await.map_err(stored)? {
        if begun.elapsed() > TABLE_TIMEOUT {
            let reason = format!("another node has changed them for {TABLE_TIMEOUT:?}");
            return Err(stored(LinkError::Lost(reason)));
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
    // Another node can have taken them meanwhile.
    let from = version(link).await.map_err(stored)?;
    let limit = link.set_limit(TABLE_TIMEOUT);
    for (step, version) in steps.iter().zip(2..).filter(|(_, version)| *version > from) {
        let shut_out = shut_out(link, step.oldest_reader, node).await;
        if let Some(other) = shut_out.map_err(|error| failed(version, &error))? {
            return Err(OpenError::ShutsOut {
                database,
                version,
                node: other,
            });
        }
        let taken = match step.change {
            Change::Script(script) => change(link, script, step, version).await,
            Change::Index(name, definition) => match build(link, name, definition).await {
                Ok(()) => change(link, "", step, version).await,
                Err(error) => Err(error),
            },
        };
        taken.map_err(|error| failed(version, &error))?;
    }
    link.set_limit(limit);
    lock.run("COMMIT").await.map_err(stored)
}

/// Begins a transaction that holds the lock. False if another node has it.
async fn try_lock(link: &mut Link) -> Result<bool, LinkError> {
    // In one message without parameters: a portal that is left would have a snapshot, for which an index waits too.
    match link.run(LOCK).await {
        Ok(()) => Ok(true),
        Err(error) if is_locked(&error) => link.run("ROLLBACK").await.map(|()| false),
        Err(error) => Err(error),
    }
}

fn is_locked(error: &LinkError) -> bool {
    matches!(error, LinkError::Statement(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
}

async fn shut_out(
    link: &mut Link,
    oldest_reader: i64,
    node: &str,
) -> Result<Option<String>, LinkError> {
    let node = node.to_owned();
    let statement = Statement::new(SHUT_OUT, params![oldest_reader, node]);
    let answers = link.send(&[&statement]).await?;
    let other = answers[0].first();
    Ok(other.map(|row| String::from_utf8_lossy(row.get(0)).into_owned()))
}

/// Version of the tables.
async fn version(link: &mut Link) -> Result<i64, LinkError> {
    let statement = Statement::new("SELECT version FROM schema", Vec::new());
    let answers = link.send(&[&statement]).await?;
    let row = answers.first().and_then(|rows| rows.first());
    Ok(row
        .and_then(|row| Columns::of(row).next().ok())
        .unwrap_or(1))
}

/// Carries out a script and raises the version, in one transaction. Waits for the lock of a table in short attempts.
async fn change(link: &mut Link, script: &str, step: &Step, version: i64) -> Result<(), LinkError> {
    let script = format!(
        "BEGIN; SELECT pg_catalog.set_config('lock_timeout', '{TABLE_LOCK}', true); {script};
         UPDATE schema SET version = {version}, oldest_reader = {}; COMMIT",
        step.oldest_reader
    );
    let (begun, mut delays) = (Instant::now(), RetryDelays::default());
    loop {
        let error = match link.run(&script).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        link.run("ROLLBACK").await?;
        if !is_locked(&error) || begun.elapsed() > LONGEST {
            return Err(error);
        }
        tracing::warn!(
            version,
            "a table is locked by another transaction; its change is tried again"
        );
        tokio::time::sleep(delays.next_delay()).await;
    }
}

/// Builds an index, again if an attempt before has left an invalid one.
async fn build(link: &mut Link, name: &str, definition: &str) -> Result<(), LinkError> {
    let owned = name.to_owned();
    let sql = "SELECT indisvalid FROM pg_index
       WHERE indexrelid = pg_catalog.to_regclass(pg_catalog.convert_from($1, 'UTF8'))";
    let answers = link.send(&[&Statement::new(sql, params![owned])]).await?;
    match answers[0].first().map(|row| row.get(0)) {
        Some(true) => return Ok(()),
        Some(false) => link.run(&format!("DROP INDEX CONCURRENTLY {name}")).await?,
        None => {}
    }
    let unique = definition.strip_prefix("UNIQUE ");
    let (kind, definition) = unique.map_or(("", definition), |rest| ("UNIQUE", rest));
    let sql = format!("CREATE {kind} INDEX CONCURRENTLY {name} {definition}");
    link.run(&sql).await
}
