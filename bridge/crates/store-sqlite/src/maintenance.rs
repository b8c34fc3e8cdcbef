//! Operators' work on a store from outside, also while a bridge uses it: integrity checks and backups.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};
use tempfile::NamedTempFile;

use super::Sqlite;
use super::engine::connection::{self, is_damage};
use super::open::{FILE, is_present};
use super::open_error::OpenError;
use super::tables::counters::Totals;
use super::tables::{schema, seal};
use forge_base::folder_lock::{parent, sync_name};
use forge_store::Config;

/// Findings of SQLite that are reported; one page often has many.
const MAX_DAMAGES: usize = 20;

/// A backup works for at least this long and then rests for `REST` times as long as it took. It thus takes a quarter of
/// one processor at most, and less when a busy bridge delays it.
const WORK: Duration = Duration::from_millis(10);
const REST: u32 = 3;
/// Operations of SQLite between two looks at the time.
const OPERATIONS: i32 = 1_000;

/// Rows that contradict each other, each query with its meaning.
const IMPOSSIBLE: [(&str, &str); 7] = [
    (
        "SELECT count(*) FROM dispatch d WHERE NOT EXISTS (SELECT 1 FROM body b WHERE b.dispatch = d.seq)",
        "dispatches have lost their request",
    ),
    (
        "SELECT count(*) FROM dispatch d WHERE phase = 5
           AND NOT EXISTS (SELECT 1 FROM result r WHERE r.dispatch = d.seq)",
        "finished dispatches have no result",
    ),
    (
        "SELECT count(*) FROM result r JOIN dispatch d ON d.seq = r.dispatch WHERE d.phase <> 5",
        "unfinished dispatches have a result",
    ),
    (
        "SELECT count(*) FROM dispatch WHERE phase = 5 AND callback_url IS NOT NULL AND delivery IS NULL",
        "finished dispatches with a callback have no delivery",
    ),
    (
        "SELECT count(*) FROM dispatch d WHERE events <> first_events +
           (SELECT coalesce(sum(last - first + 1), 0) FROM event e WHERE e.dispatch = d.seq)",
        "dispatches have lost events",
    ),
    (
        "SELECT count(*) FROM (
           SELECT e.seq, lag(e.seq + e.last - e.first + 1, 1, d.first_events + 1)
             OVER (PARTITION BY e.dispatch ORDER BY e.first) AS wanted
           FROM event e JOIN dispatch d ON d.seq = e.dispatch)
         WHERE seq <> wanted",
        "gaps in the events of dispatches",
    ),
    (
        "SELECT count(*) FROM (
           SELECT first, lag(last, 1, 0) OVER (ORDER BY first) AS before FROM (
             SELECT first, last FROM event
             UNION ALL SELECT seq, seq + first_events - 1 FROM dispatch))
         WHERE first <= before",
        "positions of the event log are used twice",
    ),
];

/// The same about runs, which files before version 4 do not have.
const IMPOSSIBLE_OF_RUNS: [(&str, &str); 5] = [
    (
        "SELECT count(*) FROM run r WHERE NOT EXISTS (SELECT 1 FROM run_body b WHERE b.run = r.seq)",
        "runs have lost their request",
    ),
    (
        "SELECT count(*) FROM run r WHERE (events, last_position) <>
           (SELECT coalesce(sum(last - first + 1), 0), max(last) FROM event e WHERE e.run = r.seq)",
        "runs have lost events",
    ),
    (
        "SELECT count(*) FROM (
           SELECT e.seq, lag(e.seq + e.last - e.first + 1, 1, 1)
             OVER (PARTITION BY e.run ORDER BY e.first) AS wanted
           FROM event e JOIN run r ON r.seq = e.run)
         WHERE seq <> wanted",
        "gaps in the events of runs",
    ),
    (
        "SELECT count(*) FROM event WHERE run IS NOT NULL
           AND run NOT IN (SELECT seq FROM run UNION ALL SELECT run FROM run_removed)",
        "rows of events have lost their run",
    ),
    (
        "SELECT count(*) FROM run r WHERE artifact_bytes <>
           (SELECT coalesce(sum(length(bytes)), 0) FROM run_artifact a WHERE a.run = r.seq)",
        "runs have lost artifacts",
    ),
];

/// Result of a check.
#[derive(Debug)]
pub struct Checked {
    pub file: PathBuf,
    pub bytes: u64,
    pub dispatches: u64,
    pub unfinished: u64,
    pub events: u64,
    pub deliveries_pending: u64,
    /// One line each; empty if none was found.
    pub problems: Vec<String>,
}

/// Reason why no backup was made.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{file} already exists and was left as it is; name another file")]
    Exists { file: PathBuf },
    #[error("cannot write the copy")]
    Write(#[from] io::Error),
    #[error("cannot copy the store")]
    Copy(#[from] rusqlite::Error),
    #[error("the copy is damaged ({0}) and was removed; run `forge-bridge store check`")]
    NotWhole(String),
}

impl Sqlite {
    /// Checks the integrity of the store in this folder. Reads all of it: findings of SQLite (`integrity_check`),
    /// rows that contradict each other, and everything a start reads.
    pub fn check(data_dir: &Path) -> Result<Checked, OpenError> {
        let (file, connection) = open_present(data_dir)?;
        inspect_rows(&connection, &file).map_err(|source| schema::classify(&file, source))
    }

    /// Named sealed value of the store in this folder, which another process can be using; `None` if there is no
    /// store or no such value.
    pub fn peek_sealed(data_dir: &Path, name: &str) -> Result<Option<Vec<u8>>, OpenError> {
        Ok(peek(data_dir, |connection| seal::named(connection, name))?.flatten())
    }

    /// Number of sealed values by the first bytes, which identify their key. Scans all dispatches; empty if there is
    /// no store.
    pub fn sealed_heads(data_dir: &Path) -> Result<BTreeMap<Vec<u8>, u64>, OpenError> {
        Ok(peek(data_dir, seal::heads)?.unwrap_or_default())
    }

    /// Copies the store in this folder, as one snapshot, to a new file. Opened as a store, the copy begins another
    /// event history, which refuses cursors of this one.
    pub fn backup(data_dir: &Path, to: &Path) -> Result<(), BackupError> {
        let (_, mut connection) = open_present(data_dir)?;
        if to.exists() {
            let file = to.to_owned();
            return Err(BackupError::Exists { file });
        }
        // Readable by its owner only, as the store is.
        let draft = NamedTempFile::new_in(parent(to))?;
        let path = draft.path().display().to_string();
        // SQLite writes the copy elsewhere; this file is open for reading only.
        connection.pragma_update(None, "query_only", false)?;
        pace(&mut connection)?;
        connection.execute("VACUUM INTO ?", [&path])?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut copy = Connection::open_with_flags(draft.path(), flags)?;
        pace(&mut copy)?;
        if let Some(first) = damages(&copy, "quick_check")?.into_iter().next() {
            return Err(BackupError::NotWhole(first));
        }
        schema::mark_restored(&copy)?;
        drop(copy);
        draft.as_file().sync_all()?;
        draft.persist_noclobber(to).map_err(|error| error.error)?;
        Ok(sync_name(to)?)
    }
}

/// The store in this folder, opened for reading; `None` if there is none.
fn open(data_dir: &Path) -> Result<Option<(PathBuf, Connection)>, OpenError> {
    let file = data_dir.join(FILE);
    if !is_present(&file)? {
        return Ok(None);
    }
    let connection = connection::open_reader(&file, Config::default().busy_timeout)
        .map_err(|source| schema::classify(&file, source))?;
    schema::inspect(&connection, &file)?;
    Ok(Some((file, connection)))
}

fn open_present(data_dir: &Path) -> Result<(PathBuf, Connection), OpenError> {
    let folder = data_dir.to_owned();
    open(data_dir)?.ok_or(OpenError::Missing { folder })
}

/// Result of a query of the store in this folder; `None` if there is none.
fn peek<T>(
    data_dir: &Path,
    query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
) -> Result<Option<T>, OpenError> {
    let Some((file, connection)) = open(data_dir)? else {
        return Ok(None);
    };
    let found = query(&connection).map(Some);
    found.map_err(|source| schema::classify(&file, source))
}

/// Makes the connection rest between pieces of its work.
fn pace(connection: &mut Connection) -> rusqlite::Result<()> {
    let mut begun = Instant::now();
    let rest = move || {
        let worked = begun.elapsed();
        if worked >= WORK {
            thread::sleep(worked * REST);
            begun = Instant::now();
        }
        false
    };
    connection.progress_handler(OPERATIONS, Some(rest))
}

fn inspect_rows(connection: &Connection, file: &Path) -> rusqlite::Result<Checked> {
    // One snapshot for all queries, unaffected by concurrent writes.
    let moment = connection.unchecked_transaction()?;
    let number = |sql: &str| moment.query_row(sql, [], |row| row.get::<_, u64>(0));
    let mut problems = damages(&moment, "integrity_check")?;
    // In a damaged file the rows are no evidence.
    if problems.is_empty() {
        let has_runs = number("SELECT count(*) FROM sqlite_schema WHERE name = 'run'")? > 0;
        let of_runs = IMPOSSIBLE_OF_RUNS.iter().filter(|_| has_runs);
        for (sql, meaning) in IMPOSSIBLE.iter().chain(of_runs) {
            match number(sql)? {
                0 => {}
                count => problems.push(format!("{count} {meaning}")),
            }
        }
        if schema::identity(&moment)?.is_none() {
            problems.push("the store's name, log and epoch are missing".to_owned());
        }
        if let Err(error) = Totals::load(&moment) {
            problems.push(format!("a start cannot load its counters: {error}"));
        }
    }
    let count = |sql| number(sql).or_else(|error| problems.first().map(|_| 0).ok_or(error));
    Ok(Checked {
        bytes: file.metadata().map_or(0, |metadata| metadata.len()),
        file: file.to_owned(),
        dispatches: count("SELECT count(*) FROM dispatch")?,
        unfinished: count("SELECT count(*) FROM dispatch WHERE phase < 5")?,
        events: count(
            "SELECT (SELECT coalesce(sum(last - first + 1), 0) FROM event)
               + (SELECT coalesce(sum(first_events), 0) FROM dispatch)",
        )?,
        deliveries_pending: count("SELECT count(*) FROM dispatch WHERE delivery = 0")?,
        problems,
    })
}

fn damages(connection: &Connection, pragma: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(&format!("PRAGMA {pragma}({MAX_DAMAGES})"))?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
    let lines = lines.filter(|line| line.as_deref() != Ok("ok"));
    let damages = lines.map(|line| match line {
        // A finding of several lines is joined into one.
        Ok(line) => Ok(line.lines().collect::<Vec<_>>().join("; ")),
        Err(error) if is_damage(&error) => Ok(error.to_string()),
        Err(error) => Err(error),
    });
    damages.collect()
}
