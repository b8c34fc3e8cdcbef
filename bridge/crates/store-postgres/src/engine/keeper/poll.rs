//! Poll: what the other nodes have done since the last one, in one message.

use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use tokio_postgres::Row;

use super::super::instant::Instant;
use super::{BUSY, Keeper, Lapse, REST};
use crate::rows::statement::{Columns, Statement, params};
use crate::tables::nodes::{NODES, record};
use crate::totals::Numbers;
use forge_store::node::Notices;
use forge_store::{Error, Result};

/// Time for which a node is known after its lease has ended.
const REMEMBERED: SignedDuration = SignedDuration::from_hours(24);
/// Positions, a number that changes with every change of the other nodes, and the state of the shared count.
const POLL: &str = "SELECT
   coalesce((SELECT last FROM event ORDER BY first DESC LIMIT 1), 0),
   coalesce((SELECT value FROM meta WHERE name = 'removed'), 0),
   (SELECT coalesce(pg_catalog.sum(epoch + revision), 0)::int8 FROM node
     WHERE id <> $1 AND NOT has_ended AND until > pg_catalog.clock_timestamp()),
   c.number, c.at < pg_catalog.clock_timestamp() - interval '2 s'
   FROM counted c";
const CANCELLED: &str =
    "SELECT id, attempts FROM dispatch WHERE phase = 4 AND cancel_requested AND epoch = $1";
/// Adapters with dispatches that can start here, among the first ones of each; one step in the index finds the next.
const READY: &str = "WITH RECURSIVE ready AS (
   (SELECT provider FROM dispatch WHERE phase = 0 ORDER BY provider LIMIT 1)
   UNION ALL SELECT (SELECT provider FROM dispatch WHERE phase = 0 AND provider > r.provider ORDER BY provider LIMIT 1)
   FROM ready r WHERE r.provider IS NOT NULL)
   SELECT provider FROM ready r WHERE EXISTS (
     SELECT FROM (SELECT home FROM dispatch WHERE phase = 0 AND provider = r.provider
                  ORDER BY priority DESC, seq LIMIT 64) f WHERE home IS NULL OR home = $1)";
const PAUSED: &str = "SELECT provider FROM paused";
const COUNTED: &str = "SELECT body FROM counted";

impl Keeper {
    /// Returns the pause until the next one.
    pub(super) async fn poll(&mut self) -> Result<Duration, Lapse> {
        let published = Arc::clone(&self.shared.published);
        let (node, epoch) = (published.node.id.clone(), published.epoch());
        let poll = Statement::new(POLL, params![node]);
        let cancelled = Statement::new(CANCELLED, params![epoch]);
        let ready = Statement::new(READY, params![node]);
        let paused = Statement::new(PAUSED, Vec::new());
        let all = [&poll, &cancelled, &ready, &paused];
        let begun = Instant::now();
        let answers = self.link()?.send(&all).await?;
        self.shared.meters.shared.polls.time(begun.elapsed());
        let [state, cancelled, ready, paused] = answers.as_slice() else {
            return Err(Error::NotFound.into());
        };
        let mut state = Columns::of(state.first().ok_or(Error::NotFound)?);
        published.observe(state.next()?, state.next()?);
        let (nodes, counted, is_old): (u64, u64, bool) =
            (state.next()?, state.next()?, state.next()?);
        if self.seen.nodes != Some(nodes) {
            self.see_nodes().await?;
            if nodes == 0 {
                self.counter.count(false);
            }
            self.seen.nodes = Some(nodes);
        }
        if nodes != 0 && counted != self.seen.counted {
            self.take_numbers().await?;
            self.seen.counted = counted;
        }
        if nodes != 0 && is_old {
            self.counter.count(true);
        }
        let read = |row: &Row| {
            let mut columns = Columns::of(row);
            Ok::<_, Error>((columns.next()?, columns.next()?))
        };
        let cancelled = cancelled.iter().map(read).collect::<Result<_>>()?;
        let ready = ready.iter().map(|row| Columns::of(row).next());
        let ready = ready.collect::<Result<Vec<String>>>()?;
        let paused = paused.iter().map(|row| Columns::of(row).next());
        let paused = paused.collect::<Result<_>>()?;
        let is_busy = !ready.is_empty() || published.totals().numbers.counts.running > 0;
        let notices = Notices {
            cancelled,
            ready,
            paused,
            nodes,
        };
        // Work is told at each poll, because what came since the last one looks the same.
        published.node.notices.send_if_modified(|seen| {
            let is_new = *seen != notices || !notices.ready.is_empty();
            *seen = notices;
            is_new
        });
        Ok(if is_busy { BUSY } else { REST })
    }

    /// Reads the other nodes.
    async fn see_nodes(&mut self) -> Result<(), Lapse> {
        let answers = self
            .link()?
            .send(&[&Statement::new(NODES, Vec::new())])
            .await?;
        let nodes = answers.first().map_or(&[][..], Vec::as_slice);
        let nodes = nodes.iter().map(|row| record(&mut Columns::of(row)));
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        let own = &self.shared.published.node;
        let oldest = own.clock().now() - REMEMBERED;
        let (others, mut ended): (Vec<_>, Vec<_>) = nodes
            .into_iter()
            .filter(|node| node.id != own.id)
            .partition(|node| node.is_live);
        ended.retain(|node| node.lease_until.is_some_and(|until| until > oldest));
        own.ended.send_replace(ended.into());
        own.others.send_replace(others.into());
        Ok(())
    }

    /// Takes over the numbers that a node has counted.
    async fn take_numbers(&mut self) -> Result<(), Lapse> {
        let answers = self
            .link()?
            .send(&[&Statement::new(COUNTED, Vec::new())])
            .await?;
        let body = answers.first().and_then(|rows| rows.first());
        let body: String = body.map_or(Ok(String::new()), |row| Columns::of(row).next())?;
        if let Some(numbers) = Numbers::from_json(&body) {
            self.shared.published.totals().numbers = numbers;
        }
        Ok(())
    }
}
