//! A database of its own for a trial.

use crate::config::Config;
use forge_store_postgres::{Target, with_database};

use super::store::target;

pub struct TrialDatabase {
    server: Target,
    pub name: String,
    /// Like that of the database beside which it was created.
    pub url: String,
}

impl TrialDatabase {
    /// Creates an empty database on the server of this URL, whose own database stays as it is.
    pub async fn create(config: &Config, url: &str) -> anyhow::Result<Self> {
        let server = target(config, url)?;
        let name = format!("forge_trial_{:016x}", rand::random::<u64>());
        server.create_database(&name).await?;
        Ok(Self {
            server,
            url: with_database(url, &name),
            name,
        })
    }

    pub async fn remove(&self) -> anyhow::Result<()> {
        Ok(self.server.drop_database(&self.name).await?)
    }
}
