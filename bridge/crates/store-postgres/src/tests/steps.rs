//! Steps of the tables, made up for these tests.

use std::time::{Duration, Instant};

use tokio_util::task::TaskTracker;

use forge_store::Config;
use forge_store::contract::sample::{accept, task};
use forge_store::roles::{Maintenance as _, Records as _};

use super::new_store;
use crate::Postgres;
use crate::engine::link::Link;
use crate::rows::statement::{Columns, Statement};
use crate::steps::{self, Change, STEPS, Step, take};

fn step(change: Change) -> Step {
    Step {
        change,
        oldest_reader: 1,
    }
}

/// The steps of this program, and these.
fn with(more: &[Step]) -> Vec<Step> {
    STEPS.iter().chain(more).copied().collect()
}

const COLUMN: Change = Change::Script("ALTER TABLE body ADD COLUMN note bytea");
const INDEX: Change = Change::Index("body_note", "UNIQUE ON body (note) WHERE note IS NOT NULL");

/// The first column of the only row.
async fn number(link: &mut Link, sql: &'static str) -> i64 {
    let answers = link
        .send(&[&Statement::new(sql, Vec::new())])
        .await
        .unwrap();
    Columns::of(&answers[0][0]).next().unwrap()
}

const VERSION: &str = "SELECT version FROM schema";
const VALID: &str =
    "SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('body_note') AND indisvalid";

#[tokio::test]
async fn the_release_before_works_on_the_tables_after_a_step() {
    let (database, store) = new_store().await;
    let mut link = Link::connect(&database.target()).await.unwrap();
    let id = accept(&store, task("before")).await;
    let steps = with(&[step(COLUMN), step(INDEX)]);
    take(&database.target(), &mut link, &steps, "node")
        .await
        .unwrap();
    assert_eq!(number(&mut link, VERSION).await, steps::VERSION + 2);
    assert_eq!(number(&mut link, VALID).await, 1);
    // While it is open, and after the next start.
    accept(&store, task("beside")).await;
    store.close().await;
    let store = super::open(database.target()).await;
    accept(&store, task("after")).await;
    assert!(store.dispatch(id).await.unwrap().is_some());
    let breaking = Step {
        change: Change::Script("ALTER TABLE body DROP COLUMN routing"),
        oldest_reader: steps::VERSION + 3,
    };
    let steps = with(&[step(COLUMN), step(INDEX), breaking]);
    let other = take(&database.target(), &mut link, &steps, "another").await;
    let refused = other.err().unwrap().to_string();
    assert!(
        refused.contains(&format!(
            "to version {}, on which the node node cannot work",
            steps::VERSION + 3
        )),
        "{refused}"
    );
    assert_eq!(number(&mut link, VERSION).await, steps::VERSION + 2);
    store.close().await;
    take(&database.target(), &mut link, &steps, "node")
        .await
        .unwrap();
    let opened = Postgres::open(&Config::default(), database.target(), "node").await;
    let refused = opened.err().unwrap().to_string();
    assert!(
        refused.contains(&format!(
            "newer forge-bridge (version {}, this one supports up to {})",
            steps::VERSION + 3,
            steps::VERSION
        )),
        "{refused}"
    );
}

#[tokio::test]
async fn a_table_that_is_read_for_long_delays_only_the_step() {
    let (database, store) = new_store().await;
    let mut reading = Link::connect(&database.target()).await.unwrap();
    reading
        .run("BEGIN; SELECT count(*) FROM body")
        .await
        .unwrap();
    let target = database.target();
    let taking = TaskTracker::new().spawn(async move {
        let mut link = Link::connect(&target).await.unwrap();
        let begun = Instant::now();
        take(&target, &mut link, &with(&[step(COLUMN)]), "node")
            .await
            .unwrap();
        begun.elapsed()
    });
    let mut longest = Duration::ZERO;
    let begun = Instant::now();
    for number in 0.. {
        let one = Instant::now();
        accept(&store, task(&number.to_string())).await;
        longest = longest.max(one.elapsed());
        if begun.elapsed() > Duration::from_secs(3) {
            break;
        }
    }
    assert!(!taking.is_finished());
    assert!(longest < Duration::from_secs(1), "{longest:?}");
    reading.run("COMMIT").await.unwrap();
    assert!(taking.await.unwrap() > Duration::from_secs(3));
    store.close().await;
}

#[tokio::test]
async fn starts_at_once_take_each_step_once() {
    let (database, store) = new_store().await;
    let steps = with(&[
        step(Change::Script("CREATE TABLE taken (x int)")),
        step(COLUMN),
        step(INDEX),
    ]);
    let taking = (0..4).map(|_| async {
        let mut link = Link::connect(&database.target()).await.unwrap();
        take(&database.target(), &mut link, &steps, "node").await
    });
    for taken in futures_util::future::join_all(taking).await {
        taken.unwrap();
    }
    store.close().await;
}

#[tokio::test]
async fn an_index_that_was_not_finished_is_built_again() {
    let (database, store) = new_store().await;
    let mut link = Link::connect(&database.target()).await.unwrap();
    for name in ["a", "b"] {
        accept(&store, task(name)).await;
    }
    let target = database.target();
    take(&target, &mut link, &with(&[step(COLUMN)]), "node")
        .await
        .unwrap();
    link.run("UPDATE body SET note = 'same'").await.unwrap();
    let steps = with(&[step(COLUMN), step(INDEX)]);
    let refused = take(&target, &mut link, &steps, "node")
        .await
        .err()
        .unwrap();
    let message = refused.to_string();
    assert!(
        message.contains(&format!(
            "to version {}: could not create unique index",
            steps::VERSION + 2
        )),
        "{message}"
    );
    assert_eq!(number(&mut link, VERSION).await, steps::VERSION + 1);
    let left = "SELECT count(*) FROM pg_index WHERE indexrelid = to_regclass('body_note')";
    assert_eq!(number(&mut link, left).await, 1);
    link.run("UPDATE body SET note = NULL").await.unwrap();
    take(&target, &mut link, &steps, "node").await.unwrap();
    assert_eq!(
        (
            number(&mut link, VERSION).await,
            number(&mut link, VALID).await
        ),
        (steps::VERSION + 2, 1)
    );
    store.close().await;
}
