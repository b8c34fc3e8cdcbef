//! Store maintenance without serving. Checks and backups work while a bridge runs.

use std::path::PathBuf;

use anyhow::{Context as _, bail};

use super::store::{Location, target};
use crate::config::Config;
use forge_store_postgres::Postgres;
use forge_store_postgres::copy::{self, Copied};
use forge_store_sqlite::Sqlite;
use forge_store_sqlite::copy::CopiedStore;
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

/// Copies the SQLite store of `data_dir`, which no bridge uses, into the database of this URL; see `copy::copy`. Returns the
/// name of the database besides.
pub async fn copy(
    config: &Config,
    url: &str,
    report: impl FnMut(&'static str, u64),
) -> anyhow::Result<(String, Vec<Copied>)> {
    let target = target(config, url)?;
    let name = target.name();
    let (store, folder) = (config.store.clone(), config.data_dir.clone());
    let source = tokio::task::spawn_blocking(move || CopiedStore::open(&store, &folder));
    let paused = forge_plugin_host::paused(&config.data_dir.join("state"));
    let paused = paused.context("the pauses of adapters cannot be read")?;
    Ok((
        name,
        copy::copy(source.await??, target, paused, report).await?,
    ))
}

/// Lets the SQLite store of `data_dir` start again after a copy. False if it was not copied.
pub async fn undo_copy(config: &Config) -> anyhow::Result<bool> {
    let (store, folder) = (config.store.clone(), config.data_dir.clone());
    let undone = tokio::task::spawn_blocking(move || Sqlite::undo_copy(&store, &folder));
    Ok(undone.await??)
}

/// Makes the store of a copied database a store of its own. False if it is not a copy.
pub async fn adopt(config: &Config) -> anyhow::Result<bool> {
    match Location::of(config)? {
        Location::Folder(_) => {
            bail!(
                "store.url (BRIDGE_STORE) names no PostgreSQL database, and this command is for one"
            )
        }
        Location::Database(target) => Ok(Postgres::adopt(&target).await?),
    }
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
