//! Metrics of the database: a snapshot that is left open, and dead rows.

use std::time::Duration;

use forge_store::contract::sample::{accept, begin, task};
use forge_store::roles::Maintenance as _;

use super::{new_store, open};
use crate::engine::link::Link;

#[tokio::test]
async fn an_open_snapshot_and_dead_rows_are_seen() {
    let (database, store) = new_store().await;
    let id = accept(&store, task("t")).await;
    let mut snapshot = Link::connect(&database.target()).await.unwrap();
    let script = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM dispatch";
    snapshot.run(script).await.unwrap();
    begin(&store, id, 1).await;
    // Its server processes report the rows that they changed at their end.
    store.close().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let meters = open(database.target()).await;
    let meters = || meters.meters();
    let end = tokio::time::Instant::now() + Duration::from_secs(20);
    while meters().shared.oldest_snapshot_ms.get() < 300 {
        assert!(tokio::time::Instant::now() < end, "{:?}", meters().shared);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let [dispatch, ..] = &meters().shared.dead_rows;
    assert!(dispatch.get() > 0, "{:?}", meters().shared);
    drop(snapshot);
}
