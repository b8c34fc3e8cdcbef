//! Store maintenance without serving; works while a bridge runs.

use std::path::PathBuf;

use crate::config::Config;
use forge_store_sqlite::Sqlite;
use forge_store_sqlite::maintenance::Checked;

/// Checks the integrity of the configured store.
pub async fn check(config: &Config) -> anyhow::Result<Checked> {
    let folder = config.data_dir.clone();
    Ok(tokio::task::spawn_blocking(move || Sqlite::check(&folder)).await??)
}

/// Copies the configured store to a new file.
pub async fn backup(config: &Config, to: PathBuf) -> anyhow::Result<()> {
    let folder = config.data_dir.clone();
    Ok(tokio::task::spawn_blocking(move || Sqlite::backup(&folder, &to)).await??)
}
