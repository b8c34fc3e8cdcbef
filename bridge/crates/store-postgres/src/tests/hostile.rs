//! A database whose schema `public` others can write to, as it is by default before PostgreSQL 15: functions and operators
//! there fit what the bridge sends better than those of the server, and none is called.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::OnceCell;

use forge_store::Store;
use forge_store::contract::Subject;
use forge_store::contract::model::Killable;
use forge_store::contract::sample::{accept, ok, run, task};
use forge_store::roles::Maintenance as _;

use super::cluster::{self, Database};
use super::{InDatabase, open};
use crate::engine::link::Link;
use crate::rows::statement::{Columns, Statement};

forge_store::model_tests!(crate::tests::hostile::in_hostile_database, 1);

const TEMPLATE: &str = "hostile";

pub(crate) struct Hostile(InDatabase);

pub(crate) fn in_hostile_database() -> Hostile {
    Hostile(InDatabase {
        database: Database::of(TEMPLATE),
        open: Mutex::default(),
        killed: Mutex::default(),
    })
}

impl Hostile {
    /// Creates the template the first time.
    async fn prepare(&self) {
        static IS_THERE: OnceCell<()> = OnceCell::const_new();
        let create = || async {
            cluster::run("postgres", &format!("CREATE DATABASE {TEMPLATE}")).await;
            cluster::run(TEMPLATE, include_str!("hostile.sql")).await;
        };
        IS_THERE.get_or_init(create).await;
        self.0.database.create().await;
    }

    async fn link(&self) -> Link {
        Link::connect(&self.0.database.target()).await.unwrap()
    }

    /// True if any of the functions was called.
    async fn was_called(&self) -> bool {
        let asked = Statement::new("SELECT is_called FROM public.called", Vec::new());
        let answers = self.link().await.send(&[&asked]).await.unwrap();
        Columns::of(&answers[0][0]).next().unwrap()
    }
}

#[async_trait]
impl Subject for Hostile {
    async fn open(&self) -> Arc<dyn Store> {
        self.prepare().await;
        self.0.open().await
    }
}

#[async_trait]
impl Killable for Hostile {
    async fn open_as_killed(&self) -> Arc<dyn Store> {
        self.prepare().await;
        self.0.open_as_killed().await
    }

    async fn problems(&self) -> Vec<String> {
        match self.was_called().await {
            true => vec!["functions of another role were called".to_owned()],
            false => Vec::new(),
        }
    }
}

#[tokio::test]
async fn functions_of_others_are_never_called() {
    let subject = in_hostile_database();
    subject.prepare().await;
    // The objects do what they are for: one that fits is preferred to the one of the server.
    let mut link = subject.link().await;
    let asked = link.run("SELECT extract(epoch FROM '1 s'::interval) * 2");
    let refused = asked.await.unwrap_err().to_string();
    assert!(refused.contains("hostile code ran"), "{refused}");
    let reset = link.run("SELECT pg_catalog.setval('called', 1, false)");
    reset.await.unwrap();
    let store = open(subject.0.database.target()).await;
    run(&store, task("a"), ok(2)).await;
    accept(&store, task("b")).await;
    // The rounds of the lease and of the counts have begun.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(store.status(), Ok(()));
    store.close().await;
    open(subject.0.database.target()).await.close().await;
    assert!(!subject.was_called().await);
}
