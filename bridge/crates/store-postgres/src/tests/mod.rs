//! Stores in databases of a real server, on which the contract suite runs, and what is specific to PostgreSQL.

mod cluster;
mod commit;
mod faults;
mod pooler;
mod refusals;
mod relay;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use forge_store::contract::Subject;
use forge_store::roles::Maintenance as _;
use forge_store::{Config, Store};

use crate::{Postgres, Target};
use cluster::Database;

forge_store::contract_tests!(crate::tests::in_database);

pub(crate) struct InDatabase {
    database: Database,
    open: Mutex<Option<Postgres>>,
}

pub(crate) fn in_database() -> InDatabase {
    InDatabase {
        database: Database::new(),
        open: Mutex::default(),
    }
}

#[async_trait]
impl Subject for InDatabase {
    async fn open(&self) -> Arc<dyn Store> {
        let old = self.open.lock().unwrap().take();
        if let Some(old) = old {
            old.close().await;
        }
        self.database.create().await;
        let new = open(self.database.target()).await;
        *self.open.lock().unwrap() = Some(new.clone());
        Arc::new(new)
    }
}

async fn open(target: Target) -> Postgres {
    Postgres::open(&Config::default(), target, "node")
        .await
        .unwrap()
}

/// A store in a new database.
async fn new_store() -> (Database, Postgres) {
    let database = Database::new();
    database.create().await;
    let store = open(database.target()).await;
    (database, store)
}
