//! Stores in databases of a real server, on which the contract suite runs, and what is specific to PostgreSQL.

mod cluster;
mod commit;
mod copy;
mod crash;
mod encryption;
mod faults;
mod hostile;
mod leases;
mod lineage;
mod mute;
mod nodes;
mod peek;
mod pooler;
mod refusals;
mod relay;
mod statements;
mod steps;
mod store_failure;
mod traffic;
mod vitals;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use forge_store::contract::Subject;
use forge_store::contract::model::Killable;
use forge_store::roles::Maintenance as _;
use forge_store::{Config, Store};

use crate::engine::link::Link;
use crate::rows::statement::Statement;
use crate::{Postgres, Target};
use cluster::Database;

forge_store::contract_tests!(crate::tests::in_database);
forge_store::model_tests!(crate::tests::in_database, 3);

pub(crate) struct InDatabase {
    database: Database,
    open: Mutex<Option<Postgres>>,
    /// Opened before a kill, and never closed.
    killed: Mutex<Vec<Postgres>>,
}

pub(crate) fn in_database() -> InDatabase {
    InDatabase {
        database: Database::new(),
        open: Mutex::default(),
        killed: Mutex::default(),
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

#[async_trait]
impl Killable for InDatabase {
    async fn open_as_killed(&self) -> Arc<dyn Store> {
        let old = self.open.lock().unwrap().take();
        self.killed.lock().unwrap().extend(old);
        self.open().await
    }

    async fn problems(&self) -> Vec<String> {
        problems(self.database.target()).await
    }
}

async fn problems(target: Target) -> Vec<String> {
    let mut link = Link::connect(&target).await.unwrap();
    let mut problems = Vec::new();
    for (sql, problem) in IMPOSSIBLE {
        let answer = link.send(&[&Statement::new(sql, Vec::new())]).await;
        if !answer.unwrap()[0].is_empty() {
            problems.push(problem.to_owned());
        }
    }
    problems
}

/// Rows that contradict each other.
const IMPOSSIBLE: [(&str, &str); 8] = [
    (
        "SELECT 1 FROM dispatch d FULL JOIN body b ON b.id = d.id WHERE b.id IS NULL OR d.id IS NULL",
        "a dispatch and its accepted data are not both there",
    ),
    (
        "SELECT 1 FROM dispatch d FULL JOIN result r ON r.id = d.id WHERE (r.id IS NULL) = (d.phase = 5)",
        "a result belongs to no finished dispatch, or is missing",
    ),
    (
        "SELECT 1 FROM delivery v LEFT JOIN dispatch d ON d.id = v.id AND d.phase = 5 WHERE d.id IS NULL",
        "a delivery belongs to no finished dispatch",
    ),
    (
        "SELECT 1 FROM key k LEFT JOIN body b ON b.id = k.dispatch AND b.key = k.value WHERE b.id IS NULL",
        "a key belongs to no dispatch",
    ),
    (
        "SELECT 1 FROM session s FULL JOIN
           (SELECT queue, min(turn) AS head FROM dispatch WHERE queue IS NOT NULL GROUP BY queue) d
           ON d.queue = s.name AND d.head = s.head WHERE d.queue IS NULL OR s.name IS NULL",
        "the first of a session is not the first that waits there",
    ),
    (
        "SELECT 1 FROM (SELECT coalesce(dispatch, run) AS owner, seq,
             lag(seq + last - first + 1, 1, 1) OVER (PARTITION BY coalesce(dispatch, run) ORDER BY first) AS wanted
           FROM event WHERE dispatch IS NOT NULL OR run IS NOT NULL) e
         WHERE seq <> wanted",
        "events of a dispatch or run have a gap",
    ),
    (
        "SELECT 1 FROM (SELECT first, lag(last, 1, 0) OVER (ORDER BY first) AS before FROM event) e
         WHERE first <= before",
        "a position of the log is used twice",
    ),
    (
        "SELECT 1 FROM dispatch d WHERE events <>
           (SELECT sum(last - first + 1) FROM event e WHERE e.dispatch = d.id)",
        "a dispatch has other events than it counts",
    ),
];

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
