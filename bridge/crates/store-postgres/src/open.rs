//! Opening a store: the server is checked, the tables are created if there are none, and the next epoch of this node
//! begins, which ends the one before.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use forge_base::event::LogName;
use forge_store::Config;
use forge_store::Error;
use forge_store::durability::Durability;
use forge_store::node::Node;
use forge_store::record::LogBounds;

use crate::Postgres;
use crate::engine::Engine;
use crate::engine::instant::Instant;
use crate::engine::link::{Link, LinkError};
use crate::engine::target::Target;
use crate::engine::timeouts::OPEN_TIMEOUT;
use crate::lineage;
use crate::open_error::OpenError;
use crate::published::{Identity, Published, Totals};
use crate::rows::statement::{Columns, Statement, params};
use crate::rows::table::{Fields, columns};
use crate::steps::{self, STEPS, VERSION};
use crate::totals;

pub(crate) const SCHEMA: &str = include_str!("schema.sql");
const OLDEST_SERVER: i64 = 140_000;

const SERVER: &str = "SELECT pg_catalog.current_setting('server_version_num')::int8, pg_catalog.pg_is_in_recovery(),
   pg_catalog.convert_to(pg_catalog.current_setting('server_encoding'), 'UTF8'), pg_catalog.convert_to(pg_catalog.current_setting('fsync'), 'UTF8'),
   pg_catalog.convert_to(pg_catalog.current_setting('full_page_writes'), 'UTF8'), pg_catalog.convert_to(pg_catalog.current_setting('synchronous_commit'), 'UTF8'),
   pg_catalog.current_setting('synchronous_standby_names') <> '',
   CASE WHEN pg_catalog.to_regclass('copy_progress') IS NOT NULL THEN 1 WHEN pg_catalog.to_regclass('schema') IS NOT NULL THEN 2 ELSE 0 END::int8";
const BOOT: &str = "INSERT INTO node (id, epoch, instance, until, has_ended, reads, revision, offer)
   VALUES ($1, pg_catalog.nextval('epoch'), $2, pg_catalog.clock_timestamp() + $3 * interval '1 s', false, $4, 0, 'null')
   ON CONFLICT (id) DO UPDATE SET epoch = excluded.epoch, instance = excluded.instance, until = excluded.until,
     has_ended = false, reads = excluded.reads, revision = node.revision + 1, offer = excluded.offer
   RETURNING epoch";
/// Runs of a store that was copied belong to the bridge that starts first, which must be the one with their folders.
const RUNS: &str = "UPDATE run SET node = $1 WHERE node = '' AND ended_at IS NULL";
/// As with runs, dispatches that wait with a folder.
const UNPLACED: &str = "WITH unplaced AS (DELETE FROM meta WHERE name = 'unplaced' RETURNING value)
   UPDATE dispatch SET home = $1 WHERE EXISTS (SELECT FROM unplaced) AND home = '' AND phase < 5";
pub(crate) const BOUNDS: &str = "SELECT
   coalesce((SELECT last FROM event ORDER BY first DESC LIMIT 1), 0),
   coalesce((SELECT value FROM meta WHERE name = 'removed'), 0)";

impl Postgres {
    /// Opens the store in this database as the node of this id, or creates one. Ends the epoch that the node has there.
    pub async fn open(config: &Config, target: Target, node: &str) -> Result<Self, OpenError> {
        let database = target.name();
        let (mut link, server) = connect(&target).await?;
        let mut holds = server.holds;
        if holds == Holds::Nothing {
            let (store_id, log) = (LogName::random(), LogName::random());
            let created = create(&mut link, store_id.as_str(), log.as_str(), "").await;
            if let Err(error) = created {
                // Another node can have done the same.
                let asked = Server::ask(&mut link).await;
                holds = asked.map_err(|error| error.of(&database))?.holds;
                if holds == Holds::Nothing {
                    return Err(OpenError::create(&database, &error));
                }
            }
        }
        if holds == Holds::PartOfCopy {
            return Err(OpenError::Copying { database });
        }
        let Names { store_id, log, .. } = known_names(&mut link, &database).await?;
        if lineage::refuse_copy(&mut link, &database).await? {
            let jumped = lineage::jump(&mut link).await;
            jumped.map_err(|error| OpeningError::from(error).of(&database))?;
        }
        let found = target.server.set_found(link.place);
        found.map_err(|error| OpenError::Connect {
            database: database.clone(),
            reason: error.to_string(),
        })?;
        steps::take(&target, &mut link, STEPS, node).await?;
        let keeping = lineage::connect_to(&target, &store_id, OPEN_TIMEOUT).await;
        let keeping = keeping.map_err(|reason| OpenError::Connect {
            database: database.clone(),
            reason,
        })?;
        let begun = Instant::now();
        let instance = Uuid::now_v7();
        let booted = boot(&mut link, node, instance, config.lease).await;
        let (epoch, totals) = booted.map_err(|error| error.of(&database))?;
        let identity = Identity {
            store_id,
            log: LogName::from_stored(log),
            instance,
        };
        let node = Node::new(node.to_owned(), Some(config.lease), epoch);
        let published = Arc::new(Published::new(identity, node, epoch, totals));
        let engine = Engine::start(config, target, [link, keeping], begun, &published);
        Ok(Self {
            engine: Arc::new(engine),
            published,
            recent_events: Arc::default(),
            durability: server.durability(),
            served: Arc::default(),
            in_sessions: Arc::default(),
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum OpeningError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Store(#[from] Error),
}

impl OpeningError {
    pub(crate) fn of(self, database: &str) -> OpenError {
        OpenError::Read {
            database: database.to_owned(),
            reason: self.to_string(),
        }
    }
}

/// Connects to a server, and refuses one that is unfit.
pub(crate) async fn connect(target: &Target) -> Result<(Link, Server), OpenError> {
    let database = target.name();
    let connected = Link::connect(target).await;
    let mut link = connected.map_err(|reason| OpenError::Connect {
        database: database.clone(),
        reason,
    })?;
    let asked = Server::ask(&mut link).await;
    let server = asked.map_err(|error| error.of(&database))?;
    let server = check_server(server, &database)?;
    Ok((link, server))
}

fn check_server(server: Server, database: &str) -> Result<Server, OpenError> {
    let name = || database.to_owned();
    let not_durable = |setting: &str, wanted| OpenError::NotDurable {
        database: name(),
        setting: setting.to_owned(),
        wanted,
    };
    let commit = server.synchronous_commit.as_str();
    if server.version < OLDEST_SERVER {
        let version = server.version;
        Err(OpenError::TooOld {
            database: name(),
            version,
        })
    } else if server.is_standby {
        Err(OpenError::Standby { database: name() })
    } else if server.encoding != "UTF8" {
        let encoding = server.encoding;
        Err(OpenError::Encoding {
            database: name(),
            encoding,
        })
    } else if server.fsync != "on" {
        Err(not_durable("fsync is off", "on"))
    } else if server.full_page_writes != "on" {
        Err(not_durable("full_page_writes is off", "on"))
    } else if commit == "off" || commit == "local" && server.has_standbys {
        Err(not_durable(
            &format!("synchronous_commit is {commit}"),
            "on",
        ))
    } else {
        Ok(server)
    }
}

/// Tables of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Holds {
    #[default]
    Nothing,
    /// Tables of a store whose copy into the database is not complete.
    PartOfCopy,
    Store,
}

/// Settings of a server, in the order of `SERVER`.
#[derive(Default)]
pub(crate) struct Server {
    version: i64,
    is_standby: bool,
    encoding: String,
    fsync: String,
    full_page_writes: String,
    synchronous_commit: String,
    has_standbys: bool,
    pub(crate) holds: Holds,
}
crate::rows::table::fields!(Server {
    version is_standby encoding fsync full_page_writes synchronous_commit has_standbys holds
});

impl Server {
    async fn ask(link: &mut Link) -> Result<Self, OpeningError> {
        let answers = link.send(&[&Statement::new(SERVER, Vec::new())]).await?;
        let row = answers[0].first().ok_or(Error::NotFound)?;
        Ok(Fields::read(&mut Columns::of(row))?)
    }

    pub(crate) fn has_store(&self) -> bool {
        self.holds == Holds::Store
    }

    /// As `18.1`, or `9.6` of old ones.
    pub(crate) fn version(&self) -> String {
        format!("{}.{}", self.version / 10_000, self.version % 10_000)
    }

    /// Loss that a commit outlives. A server that waits for standbys was refused if its commits do not.
    pub(crate) fn durability(&self) -> Durability {
        match self.has_standbys {
            true => Durability::Replicated,
            false => Durability::Server,
        }
    }
}

/// Creates the tables of version 1, for a store of these names, and further ones, in one transaction.
pub(crate) async fn create(
    link: &mut Link,
    store_id: &str,
    log: &str,
    further: &str,
) -> Result<(), LinkError> {
    let script =
        format!("BEGIN; SELECT pg_catalog.pg_advisory_xact_lock(1181172307); {SCHEMA}; {further}");
    let sql = format!(
        "INSERT INTO schema (version, oldest_reader, store_id, log, {}) SELECT 1, 1, $1, $2, {}",
        lineage::COLUMNS,
        lineage::HERE
    );
    let (store_id, log) = (store_id.to_owned(), log.to_owned());
    let row = Statement::new(sql, params![store_id, log]);
    let commit = Statement::new("COMMIT", Vec::new());
    let created = match link.run(&script).await {
        Ok(()) => link.send(&[&row, &commit]).await.map(drop),
        Err(error) => Err(error),
    };
    if created.is_err() {
        link.run("ROLLBACK").await?;
    }
    created
}

/// Versions of the tables, name of the store and of its log.
pub(crate) struct Names {
    pub(crate) version: i64,
    /// Oldest version whose program can work on the tables.
    oldest_reader: i64,
    store_id: String,
    log: String,
}
crate::rows::table::fields!(Names { version oldest_reader store_id log });

/// The names of a store on whose tables this program can work.
pub(crate) async fn known_names(link: &mut Link, database: &str) -> Result<Names, OpenError> {
    let found = names(link).await.map_err(|error| error.of(database))?;
    match found.oldest_reader > VERSION {
        false => Ok(found),
        true => Err(OpenError::Newer {
            database: database.to_owned(),
            version: found.version,
            known: VERSION,
        }),
    }
}

async fn names(link: &mut Link) -> Result<Names, OpeningError> {
    let sql = format!("SELECT {} FROM schema", columns::<Names>(""));
    let answers = link.send(&[&Statement::new(sql, Vec::new())]).await?;
    let row = answers[0].first().ok_or(Error::NotFound)?;
    Ok(Fields::read(&mut Columns::of(row))?)
}
/// Begins the next epoch of a node, and counts what is there.
async fn boot(
    link: &mut Link,
    node: &str,
    instance: Uuid,
    lease: Duration,
) -> Result<(u64, Totals), OpeningError> {
    let (node, lease) = (node.to_owned(), lease.as_secs_f64());
    let boot = Statement::new(BOOT, params![node, instance, lease, VERSION]);
    let bounds = Statement::new(BOUNDS, Vec::new());
    let [counts, queues] = totals::statements();
    let runs = Statement::new(RUNS, params![node]);
    let unplaced = Statement::new(UNPLACED, params![node]);
    let answers = link
        .send(&[&boot, &runs, &unplaced, &bounds, &counts, &queues])
        .await?;
    let [boot, _, _, bounds, counts, queues] = answers.as_slice() else {
        return Err(Error::NotFound.into());
    };
    let epoch = Columns::of(boot.first().ok_or(Error::NotFound)?).next()?;
    let mut columns = Columns::of(bounds.first().ok_or(Error::NotFound)?);
    let (last, removed): (u64, u64) = (columns.next()?, columns.next()?);
    let bounds = LogBounds {
        issued: last.max(removed),
        removed,
    };
    let numbers = totals::read(counts, queues)?;
    Ok((epoch, Totals { bounds, numbers }))
}
