//! What an operator does with a store from outside, also while a bridge works on it: looking whether it is
//! whole, and making a copy that can be put in its place.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use tempfile::NamedTempFile;

use super::Sqlite;
use super::folder::{FILE, OpenError};
use super::journal::Promised;
use super::{ahead, schema, seal};

/// What SQLite says of damage at most; one page is often told of many times.
const MOST_DAMAGES: usize = 20;

/// Rows that cannot be there, and what it means that they are.
const IMPOSSIBLE: [(&str, &str); 6] = [
    (
        "SELECT count(*) FROM dispatch d WHERE phase = 5
           AND NOT EXISTS (SELECT 1 FROM result r WHERE r.dispatch = d.seq)",
        "finished dispatches have no result",
    ),
    (
        "SELECT count(*) FROM result r JOIN dispatch d ON d.seq = r.dispatch WHERE d.phase <> 5",
        "dispatches have a result and are not finished",
    ),
    (
        "SELECT count(*) FROM dispatch d WHERE phase = 5 AND callback_url IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM delivery v WHERE v.dispatch = d.seq)",
        "results are owed to a callback and have no delivery",
    ),
    (
        "SELECT count(*) FROM dispatch d WHERE events <>
           (SELECT coalesce(sum(last - first + 1), 0) FROM event e WHERE e.dispatch = d.seq)",
        "dispatches have lost events",
    ),
    (
        "SELECT count(*) FROM (
           SELECT seq, lag(seq + last - first + 1, 1, 1)
             OVER (PARTITION BY dispatch ORDER BY first) AS wanted
           FROM event WHERE dispatch IS NOT NULL)
         WHERE seq <> wanted",
        "gaps are in the events of dispatches",
    ),
    (
        "SELECT count(*) FROM (
           SELECT first, lag(last, 1, 0) OVER (ORDER BY first) AS before FROM event)
         WHERE first <= before",
        "positions of the event log are used twice",
    ),
];

/// What a look at a store found.
#[derive(Debug)]
pub struct Checked {
    pub file: PathBuf,
    pub bytes: u64,
    pub dispatches: u64,
    pub unfinished: u64,
    pub events: u64,
    pub deliveries_pending: u64,
    /// Each as one line; none when all is well.
    pub problems: Vec<String>,
}

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{} is there already and was left as it is; name another file", file.display())]
    Exists { file: PathBuf },
    #[error("cannot write {}", file.display())]
    Write { file: PathBuf, source: io::Error },
    #[error("cannot copy the store to {}", file.display())]
    Copy {
        file: PathBuf,
        source: rusqlite::Error,
    },
    #[error("the copy is not whole ({0}) and was removed; look with `forge-bridge store check`")]
    NotWhole(String),
}

impl Sqlite {
    /// Looks whether the store in this folder is whole. Reads all of it.
    pub fn check(data_dir: &Path) -> Result<Checked, OpenError> {
        let (file, connection) = open(data_dir)?;
        look(&connection, &file).map_err(|source| schema::classify(&file, source))
    }

    /// How many sealed values begin with the same few bytes, which name their key. Reads all of the store;
    /// nothing where there is none.
    pub fn sealed_heads(data_dir: &Path) -> Result<BTreeMap<Vec<u8>, u64>, OpenError> {
        if !data_dir.join(FILE).exists() {
            return Ok(BTreeMap::new());
        }
        let (file, connection) = open(data_dir)?;
        heads(&connection, &file).map_err(|source| schema::classify(&file, source))
    }

    /// Copies the store in this folder, as it is at one moment, to a file that is not there yet. Opened in
    /// a store's place the copy begins another history: cursors of this one are refused there.
    pub fn backup(data_dir: &Path, to: &Path) -> Result<(), BackupError> {
        let (store, connection) = open(data_dir)?;
        let failed = |source| BackupError::Write {
            file: to.to_owned(),
            source,
        };
        let copying = |source| BackupError::Copy {
            file: to.to_owned(),
            source,
        };
        if to.exists() {
            let file = to.to_owned();
            return Err(BackupError::Exists { file });
        }
        let folder = match to.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            Some(_) | None => Path::new("."),
        };
        // Readable by its owner alone, as the store is.
        let draft = NamedTempFile::new_in(folder).map_err(failed)?;
        let path = draft.path().display().to_string();
        // What is promised goes along, though the tables may not have it yet. Read first, it goes on where they end.
        let identity = schema::identity(&connection).map_err(copying)?;
        let left = identity
            .as_ref()
            .map_or(Ok(Vec::new()), |identity| {
                ahead::journaled(&connection, &store, identity)
            })
            .map_err(copying)?;
        // It writes elsewhere; this file is open for reading alone.
        connection
            .pragma_update(None, "query_only", false)
            .map_err(copying)?;
        connection
            .execute("VACUUM INTO ?", [&path])
            .map_err(copying)?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let copy = Connection::open_with_flags(draft.path(), flags).map_err(copying)?;
        let damages = damages(&copy, "quick_check").map_err(copying)?;
        if let Some(first) = damages.into_iter().next() {
            return Err(BackupError::NotWhole(first));
        }
        if let Some(identity) = &identity {
            ahead::redo(&copy, identity, left)
                .map_err(|failure| BackupError::NotWhole(failure.into()))?;
        }
        schema::mark_restored(&copy).map_err(copying)?;
        drop(copy);
        draft.as_file().sync_all().map_err(failed)?;
        let persisted = draft.persist_noclobber(to);
        persisted.map_err(|error| failed(error.error))?;
        File::open(folder)
            .and_then(|folder| folder.sync_all())
            .map_err(failed)
    }
}

/// Those in the tables, and those that a crash left in the journal alone.
fn heads(connection: &Connection, file: &Path) -> rusqlite::Result<BTreeMap<Vec<u8>, u64>> {
    let journaled = schema::identity(connection)?.map_or(Ok(Vec::new()), |identity| {
        ahead::journaled(connection, file, &identity)
    })?;
    // Some may be there by now.
    let in_tables = schema::promised(connection)?;
    let mut heads = seal::heads(connection)?;
    for (_, promised) in journaled.iter().filter(|(number, _)| *number > in_tables) {
        if let Promised::Accept(new) = promised
            && let Some(secrets) = &new.secrets
        {
            *heads.entry(seal::head(secrets).to_vec()).or_insert(0) += 1;
        }
    }
    Ok(heads)
}

fn open(data_dir: &Path) -> Result<(PathBuf, Connection), OpenError> {
    let file = data_dir.join(FILE);
    if !file.exists() {
        let folder = data_dir.to_owned();
        return Err(OpenError::Missing { folder });
    }
    let connection =
        schema::open_reader(&file).map_err(|source| schema::classify(&file, source))?;
    schema::inspect(&connection, &file)?;
    Ok((file, connection))
}

fn look(connection: &Connection, file: &Path) -> rusqlite::Result<Checked> {
    // One moment for all questions, whatever a bridge writes meanwhile.
    let moment = connection.unchecked_transaction()?;
    let number = |sql: &str| moment.query_row(sql, [], |row| row.get::<_, u64>(0));
    let mut problems = damages(&moment, "integrity_check")?;
    // In a damaged file the rows say nothing.
    if problems.is_empty() {
        for (sql, meaning) in IMPOSSIBLE {
            match number(sql)? {
                0 => {}
                count => problems.push(format!("{count} {meaning}")),
            }
        }
    }
    let count = |sql| match problems.is_empty() {
        true => number(sql),
        false => Ok(number(sql).unwrap_or(0)),
    };
    Ok(Checked {
        bytes: file.metadata().map_or(0, |metadata| metadata.len()),
        file: file.to_owned(),
        dispatches: count("SELECT count(*) FROM dispatch")?,
        unfinished: count("SELECT count(*) FROM dispatch WHERE phase < 5")?,
        events: count("SELECT coalesce(sum(last - first + 1), 0) FROM event")?,
        deliveries_pending: count("SELECT count(*) FROM delivery WHERE state = 0")?,
        problems,
    })
}

fn damages(connection: &Connection, pragma: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(&format!("PRAGMA {pragma}({MOST_DAMAGES})"))?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
    let mut damages = Vec::new();
    for line in lines {
        match line {
            Ok(line) if line == "ok" => {}
            // Several lines are one finding with its places.
            Ok(line) => damages.push(line.lines().collect::<Vec<_>>().join("; ")),
            Err(error) if schema::is_damage(&error) => damages.push(error.to_string()),
            Err(error) => return Err(error),
        }
    }
    Ok(damages)
}
