//! Looking after a store without serving it, also while a bridge does.

use std::path::PathBuf;

use crate::config::Config;
use forge_store_sqlite::Sqlite;
use forge_store_sqlite::maintenance::Checked;

/// Whether the configured store is whole.
pub async fn check(config: &Config) -> anyhow::Result<Checked> {
    let folder = config.data_dir.clone();
    Ok(tokio::task::spawn_blocking(move || Sqlite::check(&folder)).await??)
}

/// Copies the configured store to a file that is not there yet.
pub async fn backup(config: &Config, to: PathBuf) -> anyhow::Result<()> {
    let folder = config.data_dir.clone();
    Ok(tokio::task::spawn_blocking(move || Sqlite::backup(&folder, &to)).await??)
}
