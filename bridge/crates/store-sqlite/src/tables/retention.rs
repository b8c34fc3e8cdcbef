//! Retention: removes expired records in small steps.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::params;

use forge_store::durability::Durability;
use forge_store::meters::Meters;
use forge_store::progress::StoreHealth;
use forge_store::record::{DeliveryState, Swept, SweptSignals};
use forge_store::roles::Maintenance;
use forge_store::{Result, rules};

use super::rows::{self, nanos};
use super::{Tx, deliver, events, run_sweep, signal_sweep};
use crate::Sqlite;
use crate::engine::{Failure, Urgency};

#[async_trait]
impl Maintenance for Sqlite {
    fn store_id(&self) -> &str {
        &self.published.identity.store_id
    }

    fn durability(&self) -> Durability {
        Durability::Server
    }

    fn health(&self) -> StoreHealth {
        self.engine.health()
    }

    async fn stalled(&self) -> String {
        self.engine.stalled().await
    }

    async fn moved(&self) {
        self.engine.moved().await;
    }

    fn meters(&self) -> Arc<Meters> {
        self.engine.meters()
    }

    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        let swept = self.write(Urgency::Now, 0, move |tx| sweep(tx, now, limit));
        let swept = swept.await;
        self.recent_events.clear();
        swept
    }

    async fn sweep_signals(&self, before: Timestamp, limit: usize) -> Result<SweptSignals> {
        let change = move |tx: &mut Tx<'_>| signal_sweep::sweep(tx, before, limit);
        self.write(Urgency::Now, 0, change).await
    }

    async fn close(&self) -> Option<String> {
        self.engine.close().await
    }
}

/// One step ends after this long, however few records it has removed: other changes wait for it.
pub(crate) const STEP_TIME: Duration = Duration::from_millis(5);

fn sweep(tx: &mut Tx<'_>, now: Timestamp, limit: usize) -> Result<Swept, Failure> {
    let begun = Instant::now();
    let mut swept = Swept::default();
    let expired: Vec<(i64, bool)> = rows::all(
        tx.conn,
        "SELECT seq, coalesce(delivery = 2, 0) FROM dispatch INDEXED BY dispatch_expires
         WHERE expires_at IS NOT NULL AND expires_at <= ?
         ORDER BY expires_at, seq LIMIT ?",
        params![nanos(now), rows::limit(limit.saturating_add(1))],
        |row| row.try_into(),
    )?;
    for (place, (seq, is_dead)) in expired.into_iter().enumerate() {
        // A step removes at least one dispatch, however slow the disk is.
        if place == limit || place > 0 && begun.elapsed() > STEP_TIME {
            swept.more = true;
            break;
        }
        removed(tx, events::newest_of(tx.conn, seq)?);
        tx.execute("DELETE FROM event WHERE dispatch = ?", [seq])?;
        // Its other rows are deleted with it.
        tx.execute("DELETE FROM dispatch WHERE seq = ?", [seq])?;
        if is_dead {
            deliver::count(tx, Some(DeliveryState::Dead), None);
        }
        swept.dispatches += 1;
    }
    run_sweep::sweep(tx, now, limit, begun, &mut swept)?;
    sweep_unbound(tx, now, limit)?;
    tx.execute(
        "UPDATE meta SET value = ?1 WHERE name = 'removed' AND value < ?1",
        [tx.counters.bounds.removed],
    )?;
    Ok(swept)
}

fn sweep_unbound(tx: &mut Tx<'_>, now: Timestamp, limit: usize) -> Result<(), Failure> {
    let oldest = now.saturating_sub(rules::UNBOUND_RETENTION);
    let last: Vec<u64> = rows::all(
        tx.conn,
        "DELETE FROM event WHERE first IN (
           SELECT first FROM event INDEXED BY event_unbound
           WHERE unbound_at IS NOT NULL AND unbound_at < ? ORDER BY unbound_at LIMIT ?)
         RETURNING last",
        params![oldest.map_or(i64::MIN, nanos), rows::limit(limit)],
        |row| row.get(0),
    )?;
    removed(tx, last.into_iter().max());
    Ok(())
}

/// Notes the position of an event that is removed.
pub(super) fn removed(tx: &mut Tx<'_>, last: Option<u64>) {
    tx.counters.bounds.removed = tx.counters.bounds.removed.max(last.unwrap_or(0));
}
