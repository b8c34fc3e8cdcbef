//! Store maintenance without serving; works while a bridge runs.

use std::path::PathBuf;

use anyhow::bail;

use super::store::Location;
use crate::config::Config;
use forge_store_sqlite::Sqlite;
use forge_store_sqlite::maintenance::Checked;

/// Checks the integrity of the configured store.
pub async fn check(config: &Config) -> anyhow::Result<Checked> {
    let folder = folder(
        config,
        "check it with pg_amcheck, and its rows with a dump by pg_dump",
    )?;
    Ok(tokio::task::spawn_blocking(move || Sqlite::check(&folder)).await??)
}

/// Copies the configured store to a new file.
pub async fn backup(config: &Config, to: PathBuf) -> anyhow::Result<()> {
    let folder = folder(config, "back it up with pg_dump or pg_basebackup")?;
    Ok(tokio::task::spawn_blocking(move || Sqlite::backup(&folder, &to)).await??)
}

/// Folder of the SQLite file; with a database an error that names the tool of PostgreSQL.
fn folder(config: &Config, instead: &str) -> anyhow::Result<PathBuf> {
    match Location::of(config)? {
        Location::Folder(folder) => Ok(folder),
        Location::Database(_) => {
            bail!(
                "the store is in PostgreSQL (store.url), and this command is for SQLite: {instead}"
            )
        }
    }
}
