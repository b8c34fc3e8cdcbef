//! State of the database that slows all nodes: a snapshot that is left open, and the dead rows that vacuum cannot remove
//! because of it. Read by a reading connection, so that it delays no batch and no renewal.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::readers::Readers;
use crate::rows::statement::{Columns, Statement};
use forge_store::Result;
use forge_store::meters::Meters;

/// Pause between two looks. The statistics of the server are a minute behind at most.
const PAUSE: Duration = Duration::from_secs(30);

/// Age of the oldest transaction, and dead rows in the order of `DEAD_ROWS`. Sessions of other roles are seen by members
/// of `pg_read_all_stats` only; a vacuum holds up no other one.
const VITALS: &str = "SELECT
   (extract(epoch FROM pg_catalog.clock_timestamp() - least(
     (SELECT pg_catalog.min(xact_start) FROM pg_stat_activity WHERE datname = pg_catalog.current_database() AND pid <> pg_catalog.pg_backend_pid()
       AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND backend_type <> 'autovacuum worker'),
     (SELECT pg_catalog.min(prepared) FROM pg_prepared_xacts WHERE database = pg_catalog.current_database()))) * 1000::numeric)::int8,
   coalesce(pg_catalog.sum(n_dead_tup) FILTER (WHERE relid = 'dispatch'::regclass::oid), 0)::int8,
   coalesce(pg_catalog.sum(n_dead_tup) FILTER (WHERE relid = 'delivery'::regclass::oid), 0)::int8,
   coalesce(pg_catalog.sum(n_dead_tup) FILTER (WHERE relid NOT IN ('dispatch'::regclass::oid, 'delivery'::regclass::oid)), 0)::int8
   FROM pg_stat_user_tables";

pub(super) async fn watch(readers: Arc<Readers>, meters: Arc<Meters>) {
    let mut looks = interval(PAUSE);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if let Err(error) = look(&readers, &meters).await {
            tracing::debug!(%error, "the statistics of the database are not read");
        }
    }
}

async fn look(readers: &Readers, meters: &Meters) -> Result<()> {
    let rows = readers.read(Statement::new(VITALS, Vec::new())).await?;
    let Some(row) = rows.first() else {
        return Ok(());
    };
    let mut columns = Columns::of(row);
    let oldest: Option<u64> = columns.next()?;
    meters.shared.oldest_snapshot_ms.set(oldest.unwrap_or(0));
    for gauge in &meters.shared.dead_rows {
        gauge.set(columns.next()?);
    }
    Ok(())
}
