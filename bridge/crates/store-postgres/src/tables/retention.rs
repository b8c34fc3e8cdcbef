//! State of the store itself, and retention: expired records are removed in small steps. What a step removes is read
//! before, and looked at again under lock.

use std::future::pending;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;

use forge_base::id::{DispatchId, RunId};
use forge_store::durability::Durability;
use forge_store::meters::Meters;
use forge_store::progress::StoreHealth;
use forge_store::record::{Swept, SweptSignals};
use forge_store::roles::Maintenance;
use forge_store::{Result, rules};

use crate::batch::{Needs, Rows};
use crate::rows::statement::{Statement, array, params};
use crate::{Columns, Postgres};

/// Rows of events, and artifacts, of removed runs that one step removes.
const EVENT_ROWS: usize = 500;
const ARTIFACT_ROWS: usize = 5;

/// Tables of what belongs to a dispatch, by its id.
const OF_DISPATCH: [&str; 8] = [
    // A key can belong to a later dispatch.
    "DELETE FROM key k USING body b WHERE b.id = ANY($1) AND k.value = b.key AND k.dispatch = b.id",
    "DELETE FROM body WHERE id = ANY($1)",
    "DELETE FROM result WHERE id = ANY($1)",
    "DELETE FROM spending WHERE id = ANY($1)",
    "DELETE FROM content WHERE id = ANY($1)",
    "DELETE FROM decision WHERE id = ANY($1)",
    "DELETE FROM attempt WHERE id = ANY($1)",
    "DELETE FROM event WHERE dispatch = ANY($1)",
];

#[async_trait]
impl Maintenance for Postgres {
    fn store_id(&self) -> &str {
        &self.published.identity.store_id
    }

    fn durability(&self) -> Durability {
        self.durability
    }

    fn health(&self) -> StoreHealth {
        self.engine.health()
    }

    async fn stalled(&self) -> String {
        self.engine.stalled().await
    }

    async fn moved(&self) {
        pending::<()>().await;
    }

    fn meters(&self) -> Arc<Meters> {
        self.engine.meters()
    }

    async fn sweep(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        let swept = self.sweep_expired(now, limit).await;
        self.recent_events.clear();
        swept
    }

    async fn sweep_signals(&self, before: Timestamp, limit: usize) -> Result<SweptSignals> {
        self.sweep_old_signals(before, limit).await
    }

    async fn close(&self) -> Option<String> {
        self.engine.close().await
    }
}

/// One step of retention at a time.
fn alone(needs: Needs) -> Needs {
    let apart = Some("retention".to_owned());
    Needs { apart, ..needs }
}

/// Question for the last position among the events of these dispatches or runs.
fn last_position(sql: &'static str, ids: Vec<crate::Param<'_>>) -> Vec<Statement<'static>> {
    vec![Statement::new(sql, ids).into_owned()]
}

impl Rows {
    /// Notes the position of the answer, which is removed.
    fn note_removed(&mut self) -> Result<()> {
        let row = self.answers.first().and_then(|answer| answer.first());
        let last = row.map_or(Ok(None), |row| Columns::of(row).next::<Option<u64>>())?;
        if let Some(last) = last {
            self.removed = self.removed.max(last);
            let sql = "INSERT INTO meta (name, value) VALUES ('removed', $1)
               ON CONFLICT (name) DO UPDATE SET value = greatest(meta.value, excluded.value)";
            self.execute(sql, params![last]);
        }
        Ok(())
    }
}

impl Postgres {
    async fn sweep_expired(&self, now: Timestamp, limit: usize) -> Result<Swept> {
        let (dispatches, more_dispatches) = self.sweep_dispatches(now, limit).await?;
        let (runs, more_runs) = self.sweep_runs(now, limit).await?;
        let more_rows = self.sweep_removed_runs().await?;
        self.sweep_unbound(now, limit).await?;
        Ok(Swept {
            dispatches,
            runs,
            more: more_dispatches || more_runs || more_rows,
        })
    }

    /// Number of removed dispatches, and true if there are more.
    async fn sweep_dispatches(&self, now: Timestamp, limit: usize) -> Result<(u64, bool)> {
        let sql = "SELECT id FROM dispatch WHERE expires_at IS NOT NULL AND expires_at <= $1
                   ORDER BY expires_at, seq LIMIT $2";
        let most = limit.saturating_add(1);
        let params = params![now, most];
        let mut expired: Vec<DispatchId> = self.all(sql, params, |row| row.next()).await?;
        let has_more = expired.len() > limit;
        expired.truncate(limit);
        if expired.is_empty() {
            return Ok((0, false));
        }
        let last = "SELECT pg_catalog.max(last) FROM event WHERE dispatch = ANY($1)";
        let needs = alone(Needs {
            dispatches: expired.clone(),
            deliveries: expired.clone(),
            reads: last_position(last, vec![array(&expired)]),
            ..Needs::default()
        });
        let change = move |rows: &mut Rows| {
            let is_expired = |id: &&DispatchId| {
                let expires_at = rows
                    .dispatches
                    .get(id)
                    .and_then(|dispatch| dispatch.expires_at);
                expires_at.is_some_and(|time| time <= now)
            };
            let gone: Vec<_> = expired.iter().filter(is_expired).copied().collect();
            rows.note_removed()?;
            for id in &gone {
                rows.dispatches.remove(id);
                rows.deliveries.remove(id);
            }
            for sql in OF_DISPATCH {
                rows.execute(sql, vec![array(&gone)]);
            }
            Ok(gone.len() as u64)
        };
        Ok((self.write(0, needs, change).await?, has_more))
    }

    /// Number of removed runs, and true if there are more. Their events and artifacts go in further steps.
    async fn sweep_runs(&self, now: Timestamp, limit: usize) -> Result<(u64, bool)> {
        let sql = "SELECT id FROM run WHERE expires_at IS NOT NULL AND expires_at <= $1
                   ORDER BY expires_at, place LIMIT $2";
        let most = limit.saturating_add(1);
        let params = params![now, most];
        let mut expired: Vec<RunId> = self.all(sql, params, |row| row.next()).await?;
        let has_more = expired.len() > limit;
        expired.truncate(limit);
        if expired.is_empty() {
            return Ok((0, false));
        }
        // A run that has ended changes no more.
        let last = "SELECT pg_catalog.max(last) FROM event WHERE run = ANY($1)";
        let needs = alone(Needs {
            runs: expired.clone(),
            reads: last_position(last, vec![array(&expired)]),
            ..Needs::default()
        });
        let change = move |rows: &mut Rows| {
            let gone: Vec<_> = expired
                .iter()
                .filter(|id| rows.runs.get(id).is_some())
                .collect();
            rows.note_removed()?;
            gone.iter().for_each(|id| rows.runs.remove(id));
            let params = || vec![array(gone.iter().copied())];
            rows.execute("DELETE FROM run_body WHERE id = ANY($1)", params());
            rows.execute(
                "INSERT INTO run_removed (id) SELECT pg_catalog.unnest($1)",
                params(),
            );
            Ok(gone.len() as u64)
        };
        Ok((self.write(0, needs, change).await?, has_more))
    }

    /// Removes some events, then artifacts, of the first removed run; true if there can be more.
    async fn sweep_removed_runs(&self) -> Result<bool> {
        let first = "SELECT id, (SELECT pg_catalog.count(*) FROM (SELECT 1 FROM event e WHERE e.run = r.id LIMIT $1) c),
               (SELECT pg_catalog.count(*) FROM (SELECT 1 FROM run_artifact a WHERE a.id = r.id LIMIT $2) c),
               (SELECT pg_catalog.count(*) FROM (SELECT 1 FROM run_removed LIMIT 2) c) > 1
             FROM run_removed r ORDER BY id LIMIT 1";
        let read = |row: &mut Columns<'_>| Ok((row.next()?, row.next()?, row.next()?, row.next()?));
        let found = self
            .one(first, params![EVENT_ROWS, ARTIFACT_ROWS], read)
            .await?;
        let Some((run, events, artifacts, has_more)): Option<(RunId, usize, usize, bool)> = found
        else {
            return Ok(false);
        };
        let is_last = events < EVENT_ROWS && artifacts < ARTIFACT_ROWS;
        let change = move |rows: &mut Rows| {
            let sql = "DELETE FROM event WHERE first IN (SELECT first FROM event WHERE run = $1 LIMIT $2)";
            rows.execute(sql, params![run, EVENT_ROWS]);
            let sql = "DELETE FROM run_artifact WHERE id = $1
               AND path IN (SELECT path FROM run_artifact WHERE id = $1 LIMIT $2)";
            rows.execute(sql, params![run, ARTIFACT_ROWS]);
            if is_last {
                rows.execute("DELETE FROM run_removed WHERE id = $1", params![run]);
            }
            Ok(())
        };
        self.write(0, alone(Needs::default()), change).await?;
        Ok(!is_last || has_more)
    }

    async fn sweep_unbound(&self, now: Timestamp, limit: usize) -> Result<()> {
        let oldest = now.saturating_sub(rules::UNBOUND_RETENTION);
        let oldest = oldest.unwrap_or(Timestamp::MIN);
        let homes =
            "DELETE FROM home WHERE session IN (SELECT session FROM home WHERE at < $1 LIMIT $2)";
        self.all(homes, params![oldest, limit], |_| Ok(())).await?;
        let sql = "SELECT first, last FROM event WHERE unbound_at IS NOT NULL AND unbound_at < $1
                   ORDER BY unbound_at LIMIT $2";
        let read = |row: &mut Columns<'_>| Ok((row.next()?, row.next()?));
        let old: Vec<(u64, u64)> = self.all(sql, params![oldest, limit], read).await?;
        if old.is_empty() {
            return Ok(());
        }
        let first: Vec<_> = old.into_iter().map(|(first, _)| first).collect();
        let last = "SELECT pg_catalog.max(last) FROM event WHERE first = ANY($1)";
        let needs = alone(Needs {
            reads: last_position(last, vec![array(&first)]),
            ..Needs::default()
        });
        let change = move |rows: &mut Rows| {
            rows.note_removed()?;
            rows.execute(
                "DELETE FROM event WHERE first = ANY($1)",
                vec![array(&first)],
            );
            Ok(())
        };
        self.write(0, needs, change).await
    }
}
