//! Databases of the server that the tests share, and addresses of servers.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) use forge_test_postgres::{Cluster, cluster};

use crate::engine::link::Link;
use crate::engine::target::Target;

pub(crate) trait Targets {
    /// Address of a database.
    fn target(&self, database: &str, user: &str) -> Target;
}

impl Targets for Cluster {
    fn target(&self, database: &str, user: &str) -> Target {
        Target::new(&self.url(database, user), None).unwrap()
    }
}

/// A database of its own on the shared server.
pub(crate) struct Database {
    pub(crate) name: String,
    /// Name of the database that it is a copy of.
    template: &'static str,
    is_created: OnceLock<()>,
}

impl Database {
    pub(crate) fn new() -> Self {
        Self::of("template1")
    }

    pub(crate) fn of(template: &'static str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        Self {
            name: format!("store_{}", NUMBER.fetch_add(1, Ordering::Relaxed)),
            template,
            is_created: OnceLock::new(),
        }
    }

    /// Creates the database the first time.
    pub(crate) async fn create(&self) {
        if self.is_created.set(()).is_ok() {
            let sql = format!("CREATE DATABASE {} TEMPLATE {}", self.name, self.template);
            run("postgres", &sql).await;
        }
    }

    pub(crate) fn target(&self) -> Target {
        cluster().target(&self.name, "forge")
    }
}

/// Carries out a script in a database of the shared server.
pub(crate) async fn run(database: &str, script: &str) {
    let target = cluster().target(database, "forge");
    let mut link = Link::connect(&target).await.unwrap();
    link.run(script).await.unwrap();
}
