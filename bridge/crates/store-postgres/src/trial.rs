//! Databases for trials, beside another one on the same server.

use crate::engine::link::Link;
use crate::engine::target::Target;
use crate::engine::timeouts::DATABASE_TIMEOUT;
use crate::open_error::OpenError;

/// The same URL with another database.
pub fn with_database(url: &str, name: &str) -> String {
    let (base, query) = match url.split_once('?') {
        Some((base, query)) => (base, format!("?{query}")),
        None => (url, String::new()),
    };
    let start = base.find("://").map_or(0, |at| at + 3);
    let end = base[start..].find('/').map_or(base.len(), |at| start + at);
    format!("{}/{name}{query}", &base[..end])
}

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
        let link = Link::connect_within(self, DATABASE_TIMEOUT).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_database_of_a_url_is_replaced() {
        for (url, expected) in [
            ("postgres://a@b/c", "postgres://a@b/new"),
            (
                "postgresql://a:p@b:1,d/c?x=/y",
                "postgresql://a:p@b:1,d/new?x=/y",
            ),
            ("postgres://a@%2Ftmp%2Fs/c", "postgres://a@%2Ftmp%2Fs/new"),
        ] {
            assert_eq!(with_database(url, "new"), expected);
        }
    }
}
