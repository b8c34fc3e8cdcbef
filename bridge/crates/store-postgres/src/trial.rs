//! Databases for trials, beside another one on the same server.

use crate::engine::link::Link;
use crate::engine::target::Target;
use crate::open_error::OpenError;

impl Target {
    /// Creates an empty database on the server of this one. The name consists of letters, digits and `_`.
    pub async fn create_database(&self, name: &str) -> Result<(), OpenError> {
        self.run(&format!(
            "CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'"
        ))
        .await
    }

    /// Drops a database that `create_database` has created, also while it is used.
    pub async fn drop_database(&self, name: &str) -> Result<(), OpenError> {
        self.run(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
            .await
    }

    async fn run(&self, statement: &str) -> Result<(), OpenError> {
        let database = || self.name();
        let link = Link::connect(self).await;
        let mut link = link.map_err(|reason| OpenError::Connect {
            database: database(),
            reason,
        })?;
        let done = link.run(statement).await;
        done.map_err(|error| OpenError::Trial {
            database: database(),
            reason: error.to_string(),
        })
    }
}
